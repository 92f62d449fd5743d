"""What a run folder tells by itself, where its scenario cannot be simulated again: few parts, no reasons."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sim.errors import input_error
from sim.figures import latency_parts
from sim.questions.explain import words
from sim.results.run_folder import SavedRun


def render_tables(saved: SavedRun, metric: str, percent: float, reason: str) -> str:
    """The screen for a run of which only the tables are left; `InputError` for ITL, which needs more."""
    if metric == "itl":
        raise input_error(
            f"the gaps between tokens are not in the tables, and the scenario cannot be run again: {reason}",
            where=str(saved.folder),
        )
    return "\n".join(_lines(saved, metric, percent, reason))


def _lines(saved: SavedRun, metric: str, percent: float, reason: str) -> Iterator[str]:
    requests = saved.requests
    measured = requests[requests["arrival_s"] >= saved.scenario.warmup_s]
    parts = latency_parts(measured, "ttft" if metric == "ttft" else "e2e")
    yield f"note: the scenario cannot be run again ({reason}); this is what the run's tables tell"
    if not len(parts):
        yield "Nothing to explain: no request that counts has finished."
        return
    latency_s = parts.sum(axis=1).to_numpy()
    name, value = words.NAMES[metric], words.seconds(float(np.percentile(latency_s, percent)))
    order = np.argsort(latency_s, kind="stable")
    slow = order[min(round(percent / 100.0 * len(order)), len(order) - 1) :]
    middle = order[int(0.45 * len(order)) : max(int(np.ceil(0.55 * len(order))), 1)]
    yield f"{saved.scenario.name}: p{percent:g} {name} is {value}."
    yield f"{'Where the time goes (mean)':<28}{f'p{percent:g}–p100':>12}{'p45–p55':>12}"
    for part in parts.columns:
        values = parts[part].to_numpy()
        slow_s, middle_s = (words.seconds(float(values[chosen].mean())) for chosen in (slow, middle))
        yield f"  {part:<26}{slow_s:>12}{middle_s:>12}"
    yield f"  {'n':<26}{len(slow):>12,}{len(middle):>12,}"
    count, share = saved.summary.get("num_preemptions"), saved.summary.get("recomputed_token_share")
    if isinstance(count, int) and isinstance(share, float):
        yield f"{count:,} preemptions; {share:.1%} of all tokens computed were recomputed."
