"""`sweep`: from a scenario and grids to a `Sweep` with tables, an answer and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal

from sim.errors import Fault, InputError
from sim.jobs.options import RunOptions
from sim.jobs.points import Point, run_points
from sim.questions.asked import read_base, seed_faults
from sim.questions.prices import Prices, read_prices
from sim.questions.sweep.answer import Sweep
from sim.questions.sweep.axes import CONCURRENCY, RATE, Values, make_axes
from sim.questions.sweep.cells import MOST_RUNS, Cell, make_cells
from sim.questions.sweep.findings import (
    best_capacity,
    best_cell,
    capacities,
    latency_column,
    verdicts,
)
from sim.questions.sweep.runs import (
    WARM_UP_COLUMNS,
    Precision,
    Runs,
    run_cells,
    run_to_precision,
    without_warm_up,
)
from sim.questions.sweep.tables import add_costs, cell_table, replication_table
from sim.scenario import Scenario, SloTarget
from sim.statistics.series import FIRST_STAGE

REPLICATIONS = 5
MOST_REPLICATIONS = 200


def sweep(
    scenario: Scenario | str | Path,
    grids: Sequence[str] | Mapping[str, Values] = (),
    *,
    zipped: Sequence[str] | Mapping[str, Values] = (),
    rates: str | Sequence[float] | None = None,
    overrides: Sequence[str] = (),
    slo: str | None = None,
    prices: str | None = None,
    requests: int | None = None,
    warm_up: float | Literal["auto"] | None = None,
    replications: int | None = None,
    seeds: Sequence[int] | None = None,
    precision: float | None = None,
    most_replications: int = MOST_REPLICATIONS,
    options: RunOptions | None = None,
) -> Sweep:
    """Simulate every combination of `grids` (and `zipped`, which move together, and `rates`) several times.

        found = sweep("chat-a100", {"engine.max_num_seqs": "32..512"}, rates="1:20", replications=5)
        found.summary, found.best, found.plot("attainment")

    Two sizes of the KV cache, two seeds each, in this process and without a store:

    >>> grid = {"engine.num_gpu_blocks_override": [700, 2400]}
    >>> here = RunOptions(workers=1, store=None)
    >>> found = sweep("kv-starved", grid, requests=60, replications=2, options=here)
    >>> len(found.table), len(found.summary)
    (4, 2)
    >>> small, large = found.summary["num_preemptions"]
    >>> small > large
    True

    Replications have the seeds base, base + 1, … or `seeds`, the same in every cell. With `precision` (0.05:
    half-width at most 5 % of the mean, for goodput and the percentiles that the SLO names) there are ten of
    them and then as many as it takes, up to `most_replications`. `slo`, `requests` (a run, in place of a
    duration) and `warm_up` (seconds, or `auto` for MSER-5 on a first run of every cell) change the scenario,
    `overrides` are `path=value` texts. `prices` says what GPUs cost an hour: `h100-sxm=4.00,…`, or a file.
    `options` say how and where runs are made. Raises `InputError` with all mistakes before anything runs.
    """
    base, faults = _base(scenario, overrides, slo, requests, warm_up)
    axes, axis_faults = make_axes(base, grids, zipped, rates)
    money: Prices | None = None
    try:
        money = None if prices is None else read_prices(prices)
    except InputError as error:
        faults += error.faults
    chosen, seed_faults = _seeds(base, seeds, replications, precision, most_replications)
    faults += axis_faults + seed_faults
    try:
        cells = make_cells(base, axes, len(chosen))
    except InputError as error:
        raise InputError([*faults, *error.faults]) from None
    if faults:
        raise InputError(faults)
    simulate = partial(run_points, options=(options or RunOptions()).over_many_calls())
    targets = _targets(base, cells)
    notes: tuple[str, ...] = ()
    if warm_up == "auto":
        pilots = [
            Point(cell.scenario.model_copy(update={"seed": chosen[0], "warmup_s": 0.0}), {})
            for cell in cells
            if cell.scenario is not None
        ]
        cells, told = without_warm_up(cells, simulate(pilots, columns=WARM_UP_COLUMNS))
        notes = (told,)
    if precision is None:
        runs = run_cells(cells, chosen, simulate)
    else:
        wanted = Precision(precision, _columns(targets), most_replications)
        runs = run_to_precision(cells, lambda index: base.seed + index, wanted, simulate)
    paths = tuple(path for axis in axes for path in axis.paths)
    return make_sweep(base, paths, cells, runs, targets, notes, money)


def make_sweep(
    base: Scenario,
    paths: tuple[str, ...],
    cells: Sequence[Cell],
    runs: Runs,
    targets: Mapping[str, SloTarget],
    notes: tuple[str, ...] = (),
    prices: Prices | None = None,
) -> Sweep:
    """Tables and answer of finished runs; raises `InputError` with the causes if not one succeeded."""
    outcomes = [outcome for each in runs.outcomes for outcome in each]
    if not any(outcome.summary for outcome in outcomes):
        causes = dict.fromkeys([*(o.error for o in outcomes), *(cell.fault for cell in cells)])
        raise InputError([Fault(None, None, cause) for cause in causes if cause is not None])
    table, summary = replication_table(cells, runs), cell_table(cells, runs)
    summary["verdict"] = verdicts(summary, targets)
    if prices is not None:
        add_costs(summary, runs, prices)
    found = capacities(table, paths, targets)
    best = None
    if RATE in paths:
        best = best_capacity(found)
    elif len(cells) > 1 and CONCURRENCY not in paths:
        best = best_cell(summary, table, paths, targets)
    return Sweep(base, paths, tuple(cells), runs, targets, table, summary, tuple(found), best, notes, prices)


def _base(
    scenario: Scenario | str | Path,
    overrides: Sequence[str],
    slo: str | None,
    requests: int | None,
    warm_up: float | str | None,
) -> tuple[Scenario, list[Fault]]:
    """The scenario that is varied; faults of the options that change it come along."""
    faults: list[Fault] = []
    base = read_base(scenario, overrides, slo, faults)
    changes: dict[str, object] = {}
    if requests is not None:
        fields = type(base.workload).model_fields
        if requests < 1:
            faults.append(Fault(f"--requests {requests}", None, "must be at least 1"))
        elif "num_requests" not in fields:
            message = f"a workload of kind {base.workload.kind} has no num_requests"
            faults.append(Fault(f"--requests {requests}", None, message))
        else:
            size = {"num_requests": requests} | ({"duration_s": None} if "duration_s" in fields else {})
            changes["workload"] = base.workload.model_copy(update=size)
    if isinstance(warm_up, (int, float)):
        if not 0.0 <= warm_up < inf:
            faults.append(Fault(f"--warm-up {warm_up}", None, "must be a time of 0 s or more"))
        changes["warmup_s"] = float(warm_up)
    return base.model_copy(update=changes), faults


def _seeds(
    base: Scenario,
    seeds: Sequence[int] | None,
    replications: int | None,
    precision: float | None,
    most_replications: int,
) -> tuple[list[int], list[Fault]]:
    """The seeds of the replications, or of a first stage; and what is wrong with what was asked."""
    faults = []
    if seeds is not None:
        if replications is not None or precision is not None:
            faults.append(Fault("--seeds", None, "leaves no choice of --replications or --precision"))
        faults += seed_faults(seeds)
    if replications is not None and precision is not None:
        faults.append(Fault("--replications", None, "is found by --precision"))
    if replications is not None and not 1 <= replications <= MOST_RUNS:
        faults.append(Fault(f"--replications {replications}", None, f"must be from 1 to {MOST_RUNS:,}"))
    if precision is not None and not 0.0 < precision < 1.0:
        faults.append(Fault(f"--precision {precision}", None, "must be a share between 0 and 1, such as 5%"))
    if most_replications < FIRST_STAGE:
        where = f"--most-replications {most_replications}"
        faults.append(Fault(where, None, f"must be at least {FIRST_STAGE}, those of the first stage"))
    if faults:
        return [], faults
    count = FIRST_STAGE if precision is not None else replications or REPLICATIONS
    return list(seeds) if seeds is not None else [base.seed + index for index in range(count)], []


def _targets(base: Scenario, cells: Sequence[Cell]) -> dict[str, SloTarget]:
    """The SLO targets by key: those of the base, or of the first cell where they vary."""
    slo = next((cell.scenario.slo for cell in cells if cell.scenario is not None), base.slo)
    return {} if slo is None else dict(zip(slo.root, slo.targets, strict=True))


def _columns(targets: Mapping[str, SloTarget]) -> tuple[str, ...]:
    """The numbers that a precision is about."""
    if not targets:
        return ("output_throughput", "p99_ttft_ms", "p99_tpot_ms")
    return ("request_goodput", *dict.fromkeys(map(latency_column, targets.values())))
