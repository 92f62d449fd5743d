"""`compare`: from a scenario and variants of it to a `Comparison` with paired differences and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sim.errors import Fault, InputError
from sim.jobs.options import Progress, RunOptions
from sim.jobs.points import Outcome, Point, run_points
from sim.questions.compare.classes import STARVING_S, class_table
from sim.questions.compare.differences import DIFFERS, difference_table, values_of
from sim.questions.compare.variants import Variant, make_variants
from sim.questions.sweep.cells import trace_faults
from sim.scenario import Scenario, load_scenario
from sim.scenario.slo import parse_slo

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

REPLICATIONS = 10
MOST_VARIANTS = 50
LONG = 24
"""A longer label has a letter in its place in tables."""
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of a comparison.

    `table` has a row for each metric and variant (see `sim.questions.compare.differences`), `classes` one
    for each variant and client class, `runs` the outcomes of each variant in the order of `seeds`. The first
    variant is the reference.
    """

    base: Scenario
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    runs: tuple[tuple[Outcome, ...], ...]
    table: pd.DataFrame
    classes: pd.DataFrame
    starving_s: float

    @property
    def labels(self) -> list[str]:
        """What the variants are called."""
        return [variant.label for variant in self.variants]

    @property
    def names(self) -> dict[str, str]:
        """What variants are called in tables, by label: letters where some label is long."""
        if max(map(len, self.labels)) <= LONG:
            return dict(zip(self.labels, self.labels, strict=True))
        return {label: letters(index) for index, label in enumerate(self.labels)}

    @property
    def failed(self) -> list[tuple[str, str]]:
        """Variants with failed runs, and why the first failed."""
        found = ((v.label, next((o.error for o in r if o.error), None)) for v, r in self._pairs())
        return [(label, error) for label, error in found if error is not None]

    def _pairs(self) -> list[tuple[Variant, tuple[Outcome, ...]]]:
        return list(zip(self.variants, self.runs, strict=True))

    def difference(self, column: str, variant: str | None = None) -> dict[str, object]:
        """The row of a metric's column, such as `p99_ttft_ms`, of a variant, by default the last."""
        chosen = self.table["column"].eq(column) & self.table["variant"].eq(variant or self.labels[-1])
        rows = self.table[chosen].to_dict("records")
        if not rows:
            known = ", ".join(dict.fromkeys(self.table["column"]))
            raise KeyError(f"no {column} of {variant or self.labels[-1]}; there are {known}")
        return {str(key): value for key, value in rows[0].items()}

    @property
    def verdicts(self) -> list[str]:
        """What each comparison made shows; see `sim.questions.compare.differences.verdict`."""
        return [str(each) for each in self.table["verdict"].dropna()] if "verdict" in self.table else []

    @property
    def nothing_shown(self) -> bool:
        """Whether no metric of any variant is shown to differ."""
        return len(self.verdicts) > 0 and not any(verdict in DIFFERS for verdict in self.verdicts)

    @property
    def pairs(self) -> list[list[Outcome]]:
        """The runs of each variant under the seeds of which no run failed."""
        return whole_pairs(self.runs)

    @property
    def figures(self) -> list[str]:
        """The names of the figures that can be drawn."""
        from sim.questions.compare.pictures import figures

        return list(figures(self))

    def plot(self, kind: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a figure by its name (see `figures`), by default the first."""
        from sim.questions.compare.pictures import figures

        drawn = figures(self)
        if kind not in (None, *drawn):
            raise ValueError(f"no figure {kind!r} of this comparison; it has {', '.join(drawn)}")
        return drawn[kind or next(iter(drawn))](ax)

    def write(self, root: Path | str = "comparisons", *, draw: bool = True) -> Path:
        """Write the tables, and the figures unless `draw` is false, into a folder below `root`; return it."""
        from sim.questions.compare import folder

        written = folder.write(self, Path(root))
        if draw:
            folder.draw(self, written)
        return written


def letters(index: int) -> str:
    """A to Z, then AA, AB, …"""
    return (letters(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)


def compare(
    scenario: Scenario | str | Path,
    *variants: str | Scenario,
    vary: Sequence[str] = (),
    overrides: Sequence[str] = (),
    slo: str | None = None,
    replications: int | None = None,
    seeds: Sequence[int] | None = None,
    starving_s: float = STARVING_S,
    backend: str = "loky",
    address: str | None = None,
    workers: int | None = None,
    store: Path | Literal["default"] | None = "default",
    on_progress: Callable[[Progress], None] | None = None,
    allow_plugins: bool = False,
) -> Comparison:
    """Simulate variants of a scenario under the same seeds, and pair their runs.

        found = compare("kv-starved", "fcfs_tail", "least_computed", replications=10)
        found.difference("p99_ttft_ms"), found.plot("differences")

    Three seeds of a short run, in this process and without a store; three seeds show little, two nothing:

    >>> few = {"overrides": ["workload.num_requests=60"], "replications": 3}
    >>> found = compare("kv-starved", "fcfs_tail", "least_computed", **few, workers=1, store=None)
    >>> found.labels
    ['fcfs_tail', 'least_computed']
    >>> row = found.difference("output_throughput")
    >>> row["low"] <= row["difference"] <= row["high"]
    True

    A variant is the name of a policy, `field=value,…`, or another scenario; `vary` (`path=values`) adds one
    for each value. The first is the reference: the scenario itself, unless two or more variants of it are
    given. Seeds are base, base + 1, …, the same for all, so that arrivals and lengths are the same too. How
    and where runs are made is as in `sim.jobs.points.run_points`. Raises `InputError` with all
    mistakes before anything runs.
    """
    base = scenario if isinstance(scenario, Scenario) else load_scenario(scenario, overrides)
    faults = _option_faults(replications, seeds, starving_s)
    if isinstance(scenario, Scenario) and overrides:
        faults.append(Fault("overrides", None, "change a scenario by name or path, not one that is loaded"))
    found: list[Variant] = []
    try:
        found = make_variants(base, variants, vary, overrides)
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
    outcomes = run_points(
        points,
        columns=COLUMNS,
        options=RunOptions(
            workers=workers,
            backend=backend,
            address=address,
            store=store,
            on_progress=on_progress,
            allow_plugins=allow_plugins,
        ),
    )
    runs = tuple(tuple(outcomes[number :: len(found)]) for number in range(len(found)))
    return make_comparison(base, found, chosen, runs, starving_s)


def whole_pairs(runs: Sequence[Sequence[Outcome]]) -> list[list[Outcome]]:
    """The runs of each variant under the seeds of which no variant's run failed."""
    whole = [all(outcome.error is None for outcome in pair) for pair in zip(*runs, strict=True)]
    return [[outcome for outcome, is_whole in zip(run, whole, strict=True) if is_whole] for run in runs]


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
    if seeds is not None and (not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0):
        faults.append(Fault("--seeds", None, "must be distinct whole numbers from 0"))
    if replications is not None and not 1 <= replications <= 10_000:
        faults.append(Fault(f"--replications {replications}", None, "must be from 1 to 10,000"))
    if not starving_s > 0.0:
        faults.append(Fault(f"--starving {starving_s:g}", None, "must be above 0 s"))
    return faults
