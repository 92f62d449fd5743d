"""Which figures fit a sweep's axes, and the tables that they are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from sim.questions.sweep.axes import CONCURRENCY, RATE
from sim.questions.sweep.cells import labels
from sim.questions.sweep.findings import capacity_costs
from sim.questions.sweep.results import Results
from sim.report.document import Plate, drawing

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

MOST_LINES = 8
"""More configurations than there are colours cannot be told apart."""


def plates(sweep: Results) -> Iterator[Plate]:
    """F2 and F3 over rates, F4 over loads, F11 of two axes, capacity for money, curves of one axis, budgets,
    F5.
    """
    good = sweep.summary[sweep.summary["replications"] > 0]
    if len(good) < 2:
        return
    table = _table(good, sweep)
    load = _load(sweep)
    few = "label" not in table or table["label"].nunique() <= MOST_LINES
    if RATE in sweep.paths and few:
        if sweep.targets and table["slo_attainment"].notna().all():
            shows = "Share of requests within the SLO over the rate; the line at the share that is wanted."
            yield Plate("attainment", shows, drawing("attainment", table, target=_wanted(sweep)))
        shows = "Finished requests a second over those sent, and how many of them met the SLO."
        yield Plate("saturation", shows, drawing("saturation", table))
    if load is not None and few:
        for metric in ("ttft", "tpot"):
            draw = drawing("latency_throughput", table, metric=metric, slo_s=_limit(sweep, metric))
            shows = f"{metric.upper()} over the throughput that goes with it, load by load."
            yield Plate(f"{metric}_throughput", shows, draw)
    if len(sweep.paths) == 2 and sweep.targets and table[list(sweep.paths)].nunique().min() > 1:
        x, y = sweep.paths[::-1]
        best = sweep.best
        boxed = None if best is None or best.row is None else (best.setting[x], best.setting[y])
        draw = drawing("slo_heatmap", table, x, y, best=boxed)
        yield Plate("slo_heatmap", "Share of requests within the SLO, cell by cell.", draw)
    if sweep.prices is not None and len(sweep.capacities) > 1:
        costs = capacity_costs(sweep.summary, sweep.capacities)
        draw = drawing("capacity_cost", costs, currency=sweep.prices.currency)
        yield Plate("capacity_cost", "Requests within the SLO that money buys.", draw)
    if len(sweep.paths) == 1 and load is None:
        draw = partial(_knob_curves, table, sweep.paths[0])
        yield Plate("knob_curves", "What the setting moves.", draw, (5.0, 4.0))
    if BUDGET in sweep.paths and len(set(table[BUDGET])) > 1:
        shows = "Tokens of each step, and gaps between tokens, under the smallest and the largest budget."
        yield Plate("budget_strips", shows, partial(_budget_strips, sweep), (6.0, 3.6))
    if few and TRADES.intersection(sweep.paths):
        draw = drawing("pareto", _pareto_table(table, sweep), tpot_slo_s=_limit(sweep, "tpot"))
        yield Plate("pareto", "The speed that one user sees against the output of a GPU.", draw)


def _limit(sweep: Results, metric: str) -> float | None:
    """The lowest limit (s) that the SLO has for a metric."""
    return min((t.limit_s for t in sweep.targets.values() if t.metric == metric), default=None)


def _table(good: pd.DataFrame, sweep: Results) -> pd.DataFrame:
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


def _load(sweep: Results) -> str | None:
    """The path that says how much is asked of the cluster, if it varies."""
    return next((path for path in (RATE, CONCURRENCY) if path in sweep.paths), None)


def _wanted(sweep: Results) -> float:
    percents = [t.percentile for t in sweep.targets.values() if t.percentile is not None]
    return min(percents, default=99.0) / 100.0


def _pareto_table(table: pd.DataFrame, sweep: Results) -> pd.DataFrame:
    """One line a configuration where the rate varies, else points with their values beside them."""
    if _load(sweep) is not None:
        return table
    values = zip(*(table[path] for path in sweep.paths), strict=True)
    return table.assign(label="cells", point=[", ".join(map(str, row)) for row in values])


def _knob_curves(table: pd.DataFrame, path: str, where: Axes | Figure | None = None) -> Axes:
    from sim.figures.knob_curves import plot_knob_curves

    return plot_knob_curves(table, path, _whole(where))[0]


def _budget_strips(sweep: Results, where: Axes | Figure | None = None) -> Axes:
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
