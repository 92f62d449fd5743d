"""The two tables of a sweep: one row a run, and one row a cell with the intervals of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pandas as pd

from sim.questions.prices import Prices
from sim.questions.sweep.cells import Cell, words
from sim.questions.sweep.measures import interval_of, measures, thin_percentiles
from sim.questions.sweep.runs import Runs
from sim.scenario.yaml_text import Data

PER_HOUR, PER_MILLION = "cost_per_h", "cost_per_1m_output_tokens"


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


def add_costs(summary: pd.DataFrame, runs: Runs, prices: Prices) -> None:
    """Add the columns `cost_per_h` and `cost_per_1m_output_tokens` to the table of cells.

    They are in the currency of the prices, and NaN where a cell has no result or its GPU no price.
    """
    hourly = []
    for outcomes in runs.outcomes:
        facts = next((outcome.summary for outcome in outcomes if outcome.summary), {})
        price, gpus = prices.per_gpu_hour.get(str(facts.get("gpu"))), facts.get("num_gpus")
        hourly.append(price * gpus if price is not None and isinstance(gpus, int) else nan)
    summary[PER_HOUR] = hourly
    if "output_throughput" in summary:
        summary[PER_MILLION] = summary[PER_HOUR] / summary["output_throughput"] / 3600.0 * 1e6


def _shown(value: Data) -> object:
    """A value as a table has it: sections and lists as text."""
    if isinstance(value, (dict, tuple)):
        return words(value)
    return "default" if value is None else value
