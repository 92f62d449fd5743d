"""What one request did when: the phases between its recorded moments, cut where it was preempted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

Cut = tuple[float, ...]
"""A preemption (s): when it came, when the request was scheduled again, when it had its next token."""
Span = tuple[str, float, float]
"""Kind, start and end (s)."""


MOMENTS = ("arrival_s", "first_scheduled_s", "first_token_s", "last_token_s")


def last_moment(requests: pd.DataFrame) -> float:
    """The last time (s) at which anything is known to have happened to any request."""
    known = [*MOMENTS, "aborted_s"] if "aborted_s" in requests else list(MOMENTS)
    moments = requests[known].max().dropna()
    return float(moments.max()) if len(moments) else 0.0


def request_ends(requests: pd.DataFrame, now_s: float) -> pd.Series[float]:
    """When each request left (s): its last token, its abort, its arrival if it was refused, else `now_s`.

    An abort of which no time is known counts from the last thing that happened to the request.
    """
    status = requests["status"]
    aborted_s = requests["aborted_s"] if "aborted_s" in requests else requests[list(MOMENTS)].max(axis=1)
    ends = requests["last_token_s"].where(status.eq("finished"), now_s)
    ends = ends.where(~status.eq("aborted"), aborted_s)
    return ends.where(~status.eq("rejected"), requests["arrival_s"])


def request_spans(
    arrival_s: float, scheduled_s: float, first_s: float, until_s: float, cuts: Sequence[Cut]
) -> Iterator[Span]:
    """What one request did until `until_s`; times that never came are NaN.

    `cuts` are its preemptions in order: when preempted, when resumed, when it had its next token. One that
    comes before that token ends the recomputation.
    """
    if not scheduled_s <= until_s:
        yield "queued", arrival_s, until_s
        return
    yield "queued", arrival_s, scheduled_s
    first_s = first_s if first_s <= until_s else until_s
    begins = [*(cut[0] for cut in cuts[1:]), inf][: len(cuts)]
    for kind, from_s, to_s in (("prefill", scheduled_s, first_s), ("decode", first_s, until_s)):
        at = from_s
        for cut, next_cut_s in zip(cuts, begins, strict=True):
            if from_s <= cut[0] < to_s:
                preempted_s, resumed_s, next_token_s = (
                    until_s if isnan(moment) else min(moment, until_s) for moment in cut
                )
                if at < preempted_s:
                    yield kind, at, preempted_s
                yield "preempted", preempted_s, resumed_s
                at = min(next_token_s, next_cut_s)
                if resumed_s < at:
                    yield "recompute", resumed_s, at
        if at < to_s:
            yield kind, at, to_s


def preemption_cuts(stalls: pd.DataFrame | None) -> dict[int, list[Cut]]:
    """The preemptions of each request, in order of time; `stalls` has the columns of `preemptions.csv`."""
    found: dict[int, list[Cut]] = {}
    if stalls is not None:
        table = stalls.sort_values("preempted_s")
        moments = table[["preempted_s", "resumed_s", "next_token_s"]].to_numpy(dtype=float)
        for request_id, cut in zip(table["request_id"].to_numpy(), moments, strict=True):
            found.setdefault(int(request_id), []).append(tuple(cut))
    return found
