"""F16, fairness: how long each client class waits at worst, and how evenly the engine serves them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sim.figures.samples import METRICS, latency_s
from sim.figures.style import MUTED, axes_for, colours, legend_above, plain_log, styled
from sim.results.metrics import FEW_ABOVE, is_thin
from sim.results.run_tables import last_moment, request_ends
from sim.values import Floats


@styled
def plot_fairness(
    requests: pd.DataFrame | Mapping[str, pd.DataFrame],
    ax: Axes | Figure | None = None,
    *,
    metric: str = "ttft",
    percent: float = 99.0,
    end_s: float | None = None,
) -> Axes:
    """Draw, for each class, a percentile of a latency (dot) and the longest wait for a first scheduling (x).

    `requests` has the columns of `requests.csv`, or maps labels of policies to such tables, a colour each;
    the legend gives Jain's index of each, see `jain_of_classes`. The line through a dot is the 95 % interval
    of the percentile by order statistics, which takes requests as independent; the dot is hollow where fewer
    than 10 samples lie above. Who was never scheduled has waited until `end_s` (None: the last moment in the
    table). Log axis.
    """
    ax = axes_for(ax)
    facts = METRICS[metric]
    policies = requests if isinstance(requests, Mapping) else {"": requests}
    classes = list(dict.fromkeys(name for table in policies.values() for name in table["class"]))
    width = 0.7 / max(1, len(policies))
    hollow = False
    counts = dict.fromkeys(classes, 0)
    for number, ((label, table), colour) in enumerate(
        zip(policies.items(), colours(len(policies)), strict=True)
    ):
        for row, name in enumerate(classes):
            of = table[table["class"].eq(name)]
            y = row + (number - (len(policies) - 1) / 2.0) * width
            values = latency_s(of, metric)
            counts[name] = max(counts[name], len(values))
            if len(values):
                few = is_thin(len(values), percent)
                hollow |= few
                at = float(np.percentile(values, percent)) * facts.per_second
                low, high = percentile_interval(values, percent)
                ax.hlines(y, low * facts.per_second, high * facts.per_second, color=colour, lw=1.2)
                ax.plot(at, y, "o", ms=5, color=colour, mfc="white" if few else colour, zorder=3)
            waited = longest_wait_s(of, end_s)
            if waited > 0:
                ax.plot(waited * facts.per_second, y, "x", ms=5, mew=1.4, color=colour)
        jain = jain_of_classes(table)
        said = f"{label}: " if label else ""
        ax.plot([], [], "s", color=colour, label=f"{said}Jain's index {jain:.2f}")
    ax.plot([], [], "o", color=MUTED, label=f"p{percent:g} {facts.name}")
    ax.plot([], [], "x", mew=1.4, color=MUTED, label="longest wait")
    if hollow:
        ax.plot([], [], "o", color=MUTED, mfc="white", label=f"< {FEW_ABOVE} samples above")
    if any(np.size(line.get_xdata()) for line in ax.lines):
        ax.set_xscale("log")
        plain_log(ax.xaxis)
    ax.set_yticks(range(len(classes)), [f"{name}\nn={counts[name]:,}" for name in classes])
    ax.set_ylim(len(classes) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(f"{facts.name}, wait ({facts.unit}, log)")
    legend_above(ax, 3)
    return ax


def jain_of_classes(requests: pd.DataFrame) -> float:
    """Jain's index of the classes' mean output tokens per second of E2E: 1 if all are served alike, 1/n if
    one of n gets everything; NaN if nobody finished.
    """
    done = requests[requests["status"].eq("finished")]
    e2e_s = done["last_token_s"] - done["arrival_s"]
    done, e2e_s = done[e2e_s > 0], e2e_s[e2e_s > 0]
    speeds = (done["output_tokens"] / e2e_s).groupby(done["class"].to_numpy()).mean().to_numpy()
    return float(speeds.sum() ** 2 / (len(speeds) * (speeds**2).sum())) if len(speeds) else float("nan")


def longest_wait_s(requests: pd.DataFrame, end_s: float | None = None) -> float:
    """The longest time (s) from an arrival to its first scheduling, or for those never scheduled to their
    abort or the end; rejected requests have not waited.
    """
    came = requests[~requests["status"].eq("rejected")]
    ends = request_ends(came, last_moment(came) if end_s is None else end_s)
    waited = came["first_scheduled_s"].fillna(ends) - came["arrival_s"]
    return float(waited.max()) if len(waited) else 0.0


def percentile_interval(values: Floats, percent: float, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a percentile from the order statistics between which it lies with this confidence.

    Distribution-free, for independent samples: the number of samples below the percentile is binomial
    (David and Nagaraja, Order Statistics, 7.1). Where the sample is too small the ends are its extremes.
    """
    from scipy.stats import binom

    ordered = np.sort(values)
    tail = (1.0 - confidence) / 2.0
    below = binom(len(ordered), percent / 100.0)
    low = int(below.ppf(tail))
    high = int(below.ppf(1.0 - tail))
    return float(ordered[max(low - 1, 0)]), float(ordered[min(high, len(ordered) - 1)])
