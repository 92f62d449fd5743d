"""Which figures fit a sweep's axes, and the tables that they are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sim.questions.sweep.answer import labels
from sim.questions.sweep.axes import CONCURRENCY, RATE
from sim.questions.sweep.costs import capacity_costs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.questions.sweep.sweep import Sweep

    Draw = Callable[[Axes | Figure | None], Axes]

BUDGET = "engine.max_num_batched_tokens"
TRADES = {
    RATE,
    CONCURRENCY,
    "gpu",
    "model",
    "weight_dtype",
    "cluster.replicas",
    "engine.tensor_parallel_size",
    "engine.pipeline_parallel_size",
    "engine.kv_cache_dtype",
}
"""What trades the speed of one user for the output of a GPU."""

SIZES_IN = {"knob_curves": (5.0, 4.0), "budget_strips": (6.0, 3.6)}
"""Figures of several panels need more room than the house's."""

MOST_LINES = 8
"""More configurations than there are colours cannot be told apart."""


def figures(sweep: Sweep) -> dict[str, Draw]:
    """Functions that draw, by name: F2, F3 over rates, F4 over loads, F11 of two axes, curves of one, F5."""
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
    if _load(sweep) is not None and lines <= MOST_LINES:
        for metric in ("ttft", "tpot"):
            limit = min((t.limit_s for t in sweep.targets.values() if t.metric == metric), default=None)
            draw = partial(_call, "latency_throughput", table, metric=metric, slo_s=limit)
            found[f"{metric}_throughput"] = draw
    if len(sweep.paths) == 2 and sweep.targets and table[list(sweep.paths)].nunique().min() > 1:
        found["slo_heatmap"] = partial(_heatmap, table, sweep)
    if sweep.prices is not None and len(sweep.capacities) > 1:
        costs = capacity_costs(sweep.summary, sweep.capacities)
        found["capacity_cost"] = partial(_call, "capacity_cost", costs, currency=sweep.prices.currency)
    if len(sweep.paths) == 1 and _load(sweep) is None:
        found["knob_curves"] = partial(_knob_curves, table, sweep.paths[0])
    if BUDGET in sweep.paths and len(set(table[BUDGET])) > 1:
        found["budget_strips"] = partial(_budget_strips, sweep)
    if lines <= MOST_LINES and TRADES.intersection(sweep.paths):
        limit = min((t.limit_s for t in sweep.targets.values() if t.metric == "tpot"), default=None)
        found["pareto"] = partial(_call, "pareto", _pareto_table(table, sweep), tpot_slo_s=limit)
    return found


def _call(name: str, table: pd.DataFrame, ax: Axes | Figure | None = None, **options: Any) -> Axes:
    """The figure's own function, of the module of its name."""
    draw = getattr(import_module(f"...figures.{name}", __package__), f"plot_{name}")
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
    load = _load(sweep)
    if load is not None:
        table[load.rpartition(".")[2]] = table[load]
        others = [path for path in sweep.paths if path != load]
        if others:
            table["label"] = labels(table, others)
    for key, target in reversed(list(sweep.targets.items())):
        column = f"attainment_{key}"
        if target.metric in ("ttft", "tpot") and column in table:
            table[f"{target.metric}_attainment"] = table[column]
    return table


def _load(sweep: Sweep) -> str | None:
    """The path that says how much is asked of the cluster, if it varies."""
    return next((path for path in (RATE, CONCURRENCY) if path in sweep.paths), None)


def _wanted(sweep: Sweep) -> float:
    percents = [t.percentile for t in sweep.targets.values() if t.percentile is not None]
    return min(percents, default=99.0) / 100.0


def _pareto_table(table: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """One line a configuration where the rate varies, else points with their values beside them."""
    if _load(sweep) is not None:
        return table
    return table.assign(label="cells", point=[", ".join(map(str, row)) for row in _values(table, sweep)])


def _values(table: pd.DataFrame, sweep: Sweep) -> list[tuple[object, ...]]:
    return list(zip(*(table[path] for path in sweep.paths), strict=True))


def _knob_curves(table: pd.DataFrame, path: str, where: Axes | Figure | None = None) -> Axes:
    from sim.figures.knob_curves import plot_knob_curves

    return plot_knob_curves(table, path, _whole(where))[0]


def _budget_strips(sweep: Sweep, where: Axes | Figure | None = None) -> Axes:
    """Runs of two cells are made again, for their steps: the smallest and the largest budget, all else as in
    the best cell, or as in the first.
    """
    from sim.figures.budget_strips import plot_budget_strips
    from sim.simulation import simulate

    like = sweep.cells[sweep.best.row if sweep.best is not None and sweep.best.row is not None else 0].setting
    fitting = {
        cell.setting[BUDGET]: outcomes[0].point.scenario
        for cell, outcomes in zip(sweep.cells, sweep.runs.outcomes, strict=True)
        if outcomes and all(cell.setting[path] == like[path] for path in sweep.paths if path != BUDGET)
    }
    budgets = sorted(budget for budget in fitting if isinstance(budget, int))
    steps = {}
    for budget in (budgets[0], budgets[-1]):
        of_one = simulate(fitting[budget]).steps
        steps[budget] = of_one[of_one["replica"].eq(0)]
    return plot_budget_strips(steps, _whole(where))[0]


def _whole(where: Axes | Figure | None) -> Figure | None:
    """The figure to fill with panels; an Axes alone is no place for them."""
    from matplotlib.axes import Axes

    if isinstance(where, Axes):
        raise ValueError("this figure has several panels: give no Axes")
    return where


def _heatmap(table: pd.DataFrame, sweep: Sweep, ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.slo_heatmap import plot_slo_heatmap

    x, y = sweep.paths[::-1]
    best = sweep.best
    boxed = None if best is None or best.row is None else (best.setting[x], best.setting[y])
    return plot_slo_heatmap(table, x, y, ax, best=boxed)
