"""The two tables of a sweep: one row a run, and one row a cell with the intervals of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, isnan

import numpy as np
import pandas as pd

from sim.questions.sweep.measures import is_share, measures, seeds_change_nothing, thin_percentiles
from sim.questions.sweep.plan import Cell
from sim.questions.sweep.runs import Runs
from sim.scenario.yaml_text import Data
from sim.statistics.intervals import Interval, replication_interval
from sim.statistics.paired import LEAST_DISTINCT
from sim.statistics.precision import two_stage_interval
from sim.statistics.proportions import wilson_interval


def replication_table(cells: Sequence[Cell], runs: Runs) -> pd.DataFrame:
    """One row for each run: the cell's values by path, `replication`, `seed`, `error`, and its numbers.

    A cell that could not be run has one row, with its error.
    """
    rows: list[dict[str, object]] = []
    for cell, outcomes in zip(cells, runs.outcomes, strict=True):
        shown = {path: _shown(value) for path, value in cell.setting.items()}
        if cell.fault is not None:
            rows.append({**shown, "replication": 0, "seed": None, "error": cell.fault})
        for index, outcome in enumerate(outcomes):
            numbers = {} if outcome.summary is None else measures(outcome.summary)
            seed = outcome.point.label["seed"]
            rows.append({**shown, "replication": index, "seed": seed, "error": outcome.error, **numbers})
    table = pd.DataFrame(rows)
    table["seed"] = table["seed"].astype("Int64")
    return table


def cell_table(cells: Sequence[Cell], runs: Runs) -> pd.DataFrame:
    """One row for each cell: its values by path, `replications` that succeeded, `error` of the first that did
    not, each number's mean with `…_low` and `…_high`, and `thin_percentiles`.

    The ends are those of a 95 % interval over replications (see `interval_of`), NaN with one and where all
    give the same.
    """
    rows: list[dict[str, object]] = []
    for cell, outcomes in zip(cells, runs.outcomes, strict=True):
        good = [o.summary for o in outcomes if o.summary is not None and o.error is None]
        error = cell.fault or next((outcome.error for outcome in outcomes if outcome.error), None)
        row: dict[str, object] = {path: _shown(value) for path, value in cell.setting.items()}
        row |= {"replications": len(good), "error": error}
        numbers = [measures(summary) for summary in good]
        for column in numbers[0] if numbers else ():
            found = interval_of(column, numbers, runs.first_stage)
            row |= {column: found.estimate, f"{column}_low": found.low, f"{column}_high": found.high}
        row["thin_percentiles"] = " ".join(thin_percentiles(good))
        rows.append(row)
    return pd.DataFrame(rows)


def interval_of(column: str, numbers: Sequence[Mapping[str, float]], first_stage: int | None) -> Interval:
    """The interval of one number over the replications of a cell.

    Shares of requests are cut at 0 and 1. Where they take fewer than three different values over the seeds,
    which few requests do by luck, the interval is at least Wilson's of all requests; none, as that of any
    other number, where seeds change nothing.
    """
    values = [row[column] for row in numbers]
    found = replication_interval(values) if first_stage is None else two_stage_interval(values, first_stage)
    if not is_share(column) or not isfinite(found.estimate):
        return found
    low, high = found.low, found.high
    alike = len(set(values)) < LEAST_DISTINCT if len(values) > 1 else values[0] in (0.0, 1.0)
    if alike and not seeds_change_nothing(numbers):
        judged = int(sum(row["slo_judged_requests"] for row in numbers))
        of_all = wilson_interval(round(found.estimate * judged), judged)
        low, high = float(np.fmin(low, of_all.low)), float(np.fmax(high, of_all.high))
    return Interval(found.estimate, _within(low), _within(high), found.size)


def _within(share: float) -> float:
    """Cut at 0 and 1; NaN stays."""
    return share if isnan(share) else min(1.0, max(0.0, share))


def _shown(value: Data) -> object:
    """A value as a table has it: sections and lists as text."""
    if isinstance(value, (dict, tuple)):
        return words(value)
    return "default" if value is None else value


def words(value: object) -> str:
    """A value as a user writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        kind = value.get("kind")
        rest = ", ".join(f"{key}: {words(item)}" for key, item in value.items() if key != "kind")
        return f"{kind}({rest})" if rest and kind else str(kind or rest)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(words, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
