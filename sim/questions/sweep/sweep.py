"""`sweep`: from a scenario and grids to a `Sweep` with tables, an answer and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sim.errors import Fault, InputError
from sim.jobs.options import Progress, RunOptions
from sim.jobs.points import Point, run_points
from sim.questions.size.prices import Prices, read_prices
from sim.questions.sweep.answer import (
    Best,
    Capacity,
    best_capacity,
    best_cell,
    capacities,
    labels,
    latency_column,
    verdicts,
    vllm_flags,
)
from sim.questions.sweep.axes import CONCURRENCY, RATE, Values, make_axes
from sim.questions.sweep.costs import add_costs
from sim.questions.sweep.plan import MOST_RUNS, Cell, make_cells
from sim.questions.sweep.runs import Precision, Runs, run_cells, run_to_precision
from sim.questions.sweep.tables import cell_table, replication_table
from sim.questions.sweep.warm_up import COLUMNS, without_warm_up
from sim.scenario import Scenario, SloTarget, load_scenario
from sim.scenario.slo import parse_slo
from sim.statistics.precision import FIRST_STAGE
from sim.values import Json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

REPLICATIONS = 5
MOST_REPLICATIONS = 200


@dataclass(frozen=True, slots=True)
class Sweep:
    """What came of a sweep.

    `table` has a row for each run, `summary` one for each cell with 95 % intervals (see
    `sim.questions.sweep.tables`), and a `verdict` of the SLO. `capacities` says up to which rate promises
    hold, where the rate varies; `best` is the best cell. Written tables and figures come from these alone.
    """

    base: Scenario
    paths: tuple[str, ...]
    cells: tuple[Cell, ...]
    runs: Runs
    targets: Mapping[str, SloTarget]
    table: pd.DataFrame
    summary: pd.DataFrame
    capacities: tuple[Capacity, ...]
    best: Best | None
    notes: tuple[str, ...] = ()
    prices: Prices | None = None

    @property
    def failed(self) -> list[tuple[str, str]]:
        """Cells without a result or with failed runs, in words, and why."""
        failed = self.summary[self.summary["error"].notna()]
        return list(zip(labels(failed, self.paths), failed["error"].astype(str), strict=True))

    @property
    def unpriced(self) -> str:
        """`no price for h100-sxm` where prices were given, but none for a GPU in use; else empty."""
        if self.prices is None:
            return ""
        summaries = (o.summary for outcomes in self.runs.outcomes for o in outcomes if o.summary)
        return self.prices.missing(str(summary["gpu"]) for summary in summaries)

    @property
    def flags(self) -> str:
        """The best cell as arguments of `vllm serve`; empty if nothing that varies is one."""
        return "" if self.best is None else vllm_flags(self.best.setting)

    @property
    def facts(self) -> dict[str, Json]:
        """The summary of some run, for what they all have in common; empty if all failed."""
        good = (o.summary for outcomes in self.runs.outcomes for o in outcomes if o.summary)
        return next(good, {})

    def plot(self, kind: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw one of the figures that fit the axes (`figures` names them), by default the first."""
        from sim.questions.sweep.pictures import figures

        fitting = figures(self)
        if not fitting:
            raise ValueError("no figure fits these axes; use the tables")
        if kind is not None and kind not in fitting:
            raise ValueError(f"no figure {kind!r} of this sweep; it has {', '.join(fitting)}")
        return fitting[kind if kind is not None else next(iter(fitting))](ax)

    @property
    def figures(self) -> list[str]:
        """The names of the figures that fit the axes."""
        from sim.questions.sweep.pictures import figures

        return list(figures(self))

    def write(self, root: Path | str = "sweeps", *, draw: bool = True) -> Path:
        """Write the tables, and the figures unless `draw` is false, into a folder below `root`; return it."""
        from sim.questions.sweep import folder

        written = folder.write(self, Path(root))
        if draw:
            folder.draw(self, written)
        return written


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
    backend: str = "loky",
    address: str | None = None,
    workers: int | None = None,
    store: Path | Literal["default"] | None = "default",
    on_progress: Callable[[Progress], None] | None = None,
    allow_plugins: bool = False,
) -> Sweep:
    """Simulate every combination of `grids` (and `zipped`, which move together, and `rates`) several times.

        found = sweep("chat-a100", {"engine.max_num_seqs": "32..512"}, rates="1:20", replications=5)
        found.summary, found.best, found.plot("attainment")

    Two sizes of the KV cache, two seeds each, in this process and without a store:

    >>> grid = {"engine.num_gpu_blocks_override": [700, 2400]}
    >>> found = sweep("kv-starved", grid, requests=60, replications=2, workers=1, store=None)
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
    How and where runs are made is as in `sim.jobs.points.run_points`. Raises `InputError`
    with all mistakes before anything runs.
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
    options = RunOptions(
        workers=workers,
        backend=backend,
        address=address,
        store=store,
        on_progress=on_progress,
        allow_plugins=allow_plugins,
    )
    simulate = partial(run_points, options=options.over_many_calls())
    targets = _targets(base, cells)
    notes: tuple[str, ...] = ()
    if warm_up == "auto":
        pilots = [
            Point(cell.scenario.model_copy(update={"seed": chosen[0], "warmup_s": 0.0}), {})
            for cell in cells
            if cell.scenario is not None
        ]
        cells, told = without_warm_up(cells, simulate(pilots, columns=COLUMNS))
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
    base = load_scenario(scenario, overrides) if not isinstance(scenario, Scenario) else scenario
    faults: list[Fault] = []
    changes: dict[str, object] = {}
    if isinstance(scenario, Scenario) and overrides:
        faults.append(Fault("overrides", None, "change a scenario by name or path, not one that is loaded"))
    if slo is not None:
        try:
            changes["slo"] = parse_slo(slo)
        except InputError as error:
            faults += error.faults
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
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 1 << 63:
            faults.append(Fault("--seeds", None, "must be distinct whole numbers from 0 to 2^63 - 1"))
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
