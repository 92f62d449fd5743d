"""Randomness by name: one seed, and a separate stream for every purpose, whoever asks first.

Two runs that differ in one policy thus see the same arrivals and lengths (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Streams = Callable[[str], np.random.Generator]


def streams(seed: int) -> Streams:
    """A function from a name to that name's generator, e.g. `streams(7)("arrivals")`.

    The same name gives the same generator object again, so a stream continues where its last reader left
    it. A stream depends on the seed and its own name alone: neither on the order of asking nor on which other
    names are in use. Names in use: `arrivals`, `lengths`, `lengths.components`, `prefixes`, `estimates`,
    `sessions.turns`, `sessions.think`, `sessions.messages`, `timeouts.total`, `timeouts.first_token` (of a
    class: `timeouts.<class>.total` …), `lora`, `grammar`, `grammar.compile`, `acceptance`, `external_cache`,
    `routing`, `replica.<i>`. In a mixed workload those of a part come behind its name: `<part>.arrivals` ….
    """
    made: dict[str, np.random.Generator] = {}

    def stream(name: str) -> np.random.Generator:
        if name not in made:
            made[name] = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))
        return made[name]

    return stream
