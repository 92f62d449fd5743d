"""What the cells of a sweep cost an hour and a million tokens, and how much traffic money buys."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pandas as pd

from sim.questions.size.prices import Prices
from sim.questions.sweep.answer import Capacity, label
from sim.questions.sweep.axes import RATE
from sim.questions.sweep.runs import Runs

PER_HOUR, PER_MILLION = "cost_per_h", "cost_per_1m_output_tokens"


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


def at_capacity(summary: pd.DataFrame, found: Capacity) -> tuple[float, float, float]:
    """Of a configuration, at the highest rate of the sweep that keeps its targets: that rate in 1/s, and the
    cost of an hour and of a million output tokens there. NaN if there is no such rate.
    """
    rows = _own(summary, found)
    rows = rows[rows[RATE] <= found.joint.estimate].sort_values(RATE)
    if not len(rows):
        return nan, nan, nan
    row = rows.iloc[-1]
    return float(row[RATE]), float(row[PER_HOUR]), float(row[PER_MILLION])


def _own(summary: pd.DataFrame, found: Capacity) -> pd.DataFrame:
    """The cells of a configuration."""
    rows = summary.to_dict("records")
    return summary[[all(row[path] == value for path, value in found.setting.items()) for row in rows]]


def capacity_costs(summary: pd.DataFrame, capacities: Sequence[Capacity]) -> pd.DataFrame:
    """The table that the figure of capacity for money is drawn from: a row for each configuration."""
    rows = []
    for found in capacities:
        own = _own(summary, found)
        rows.append(
            {
                "label": label(found.setting) or "as it is",
                "capacity_per_s": found.joint.estimate,
                "capacity_low": found.joint.low,
                "capacity_high": found.joint.high,
                "cost_per_h": float(own[PER_HOUR].iloc[0]),
            }
        )
    return pd.DataFrame(rows)
