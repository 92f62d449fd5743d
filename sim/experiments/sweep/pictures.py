"""Which figures fit a sweep's axes, and the tables that they are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sim.experiments.sweep.answer import labels
from sim.experiments.sweep.axes import RATE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.experiments.sweep.sweep import Sweep

    Draw = Callable[[Axes | Figure | None], Axes]

MOST_LINES = 8
"""More configurations than there are colours cannot be told apart."""


def figures(sweep: Sweep) -> dict[str, Draw]:
    """Functions that draw, by name: F2, F3, F4 where the rate varies, F11 for two axes, F5."""
    good = sweep.summary[sweep.summary["replications"] > 0]
    if len(good) < 2:
        return {}
    table = _table(good, sweep)
    found: dict[str, Draw] = {}
    lines = table["label"].nunique() if "label" in table else 1
    if RATE in sweep.paths and lines <= MOST_LINES:
        if sweep.targets and table["slo_attainment"].notna().all():
            found["attainment"] = partial(_call, "attainment", table, target=_wanted(sweep))
        found["saturation"] = partial(_call, "saturation", table)
        for metric in ("ttft", "tpot"):
            limit = min((t.limit_s for t in sweep.targets.values() if t.metric == metric), default=None)
            draw = partial(_call, "latency_throughput", table, metric=metric, slo_s=limit)
            found[f"{metric}_throughput"] = draw
    if len(sweep.paths) == 2 and sweep.targets and table[list(sweep.paths)].nunique().min() > 1:
        found["slo_heatmap"] = partial(_heatmap, table, sweep)
    if lines <= MOST_LINES and len(sweep.paths) > 0:
        limit = min((t.limit_s for t in sweep.targets.values() if t.metric == "tpot"), default=None)
        found["pareto"] = partial(_call, "pareto", _pareto_table(table, sweep), tpot_slo_s=limit)
    return found


def _call(name: str, table: pd.DataFrame, ax: Axes | Figure | None = None, **options: Any) -> Axes:
    """The figure's own function, of the module of its name."""
    draw = getattr(import_module(f"sim.figures.{name}"), f"plot_{name}")
    axes: Axes = draw(table, ax, **options)
    return axes


def _table(good: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """The cells as figures want them: a label for each line, and shares by their names there."""
    table = good.rename(
        columns={
            "slo_attainment": "attainment",
            "slo_attainment_low": "attainment_low",
            "slo_attainment_high": "attainment_high",
            "output_throughput_per_gpu": "tokens_per_s_per_gpu",
        }
    )
    table["slo_attainment"] = good.get("slo_attainment")
    if RATE in sweep.paths:
        table["rate_per_s"] = table[RATE]
        others = [path for path in sweep.paths if path != RATE]
        if others:
            table["label"] = labels(table, others)
    for key, target in reversed(list(sweep.targets.items())):
        column = f"attainment_{key}"
        if target.metric in ("ttft", "tpot") and column in table:
            table[f"{target.metric}_attainment"] = table[column]
    return table


def _wanted(sweep: Sweep) -> float:
    percents = [t.percentile for t in sweep.targets.values() if t.percentile is not None]
    return min(percents, default=99.0) / 100.0


def _pareto_table(table: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """One line a configuration where the rate varies, else points with their values beside them."""
    if RATE in sweep.paths:
        return table
    return table.assign(label="cells", point=[", ".join(map(str, row)) for row in _values(table, sweep)])


def _values(table: pd.DataFrame, sweep: Sweep) -> list[tuple[object, ...]]:
    return list(zip(*(table[path] for path in sweep.paths), strict=True))


def _heatmap(table: pd.DataFrame, sweep: Sweep, ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.slo_heatmap import plot_slo_heatmap

    x, y = sweep.paths[::-1]
    best = sweep.best
    boxed = None if best is None or best.row is None else (best.setting[x], best.setting[y])
    return plot_slo_heatmap(table, x, y, ax, best=boxed)
