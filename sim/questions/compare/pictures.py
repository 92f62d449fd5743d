"""Figures of a comparison: paired differences, latency CDFs (F1), preemption tax (F12), fairness (F16)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from sim.questions.compare.differences import EXACT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.questions.compare.compare import Comparison

    Draw = Callable[[Axes | Figure | None], Axes]

MOST_LINES = 8
LONG = 30


def figures(found: Comparison) -> dict[str, Draw]:
    """Functions that draw, by name; what does not fit is left out."""
    drawn: dict[str, Draw] = {}
    if "verdict" in found.table and len(found.labels) <= MOST_LINES:
        if found.table["low"].notna().any() or EXACT in found.verdicts:
            shown = found.table.assign(variant=found.table["variant"].map(_legends(found)))
            drawn["differences"] = partial(_differences, shown)
        requests = _requests(found)
        slo = {} if found.base.slo is None else dict(found.base.slo.root)
        for metric in ("ttft", "tpot", "e2e"):
            drawn[f"{metric}_cdf"] = partial(_cdf, requests, metric, slo)
        if len(found.classes):
            drawn["fairness"] = partial(_fairness, requests)
        if any(table["num_preemptions"].any() for table in requests.values()):
            drawn["preemptions_per_request"] = partial(_preemptions, requests)
    taxes = _taxes(found)
    if len(set(taxes["kv_tokens"])) > 1:
        drawn["preemption_tax"] = partial(_tax, taxes)
    return drawn


def _requests(found: Comparison) -> dict[str, pd.DataFrame]:
    """The requests of all seeds of each variant."""
    legends = _legends(found)
    return {
        legends[label]: pd.concat(
            [pd.DataFrame(dict(o.samples)) for o in run if o.samples], ignore_index=True
        )
        for label, run in zip(found.labels, found.runs, strict=True)
        if any(o.samples for o in run)
    }


def _legends(found: Comparison) -> dict[str, str]:
    """Labels short enough for a legend: long ones are cut, and end in their letter of the tables."""
    return {
        label: label if len(label) <= LONG else f"{label[: LONG - 4]}… ({name})"
        for label, name in found.names.items()
    }


def _taxes(found: Comparison) -> pd.DataFrame:
    """The recomputed share of each variant over its KV capacity; one line for each policy of victims."""
    from sim.statistics.intervals import replication_interval

    rows = []
    for variant, run in zip(found.variants, found.runs, strict=True):
        good = [o.summary for o in run if o.summary is not None]
        if good:
            shares = replication_interval([float(str(s["recomputed_token_share"])) for s in good])
            engine = variant.scenario.engine
            victim = "fcfs_tail" if engine.victim_policy is None else engine.victim_policy.kind
            tokens = int(str(good[0]["num_gpu_blocks"])) * engine.block_size
            rows.append((victim, tokens, shares.estimate, shares.low, shares.high))
    columns = ["label", "kv_tokens", "recomputed_token_share", "share_low", "share_high"]
    return pd.DataFrame(rows, columns=columns)


def _differences(table: pd.DataFrame, ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.paired_differences import plot_paired_differences

    return plot_paired_differences(table, ax)


def _cdf(
    requests: dict[str, pd.DataFrame], metric: str, slo: dict[str, float], ax: Axes | Figure | None = None
) -> Axes:
    from sim.figures.latency_cdf import plot_latency_cdf

    return plot_latency_cdf(requests, ax, metric=metric, slo=slo)


def _fairness(requests: dict[str, pd.DataFrame], ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.fairness import plot_fairness

    return plot_fairness(requests, ax)


def _preemptions(requests: dict[str, pd.DataFrame], ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.preemption_tax import plot_preemptions_per_request

    return plot_preemptions_per_request(requests, ax)


def _tax(table: pd.DataFrame, ax: Axes | Figure | None = None) -> Axes:
    from sim.figures.preemption_tax import plot_preemption_tax

    return plot_preemption_tax(table, ax)
