"""Figures of a sizing: attainment over fleet size, and what an hour's money buys (F6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.questions.size.size import Sizing

    Draw = Callable[[Axes | Figure | None], Axes]

MOST_LINES = 8


def figures(sizing: Sizing) -> dict[str, Draw]:
    """Functions that draw, by name; none where nothing was found."""
    found: dict[str, Draw] = {}
    fleets, held = sizing.fleet_table, sizing.capacity_table
    if len(fleets) and fleets["candidate"].nunique() <= MOST_LINES:
        wanted = min(sizing.promise.shares.values())
        found["attainment_fleet"] = partial(_fleets, fleets, wanted)
    if (
        sizing.prices is not None
        and "per_million_output" in held
        and held["per_million_output"].notna().any()
    ):
        found["capacity_cost"] = partial(_cost, held, sizing.prices.currency)
    return found


def _fleets(table: pd.DataFrame, wanted: float, ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.fleet_attainment import plot_fleet_attainment

    return plot_fleet_attainment(table, ax, target=wanted)


def _cost(table: pd.DataFrame, currency: str, ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.capacity_cost import plot_capacity_cost

    rows = table[table["cost_per_h"].notna()].assign(
        label=table["candidate"], capacity_per_s=table["rate_per_s"]
    )
    return plot_capacity_cost(rows, ax, currency=currency)
