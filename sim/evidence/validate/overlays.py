"""Figures of a validation: measured solid, simulated dashed, for runs measured request by request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from sim.evidence.validate.replay import Outcome
from sim.evidence.validate.requests_file import RequestRows
from sim.figures import plot_latency_cdf
from sim.figures.style import BLUE, blank_figure, save_png, tidy

__all__ = ["write_overlays"]


def write_overlays(outcomes: list[Outcome], folder: Path) -> list[Path]:
    """One PNG for each run whose requests were measured one by one; returns the files written."""
    written = []
    for outcome in outcomes:
        rows = outcome.measured_rows
        if outcome.latencies is None or rows is None or rows.ttft_s is None or rows.e2e_s is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{outcome.run.run_id.replace('/', '-')}.png"
        figure = blank_figure(9.3, 5.0)
        grid = figure.subplots(2, 3)
        measured = _measured(rows)
        for ax, metric in zip(grid[0], ("ttft", "tpot", "e2e"), strict=True):
            real, simulated = measured[metric], outcome.latencies[f"{metric}_s"].to_numpy()
            plot_latency_cdf(simulated, tidy(ax), metric=metric, measured=real)
        for ax in grid[1, 1:]:
            ax.remove()
        _in_flight(tidy(grid[1, 0]), rows, outcome.latencies)
        save_png(figure, path)
        written.append(path)
    return written


def _measured(rows: RequestRows) -> dict[str, np.ndarray]:
    assert rows.ttft_s is not None
    assert rows.e2e_s is not None
    found = {"ttft": rows.ttft_s, "e2e": rows.e2e_s, "tpot": np.array([])}
    if rows.output_tokens is not None:
        several = rows.output_tokens > 1
        found["tpot"] = (rows.e2e_s - rows.ttft_s)[several] / (rows.output_tokens[several] - 1)
    return found


def _in_flight(ax: Axes, rows: RequestRows, simulated: pd.DataFrame) -> None:
    """Requests between being sent and their last token, over the run."""
    assert rows.e2e_s is not None
    if rows.arrival_s is None:
        return
    for arrival_s, e2e_s, line, label in (
        (rows.arrival_s, rows.e2e_s, "-", "measured"),
        (simulated["arrival_s"].to_numpy(), simulated["e2e_s"].to_numpy(), "--", "simulated"),
    ):
        at_s = np.concatenate([arrival_s, arrival_s + e2e_s])
        change = np.concatenate([np.ones(len(arrival_s)), -np.ones(len(arrival_s))])
        order = np.argsort(at_s, kind="stable")
        ax.plot(
            at_s[order],
            np.cumsum(change[order]),
            line,
            color=BLUE,
            lw=0.8,
            drawstyle="steps-post",
            label=label,
        )
    ax.set_xlabel("time (s)")
    ax.set_ylabel("requests in flight")
    ax.set_ylim(bottom=0)
    ax.legend(loc="best")
