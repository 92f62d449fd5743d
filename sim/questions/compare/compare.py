"""`compare`: from a scenario and variants of it to a `Comparison` with paired differences and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sim.errors import Fault, InputError
from sim.jobs.options import RunOptions
from sim.jobs.points import Outcome, Point, run_points
from sim.questions.asked import read_base, seed_faults
from sim.questions.compare.answer import Comparison
from sim.questions.compare.results import (
    STARVING_S,
    class_table,
    difference_table,
    values_of,
    whole_pairs,
)
from sim.questions.compare.variants import Variant, make_variants
from sim.questions.sweep.cells import trace_faults
from sim.scenario import Scenario
from sim.scenario.slo import parse_slo

REPLICATIONS = 10
MOST_VARIANTS = 50
COLUMNS = (
    "arrival_s",
    "class",
    "e2e_s",
    "first_scheduled_s",
    "first_token_s",
    "last_token_s",
    "num_preemptions",
    "output_tokens",
    "status",
    "ttft_s",
    "tpot_s",
)
"""What is kept of each request, for the figures."""


def compare(
    scenario: Scenario | str | Path,
    *variants: str | Scenario | Sequence[str | Scenario],
    vary: Sequence[str] = (),
    overrides: Sequence[str] = (),
    slo: str | None = None,
    replications: int | None = None,
    seeds: Sequence[int] | None = None,
    starving_s: float = STARVING_S,
    options: RunOptions | None = None,
) -> Comparison:
    """Simulate variants of a scenario under the same seeds, and pair their runs.

        found = compare("kv-starved", "fcfs_tail", "least_computed", replications=10)
        found.difference("p99_ttft_ms"), found.plot("differences")

    Three seeds of a short run, in this process and without a store; three seeds show little, two nothing:

    >>> few = {"overrides": ["workload.num_requests=60"], "replications": 3}
    >>> here = RunOptions(workers=1, store=None)
    >>> found = compare("kv-starved", "fcfs_tail", "least_computed", **few, options=here)
    >>> found.labels
    ['fcfs_tail', 'least_computed']
    >>> row = found.difference("output_throughput")
    >>> row["low"] <= row["difference"] <= row["high"]
    True

    A variant is the name of a policy, `field=value,…`, or another scenario; they can be given as a list too.
    `vary` (`path=values`) adds one for each value. The first is the reference: the scenario itself, unless
    two or more variants of it are given. Seeds are base, base + 1, …, the same for all, so that arrivals and
    lengths are the same too.
    `options` say how and where runs are made. Raises `InputError` with all mistakes before anything runs.
    """
    faults = _option_faults(replications, seeds, starving_s)
    base = read_base(scenario, overrides, None, faults)
    found: list[Variant] = []
    try:
        found = make_variants(base, _flat(variants), vary, overrides)
        promised = None if slo is None else parse_slo(slo)
    except InputError as error:
        faults += error.faults
    unread = (fault for variant in found for fault in _trace_faults(variant, base))
    faults += dict.fromkeys(unread)
    if len(found) > MOST_VARIANTS:
        faults.append(Fault("--vary", None, f"{len(found)} variants are more than {MOST_VARIANTS}"))
    if faults:
        raise InputError(faults)
    if promised is not None:
        found = [Variant(v.label, v.scenario.model_copy(update={"slo": promised})) for v in found]
    count = REPLICATIONS if replications is None else replications
    chosen = tuple(seeds) if seeds is not None else tuple(base.seed + index for index in range(count))
    points = [
        Point(variant.scenario.model_copy(update={"seed": seed}), {"variant": number, "seed": seed})
        for seed in chosen
        for number, variant in enumerate(found)
    ]
    outcomes = run_points(points, columns=COLUMNS, options=options or RunOptions())
    runs = tuple(tuple(outcomes[number :: len(found)]) for number in range(len(found)))
    return make_comparison(base, found, chosen, runs, starving_s)


def _flat(given: Sequence[str | Scenario | Sequence[str | Scenario]]) -> list[str | Scenario]:
    found: list[str | Scenario] = []
    for each in given:
        found += [each] if isinstance(each, str | Scenario) else each
    return found


def make_comparison(
    base: Scenario,
    variants: Sequence[Variant],
    seeds: tuple[int, ...],
    runs: tuple[tuple[Outcome, ...], ...],
    starving_s: float = STARVING_S,
) -> Comparison:
    """Tables of finished runs; seeds of which some run failed are left out of all variants, to keep pairs."""
    kept = whole_pairs(runs)
    labels = [variant.label for variant in variants]
    table = difference_table(labels, [values_of(run) for run in kept])
    classes = class_table(labels, kept, starving_s)
    return Comparison(base, tuple(variants), seeds, runs, table, classes, starving_s)


def _trace_faults(variant: Variant, base: Scenario) -> Iterator[Fault]:
    for fault in trace_faults(variant.scenario, base):
        yield Fault(fault.where or variant.label, fault.path, fault.message)


def _option_faults(replications: int | None, seeds: Sequence[int] | None, starving_s: float) -> list[Fault]:
    faults = []
    if seeds is not None and replications is not None:
        faults.append(Fault("--seeds", None, "leaves no choice of --replications"))
    faults += seed_faults(seeds)
    if replications is not None and not 1 <= replications <= 10_000:
        faults.append(Fault(f"--replications {replications}", None, "must be from 1 to 10,000"))
    if not starving_s > 0.0:
        faults.append(Fault(f"--starving {starving_s:g}", None, "must be above 0 s"))
    return faults
