"""`size`: from a scenario, a promise and candidates to a `Sizing` with tables, an answer and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sim.errors import Fault, InputError
from sim.jobs.options import Progress, RunOptions
from sim.jobs.points import run_points
from sim.questions.size.binding import binding
from sim.questions.size.candidates import Candidate, make_candidates
from sim.questions.size.load import RunLength, load_faults, peak, run_length, unit
from sim.questions.size.prices import Prices, read_prices
from sim.questions.size.promise import CLOSE, Judgement, Promise, make_promise
from sim.questions.size.rounds import Bench, Simulate
from sim.questions.size.rows import capacity_rows, fleet_rows
from sim.questions.size.search import Capacity, Fleet, find_capacity, find_fleet
from sim.questions.sweep.axes import Values
from sim.scenario import Scenario, load_scenario
from sim.scenario.slo import parse_slo

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

REPLICATIONS = 5
MOST_REPLICATIONS = 10
PRECISION = 0.05


@dataclass(frozen=True, slots=True)
class Sizing:
    """What came of a sizing; see `sim.questions.size.rows` for the tables.

    `capacity_table` has a row for each candidate, `fleet_table` one for each fleet that was simulated at
    `rate_per_s` (empty without a rate). `found` and `fleets` are what they are made of, by candidate.
    """

    base: Scenario
    promise: Promise
    candidates: tuple[Candidate, ...]
    found: Mapping[int, Capacity]
    fleets: Mapping[int, Fleet]
    rate_per_s: float | None
    num_gpus: int | None
    prices: Prices | None
    length: RunLength
    replications: int
    precision: float
    capacity_table: pd.DataFrame
    fleet_table: pd.DataFrame

    @property
    def unpriced(self) -> str:
        """`no price for h100-sxm` where prices were given, but none for a candidate; else empty."""
        return "" if self.prices is None else self.prices.missing(c.gpu for c in self.candidates)

    @property
    def answers(self) -> dict[int, Fleet]:
        """Candidates with a fleet that keeps the promise, by number."""
        return {number: fleet for number, fleet in self.fleets.items() if fleet.replicas is not None}

    @property
    def smallest(self) -> int | None:
        """The candidate with the fewest GPUs at the rate; of equals the cheaper, then the first by name."""
        return min(self.answers, key=lambda n: (self._gpus(n), self._cost(n), self._label(n)), default=None)

    @property
    def cheapest(self) -> int | None:
        """The candidate whose fleet costs least; None unless there are prices for two or more."""
        priced = [number for number in self.answers if self._cost(number) < float("inf")]
        if len(priced) < 2:
            return None
        return min(priced, key=lambda n: (self._cost(n), self._gpus(n), self._label(n)))

    @property
    def has_answer(self) -> bool:
        """Whether anything keeps the promise: some fleet at the rate, or some candidate at any rate."""
        if self.rate_per_s is not None:
            return bool(self.answers)
        return any(capacity.rate_per_s > 0.0 for capacity in self.found.values())

    def bound(self, number: int) -> str:
        """What limits a candidate's fleet, or its replica without a rate, and in which runs; a sentence."""
        candidate, capacity = self.candidates[number], self.found[number]
        fleet = self.answers.get(number)
        if fleet is not None and fleet.replicas is not None:
            less = fleet.tried.get(fleet.replicas - 1)
            broken = None if less is None or not less.numbers else less
            at = fleet.replicas if broken is None else fleet.replicas - 1
            runs = f"with {at} replica{'s' if at > 1 else ''}, {_kept_words(broken)}"
            return f"{binding(candidate, fleet.tried[fleet.replicas], broken, at)} ({runs})"
        judged = capacity.kept or capacity.broken
        assert judged is not None
        broken = capacity.broken if capacity.broken is not None and capacity.broken.numbers else None
        rate = capacity.rate_per_s if broken is None else capacity.above_per_s
        runs = f"at {rate:.3g} {unit(self.base)}, {_kept_words(broken)}"
        return f"{binding(candidate, judged, broken, capacity.replicas)} ({runs})"

    def _gpus(self, number: int) -> int:
        return (self.fleets[number].replicas or 0) * self.candidates[number].gpus

    def _cost(self, number: int) -> float:
        each = self.prices.per_gpu_hour if self.prices is not None else {}
        return self._gpus(number) * each.get(self.candidates[number].gpu, float("inf"))

    def _label(self, number: int) -> str:
        return self.candidates[number].label

    @property
    def figures(self) -> list[str]:
        """The names of the figures that can be drawn."""
        from sim.questions.size.pictures import figures

        return list(figures(self))

    def plot(self, kind: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a figure by its name (see `figures`), by default the first."""
        from sim.questions.size.pictures import figures

        drawn = figures(self)
        if kind not in (None, *drawn):
            raise ValueError(f"no figure {kind!r} of this sizing; it has {', '.join(drawn) or 'none'}")
        if not drawn:
            raise ValueError("nothing kept the promise: there is nothing to draw; use the tables")
        return drawn[kind or next(iter(drawn))](ax)

    def write(self, root: Path | str = "sizes", *, draw: bool = True) -> Path:
        """Write the tables, and the figures unless `draw` is false, into a folder below `root`; return it."""
        from sim.questions.size import folder

        written = folder.write(self, Path(root))
        if draw:
            folder.draw(self, written)
        return written


def size(
    scenario: Scenario | str | Path,
    *,
    rate: float | None = None,
    num_gpus: int | None = None,
    slo: str | None = None,
    attainment: float | None = None,
    gpus: Sequence[str] = (),
    tp: str | Sequence[int] | None = None,
    grids: Sequence[str] | Mapping[str, Values] = (),
    overrides: Sequence[str] = (),
    prices: Prices | str | None = None,
    requests: int | None = None,
    replications: int = REPLICATIONS,
    precision: float = PRECISION,
    backend: str = "loky",
    address: str | None = None,
    workers: int | None = None,
    store: Path | Literal["default"] | None = "default",
    on_progress: Callable[[Progress], None] | None = None,
    allow_plugins: bool = False,
) -> Sizing:
    """Find the highest rate that each candidate sustains, and with `rate` the smallest fleet that takes it.

        found = size("quickstart", rate=50, gpus=["h100-sxm", "a100-sxm-80gb"], prices="prices.toml")
        found.fleet_table, found.candidates[found.smallest].label

    One replica as the scenario has it, coarsely, in this process and without a store:

    >>> coarse = {"requests": 60, "replications": 2, "precision": 0.5}
    >>> found = size("kv-starved", slo="ttft_p95=1s", **coarse, workers=1, store=None)
    >>> kept = found.found[0]
    >>> 0 < kept.rate_per_s < kept.above_per_s
    True

    A rate is sustained if the lower ends of 95 % intervals over `replications` seeds, the same for all
    candidates, reach what the SLO promises: each target for its percentile, or all at once for a share
    `attainment` of requests. The search ends when the rates that hold and do not are within `precision` of
    each other. Every fleet is simulated whole. With `num_gpus` in place of `rate` every candidate gets that
    many GPUs, and the rate of the whole is found. `requests` is the length of each run, by default as many as
    a minute or more takes; prices are read by `sim.questions.size.prices.read_prices`. How and where runs
    are made is as in `sim.jobs.points.run_points`. Raises `InputError` with all mistakes.
    """
    faults: list[Fault] = []
    base = _base(scenario, overrides, slo, faults)
    faults += _option_faults(rate, num_gpus, attainment, replications, precision)
    faults += load_faults(base, requests)
    promise = make_promise(base, attainment)
    if promise is None:
        faults.append(
            Fault("--slo", None, "is needed, such as ttft_p99=1s,tpot_p99=40ms: the scenario has none")
        )
    candidates: list[Candidate] = []
    try:
        candidates = make_candidates(base, gpus, tp, grids, allow_plugins=allow_plugins)
    except InputError as error:
        faults += error.faults
    try:
        with_prices = read_prices(prices) if isinstance(prices, str) else prices
    except InputError as error:
        faults += error.faults
    if faults or promise is None:
        raise InputError(faults)
    candidates = [_with_whole_replicas(candidate, num_gpus) for candidate in candidates]
    options = RunOptions(
        workers=workers,
        backend=backend,
        address=address,
        store=store,
        on_progress=on_progress,
        allow_plugins=allow_plugins,
    )
    simulate: Simulate = partial(run_points, options=options.over_many_calls())
    length = run_length(base, tuple(promise.targets.values()), requests)
    bench = Bench(promise, length, simulate)
    found, fleets = _search(candidates, bench, rate, num_gpus, replications, precision)
    return Sizing(
        base,
        promise,
        tuple(candidates),
        found,
        fleets,
        rate,
        num_gpus,
        with_prices,
        length,
        replications,
        precision,
        capacity_rows(candidates, found, promise, with_prices),
        fleet_rows(candidates, fleets, promise, with_prices),
    )


def _search(
    candidates: Sequence[Candidate],
    bench: Bench,
    rate: float | None,
    num_gpus: int | None,
    replications: int,
    precision: float,
) -> tuple[dict[int, Capacity], dict[int, Fleet]]:
    able = {n: c.scenario for n, c in enumerate(candidates) if c.fault is None and c.scenario is not None}
    replicas = {n: 1 if num_gpus is None else num_gpus // candidates[n].gpus for n in able}
    found = bench.run(
        able, {n: find_capacity(replicas[n], replications, precision, peak(able[n])) for n in able}
    )
    if rate is None:
        return found, {}
    holding = {n: capacity for n, capacity in found.items() if capacity.rate_per_s > 0.0}
    most = max(replications, MOST_REPLICATIONS) if replications > 1 else replications
    return found, bench.run(able, {n: find_fleet(c, rate, replications, most) for n, c in holding.items()})


def _kept_words(broken: Judgement | None) -> str:
    if broken is None:
        return "where the promise is kept"
    return CLOSE if broken.verdict == CLOSE else "where the promise breaks"


def _with_whole_replicas(candidate: Candidate, num_gpus: int | None) -> Candidate:
    if num_gpus is None or candidate.fault is not None or num_gpus % candidate.gpus == 0:
        return candidate
    fault = f"{num_gpus} GPUs are no whole number of replicas of {candidate.gpus}"
    return Candidate(candidate.setting, candidate.scenario, candidate.setup, fault)


def _base(
    scenario: Scenario | str | Path, overrides: Sequence[str], slo: str | None, faults: list[Fault]
) -> Scenario:
    base = scenario if isinstance(scenario, Scenario) else load_scenario(scenario, overrides)
    if isinstance(scenario, Scenario) and overrides:
        faults.append(Fault("overrides", None, "change a scenario by name or path, not one that is loaded"))
    if slo is None:
        return base
    try:
        return base.model_copy(update={"slo": parse_slo(slo)})
    except InputError as error:
        faults += error.faults
        return base


def _option_faults(
    rate: float | None, num_gpus: int | None, attainment: float | None, replications: int, precision: float
) -> list[Fault]:
    faults = []
    if rate is not None and not 0.0 < rate <= 1e6:
        faults.append(Fault(f"--rate {rate:g}", None, "must be above 0 and at most 1e6"))
    if num_gpus is not None and not 1 <= num_gpus <= 10_000:
        faults.append(Fault(f"--num-gpus {num_gpus}", None, "must be from 1 to 10,000"))
    if rate is not None and num_gpus is not None:
        faults.append(Fault("--num-gpus", None, "leaves no choice of --rate: it asks which rate they take"))
    if attainment is not None and not 0.0 < attainment < 1.0:
        faults.append(
            Fault(f"--attainment {attainment:g}", None, "must be a share between 0 and 1, such as 0.99")
        )
    if not 1 <= replications <= 1000:
        faults.append(Fault(f"--replications {replications}", None, "must be from 1 to 1,000"))
    if not 0.001 <= precision <= 0.5:
        faults.append(Fault(f"--precision {precision:g}", None, "must be from 0.1% to 50%"))
    return faults
