"""Compiling grammars: requests for structured output wait in the scheduler until this says that theirs is
ready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np
import numpy.typing as npt
from simpy import Event

from sim.cluster.clock import Clock, late_timeout


@dataclass(frozen=True, slots=True, eq=False)
class GrammarSpec:
    """How an engine compiles: `grammar_of[request id]` is a number or -1, `compile_s[number]` its time.

    `workers` grammars are compiled at a time, first come, first served. With `cache` a grammar is compiled
    once and then kept.
    """

    grammar_of: npt.NDArray[np.int64]
    compile_s: npt.NDArray[np.float64]
    workers: int = 1
    cache: bool = True


class GrammarCompiler:
    """The compiler of one replica. `ready(request_id)` is called when a request's grammar can be used."""

    def __init__(self, env: Clock, spec: GrammarSpec, ready: Callable[[int], None]) -> None:
        self.num_asked = 0
        """Requests that needed a grammar."""
        self.num_compiled = 0
        self.num_hits = 0
        """Requests whose grammar was there, or on its way."""
        self.num_waiting = 0
        """Requests whose grammar is being compiled or waits for a worker."""
        self._env = env
        self._spec = spec
        self._ready = ready
        self._free_s = [0.0] * spec.workers
        self._compiled: set[int] = set()
        self._askers: dict[int, list[int]] = {}

    def ask(self, request_id: int) -> None:
        """A request that needs its grammar has come to the engine."""
        self.num_asked += 1
        grammar = int(self._spec.grammar_of[request_id])
        if self._spec.cache and grammar in self._compiled:
            self.num_hits += 1
            self._ready(request_id)
            return
        self.num_waiting += 1
        if self._spec.cache and grammar in self._askers:
            self.num_hits += 1
            self._askers[grammar].append(request_id)
            return
        now = self._env.now
        ends_s = max(now, self._free_s[0]) + float(self._spec.compile_s[grammar])
        heapreplace(self._free_s, ends_s)
        askers = [request_id]
        if self._spec.cache:
            self._askers[grammar] = askers
        late_timeout(self._env, ends_s - now, (grammar, askers)).callbacks.append(self._finish)

    def _finish(self, event: Event) -> None:
        assert event.value is not None
        grammar, askers = event.value
        self.num_compiled += 1
        if self._spec.cache:
            self._compiled.add(grammar)
            del self._askers[grammar]
        self.num_waiting -= len(askers)
        for request_id in askers:
            self._ready(request_id)
