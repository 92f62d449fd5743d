"""What came of a sweep, before anybody shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.questions.prices import Prices
from sim.questions.sweep.cells import Cell, labels
from sim.questions.sweep.findings import Best, Capacity, vllm_flags
from sim.questions.sweep.runs import Runs
from sim.scenario import Scenario, SloTarget
from sim.values import Json

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class Results:
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
        return self.prices.missing(str(summary["gpu"]) for summary in self.summaries)

    @property
    def flags(self) -> str:
        """The best cell as arguments of `vllm serve`; empty if nothing that varies is one."""
        return "" if self.best is None else vllm_flags(self.best.setting)

    @property
    def summaries(self) -> list[dict[str, Json]]:
        """The summaries of all runs that have one, cell by cell."""
        return [each.summary for outcomes in self.runs.outcomes for each in outcomes if each.summary]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the replications."""
        outcomes = (outcome for each in self.runs.outcomes for outcome in each)
        return sorted({outcome.point.scenario.seed for outcome in outcomes})
