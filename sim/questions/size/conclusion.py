"""What is said where no rate or no fleet is found: that there is none, or that too little was run to say."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from sim.questions.size.load import has_curve, unit
from sim.questions.size.promise import BROKEN, CLOSE, NO_DATA, Judgement, Promise
from sim.statistics.proportions import trials_to_show, wilson_interval

if TYPE_CHECKING:
    from sim.questions.size.size import Sizing


def conclusions(sizing: Sizing) -> Iterator[str]:
    """Sentences about candidates without an answer; a no only where runs show it."""
    ran = {number: each for number, each in sizing.found.items() if each.error is None}
    left_open: dict[int, tuple[str, Judgement]] = {}
    for number, capacity in ran.items():
        if (
            not capacity.rate_per_s
            and capacity.broken is not None
            and is_open(capacity.broken, sizing.promise)
        ):
            left_open[number] = f", even at {capacity.above_per_s:.3g} {unit(sizing.base)}", capacity.broken
    for number, fleet in sizing.fleets.items():
        most = fleet.tried[max(fleet.tried)]
        if fleet.replicas is None and is_open(most, sizing.promise):
            left_open[number] = f" of {max(fleet.tried)} replicas", most
    for number in sorted(left_open, key=lambda n: sizing.candidates[n].label):
        what, judged = left_open[number]
        yield f"{sizing.candidates[number].label}: {_too_close(sizing, what, judged)}"
    if left_open:
        return
    if not ran:
        yield "No candidate can run."
    elif not any(capacity.rate_per_s for capacity in ran.values()):
        yield "No candidate keeps the promise, not even with next to no load: more replicas would not help."
    elif sizing.rate_per_s is not None and not sizing.answers and not _without_result(sizing):
        yield "No candidate keeps the promise at this rate."


def is_open(judged: Judgement, promise: Promise) -> bool:
    """Whether runs that do not show the promise kept do not show it broken either.

    One run alone is judged by its estimate; here its requests have a say, taken as independent.
    """
    if judged.seeds != 1 or judged.error is not None:
        return judged.verdict == CLOSE
    size = _judged_requests(judged)
    return not judged.is_met and all(
        size == 0 or wilson_interval(round(judged.shares[name].estimate * size), size).high >= wanted
        for name, wanted in promise.shares.items()
    )


def _without_result(sizing: Sizing) -> bool:
    """Whether some fleet had to be given up because a run told nothing."""
    return any(each.verdict in (BROKEN, NO_DATA) for f in sizing.fleets.values() for each in f.tried.values())


def _too_close(sizing: Sizing, what: str, judged: Judgement) -> str:
    """Why nothing can be said, and how many requests or seeds it takes."""
    wanted = max(sizing.promise.shares[name] for name in judged.failing)
    needed, size = trials_to_show(wanted), _judged_requests(judged)
    sent = max(int(str(summary["num_prompts"])) for summary in judged.summaries)
    seeds = f"{judged.seeds} seed{'s' if judged.seeds > 1 else ''}"
    if size >= needed:
        name = min(judged.failing, key=lambda n: judged.shares[n].low - sizing.promise.shares[n])
        share = judged.shares[name]
        ends = f" ({share.low:.2%} to {share.high:.2%})" if judged.seeds > 1 else ""
        promised = sizing.promise.shares[name]
        return (
            f"too close to say{what}: {share.estimate:.2%}{ends} of requests keep it, {promised:.2%} should; "
            "more --requests or --replications narrow the interval."
        )
    missing = needed / max(1, size)
    ways = [] if has_curve(sizing.base) else [f"--requests {_rounded_up(1.1 * sent * missing)}"]
    ways.append(f"--replications {ceil(1.1 * judged.seeds * missing)}")
    return (
        f"too few requests to say{what}: {seeds} of {sent:,} leave {size:,} to judge, and it takes "
        f"{needed:,} to show {100.0 * wanted:g} % even if all of them keep it; try {' or '.join(ways)}."
    )


def _judged_requests(judged: Judgement) -> int:
    return sum(int(str(summary["slo_judged_requests"] or 0)) for summary in judged.summaries)


def _rounded_up(count: float) -> int:
    """To the next ten."""
    return 10 * ceil(count / 10.0)
