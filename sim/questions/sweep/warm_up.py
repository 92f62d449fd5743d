"""How long a sweep's runs take to settle: MSER-5 on one run of every cell, the longest for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.jobs.points import Outcome
from sim.questions.sweep.plan import Cell
from sim.statistics.warm_up import mser5

COLUMNS = ("arrival_s", "ttft_s", "tpot_s")


def without_warm_up(cells: Sequence[Cell], pilots: Sequence[Outcome]) -> tuple[list[Cell], str]:
    """The cells with their warm-up left out, and what to say about it.

    `pilots` are one run of each cell that has a scenario, with `COLUMNS`. In each, TTFT and TPOT of finished
    requests in order of arrival are cut by MSER-5, and its warm-up is the arrival of the first request that
    neither cuts. All cells get the longest warm-up of those that settle, so that they still have the same
    requests; cells that do not settle, as above their capacity, have none to find.
    """
    found = [_warm_up_s(outcome) for outcome in pilots]
    settled = [warm_up_s for warm_up_s in found if warm_up_s is not None]
    longest = max(settled, default=0.0)
    told = f"warm-up of {longest:.3g} s found by MSER-5"
    if len(settled) < len(found):
        told += f"; {len(found) - len(settled)} of {len(found)} points never settle"
    varied = [
        cell
        if cell.scenario is None
        else replace(cell, scenario=cell.scenario.model_copy(update={"warmup_s": longest}))
        for cell in cells
    ]
    return varied, told


def _warm_up_s(outcome: Outcome) -> float | None:
    """Seconds; None if the run does not settle, or there is none."""
    if outcome.samples is None or outcome.error is not None:
        return None
    arrival_s = outcome.samples["arrival_s"].astype(np.float64)
    latest = 0.0
    for name in ("ttft_s", "tpot_s"):
        series = outcome.samples[name].astype(np.float64)
        known = np.isfinite(series)
        cut = mser5(series[known])
        if not cut.is_steady:
            return None
        if cut.length:
            latest = max(latest, float(arrival_s[known][cut.length]))
    return latest
