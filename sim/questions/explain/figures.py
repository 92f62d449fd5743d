"""The figures of an explanation: where the time goes, the worst minute, and the requests and steps in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sim.questions.explain.cause import Cause, Window
from sim.questions.explain.observe import Observed
from sim.questions.explain.parts import LABELS, Band
from sim.report.document import Plate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Where = Axes | Figure | None

_MARGIN = 0.5
_CLOSE_STEPS = 40


def plates(observed: Observed, cause: Cause) -> list[Plate]:
    """The figures that this explanation has."""
    found = [
        Plate(
            "decomposition",
            "Where the time goes, by band of percentiles: seconds on the left, shares on the right.",
            partial(draw_bands, cause),
            (8.0, 3.2),
        )
    ]
    window = cause.window
    if window is not None:
        on = f"on replica {window.replica} around the worst stretch, which is shaded."
        found += [
            Plate(
                "worst-minute-load",
                f"Running and waiting requests {on}",
                partial(_timeline, observed, window, kv=False),
                (5.0, 2.4),
            ),
            Plate(
                "worst-minute-kv",
                f"KV blocks in use {on}",
                partial(_timeline, observed, window, kv=True),
                (5.0, 2.4),
            ),
            Plate(
                "waterfall",
                "What each request did around the longest prompt of the worst stretch, or the slowest.",
                partial(_waterfall, observed, cause.metric, window),
                (5.6, 4.2),
            ),
            Plate(
                "steps",
                "What the steps held around the longest one in the worst stretch, and how long they took.",
                partial(_steps, observed, window),
                (6.4, 3.0),
            ),
        ]
    return found


def draw_bands(cause: Cause, where: Figure | None = None) -> Axes:
    """F13: seconds on the left, shares of each band on the right; one legend. Returns the left Axes."""
    from sim.figures import plot_bands
    from sim.figures.style import TIGHT, new_figure, tidy

    figure = where or new_figure(8.0, 3.2)
    bands = cause.bands
    means, sizes = band_means(bands, merged=cause.metric == "itl"), [band.size for band in bands]
    unit = "s"
    if means.to_numpy().max(initial=0.0) < 1.0:
        means, unit = 1000.0 * means, "ms"
    left, right = (tidy(ax) for ax in figure.subplots(1, 2))
    plot_bands(means, sizes, left, unit=unit, legend=False)
    plot_bands(means, sizes, right, shares=True, legend=False)
    right.set_ylim(0, 100)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=5, fontsize=8, frameon=False, **TIGHT)
    return left


def band_means(bands: tuple[Band, ...], *, merged: bool = False) -> pd.DataFrame:
    """A row a band, a column a part by its label, s. `merged`: of ITL, whose decode is that of the batch."""
    import pandas as pd

    rows = [{LABELS[key]: value for key, value in band.parts.items()} for band in bands]
    table = pd.DataFrame(rows, index=[band.label for band in bands])
    table = table.loc[:, table.any()]
    return table.rename(columns={LABELS["decode"]: "decode"}) if merged else table


def _timeline(observed: Observed, window: Window, where: Where, *, kv: bool) -> Axes:
    from sim.figures import plot_kv_timeline, plot_load_timeline

    result = observed.result
    width_s = window.end_s - window.start_s
    margin_s = _MARGIN * width_s
    from_s = max(min(window.start_s, window.line_since_s), window.start_s - 4 * width_s) - margin_s
    steps = result.steps
    near = steps[
        steps["replica"].eq(window.replica)
        & steps["end_s"].ge(from_s)
        & (steps["end_s"] - steps["step_time_s"]).le(window.end_s + margin_s)
    ]
    if kv:
        watermark = result.setup.engine.watermark or None
        ax = plot_kv_timeline(near, where, num_blocks=result.setup.num_gpu_blocks, watermark=watermark)
    else:
        ax = plot_load_timeline(near, where)
    ax.axvspan(window.start_s, window.end_s, color="#FFF3D6", zorder=0, lw=0)
    return ax


def _waterfall(observed: Observed, metric: str, window: Window, where: Where) -> Axes:
    """F10: the requests around the longest prompt in the window, or around the slowest request."""
    from sim.figures import plot_request_waterfall

    result = observed.result
    requests = result.requests[result.requests["replica"].eq(window.replica)]
    chosen, label, (start_s, end_s) = _around(requests, metric, window)
    flying = requests[requests["arrival_s"].le(end_s) & requests["last_token_s"].fillna(np.inf).ge(start_s)]
    rows = _nearest(flying, chosen, 40)
    ax = plot_request_waterfall(rows, where, stalls=result.preemption_times, t0=start_s, t1=end_s)
    place = rows.sort_values(["arrival_s", "request_id"])["request_id"].tolist().index(chosen)
    ax.annotate(
        label,
        xy=(0.99, place),
        xycoords=ax.get_yaxis_transform(),
        ha="right",
        va="center",
        fontsize=7,
        bbox={"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8},
    )
    return ax


def _around(requests: pd.DataFrame, metric: str, window: Window) -> tuple[int, str, tuple[float, float]]:
    """Which request to look at, what to call it, and from when to when."""
    done = requests[requests["status"].eq("finished")]
    inside = done[done["arrival_s"].between(window.start_s, window.end_s)]
    pool = inside if len(inside) else done
    arrival_s, prompts = pool["arrival_s"].to_numpy(), pool["prompt_tokens"].to_numpy()
    until_s = pool["first_token_s" if metric == "ttft" else "last_token_s"].to_numpy()
    has_long = prompts.max() >= 8 * np.median(done["prompt_tokens"].to_numpy())
    place = int((prompts if has_long else until_s - arrival_s).argmax())
    took_s = max(float(until_s[place] - arrival_s[place]), 1e-3)
    shown = float(arrival_s[place]) - 0.15 * took_s, float(until_s[place]) + 0.35 * took_s
    label = f"{prompts[place]:,} prompt tokens" if has_long else "the slowest here"
    return int(pool["request_id"].to_numpy()[place]), label, shown


def _nearest(requests: pd.DataFrame, chosen: int, count: int) -> pd.DataFrame:
    """The chosen request with those that arrived right before and after it."""
    ordered = requests.sort_values(["arrival_s", "request_id"]).reset_index(drop=True)
    place = int(np.flatnonzero(ordered["request_id"].eq(chosen).to_numpy())[0])
    start = max(min(place - count // 4, len(ordered) - count), 0)
    return ordered.iloc[start : start + count]


def _steps(observed: Observed, window: Window, where: Where) -> Axes:
    """F9: the steps around the longest one in the window."""
    from sim.figures import plot_step_composition

    steps = observed.result.steps
    own = steps[steps["replica"].eq(window.replica)].reset_index(drop=True)
    inside = own[own["end_s"].between(window.start_s, window.end_s)]
    pool = inside if len(inside) else own
    place = int(pool.index.to_numpy()[pool["step_time_s"].to_numpy().argmax()])
    start = max(min(place - _CLOSE_STEPS // 2, len(own) - _CLOSE_STEPS), 0)
    budget = observed.result.setup.engine.max_num_batched_tokens
    close = own.iloc[start : start + _CLOSE_STEPS]
    return plot_step_composition(close, where, token_budget=budget, step_time=True)
