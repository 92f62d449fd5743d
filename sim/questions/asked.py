"""What every question is asked about: a scenario, perhaps changed, and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sim.errors import Fault, InputError
from sim.scenario import Scenario, load_scenario
from sim.scenario.slo import parse_slo

MOST_SEED = (1 << 63) - 1


def read_base(
    scenario: Scenario | str | Path, overrides: Sequence[str], slo: str | None, faults: list[Fault]
) -> Scenario:
    """The scenario that is asked about, with the latency targets `slo` in place of its own.

    `overrides` are `path=value` texts. What is wrong with `slo` is added to `faults`; raises `InputError` if
    there is no such scenario, or if the overrides make none.
    """
    base = load_scenario(scenario, overrides)
    if slo is not None:
        try:
            base = base.model_copy(update={"slo": parse_slo(slo)})
        except InputError as error:
            faults += error.faults
    return base


def seed_faults(seeds: Sequence[int] | None) -> Iterator[Fault]:
    """What is wrong with seeds that were given: they must be distinct, from 0 to 2^63 - 1."""
    if seeds is not None and (
        not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) > MOST_SEED
    ):
        yield Fault("--seeds", None, "must be distinct whole numbers from 0 to 2^63 - 1")
