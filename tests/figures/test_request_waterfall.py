"""F10's rows are the requests' own times, and lost time is cut out where it was lost."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sim.figures import plot_request_waterfall
from tests.figures.helpers import make_requests


def bars(ax):
    """(kind, row, start, end) of every bar."""
    return {
        (kind.get_label(), round(y + 0.4), round(x, 9), round(x + width, 9))
        for kind in ax.containers
        for (x, y), width in ((bar.get_xy(), bar.get_width()) for bar in kind)
    }


def one_request(**changes):
    row = make_requests(1).assign(arrival_s=1.0, first_scheduled_s=2.0, first_token_s=3.0, last_token_s=9.0)
    return row.assign(num_preemptions=0, stalled_s=0.0, recomputed_tokens=0).assign(**changes)


def stalls(*rows):
    return pd.DataFrame(rows, columns=["request_id", "preempted_s", "resumed_s", "next_token_s"])


def test_a_request_is_queued_then_prefilled_then_decoded():
    assert bars(plot_request_waterfall(one_request())) == {
        ("queued", 0, 1.0, 2.0),
        ("prefill", 0, 2.0, 3.0),
        ("decode", 0, 3.0, 9.0),
    }


def test_preemptions_cut_waiting_and_recompute_out_of_the_decode():
    ax = plot_request_waterfall(one_request(), stalls=stalls((0, 4.0, 5.0, 5.5), (0, 7.0, 8.0, 8.25)))
    assert bars(ax) == {
        ("queued", 0, 1.0, 2.0),
        ("prefill", 0, 2.0, 3.0),
        ("decode", 0, 3.0, 4.0), ("preempted", 0, 4.0, 5.0), ("recompute", 0, 5.0, 5.5),
        ("decode", 0, 5.5, 7.0), ("preempted", 0, 7.0, 8.0), ("recompute", 0, 8.0, 8.25),
        ("decode", 0, 8.25, 9.0),
    }  # fmt: skip


def test_a_preemption_during_the_prefill_lies_in_the_prefill():
    ax = plot_request_waterfall(one_request(), stalls=stalls((0, 2.25, 2.5, 3.0)))
    found = bars(ax)
    assert ("prefill", 0, 2.0, 2.25) in found
    assert ("recompute", 0, 2.5, 3.0) in found
    assert ("decode", 0, 3.0, 9.0) in found


def test_requests_not_done_are_drawn_to_the_last_known_moment():
    requests = pd.concat([one_request(), one_request(request_id=1, status="in_flight", last_token_s=np.nan),
                          one_request(request_id=2, status="in_flight", first_scheduled_s=np.nan,
                                      first_token_s=np.nan, last_token_s=np.nan)])  # fmt: skip
    found = bars(plot_request_waterfall(requests))
    assert ("decode", 1, 3.0, 9.0) in found
    assert ("queued", 2, 1.0, 9.0) in found


def test_without_stall_times_the_row_says_what_was_lost():
    requests = one_request().assign(num_preemptions=2, stalled_s=0.75)
    assert [text.get_text() for text in plot_request_waterfall(requests).texts] == ["2× preempted, 0.75 s"]


def test_the_window_and_the_row_limit_are_kept_and_said():
    ax = plot_request_waterfall(make_requests(200), t0=20.0, t1=30.0, max_rows=10)
    assert len({row for _, row, *_ in bars(ax)}) == 10
    assert ax.get_xlim() == (20.0, 30.0)
    in_window = make_requests(200).query("arrival_s < 30 and last_token_s > 20")
    assert ax.get_ylabel() == f"request (by arrival: 10 of {len(in_window)})"


@pytest.mark.parametrize("table", [one_request().iloc[:0], one_request().assign(status="rejected")])
def test_nobody_to_draw(table):
    assert bars(plot_request_waterfall(table)) == set()


def test_an_aborted_request_ends_when_its_client_hung_up():
    gone = {"status": "aborted", "last_token_s": np.nan, "first_token_s": np.nan}
    requests = pd.concat(
        [
            one_request(aborted_s=np.nan),
            one_request(request_id=1, aborted_s=5.0, **gone),
            one_request(request_id=2, aborted_s=4.0, **gone).assign(first_scheduled_s=np.nan),
        ],
        ignore_index=True,
    )
    found = bars(plot_request_waterfall(requests))
    assert {bar for bar in found if bar[1] == 1} == {("queued", 1, 1.0, 2.0), ("prefill", 1, 2.0, 5.0)}
    assert {bar for bar in found if bar[1] == 2} == {("queued", 2, 1.0, 4.0)}


def test_a_second_preemption_before_the_next_token_ends_the_recomputation():
    ax = plot_request_waterfall(one_request(), stalls=stalls((0, 4.0, 5.0, 8.0), (0, 6.0, 7.0, 8.0)))
    found = bars(ax)
    assert ("recompute", 0, 5.0, 6.0) in found
    assert ("preempted", 0, 6.0, 7.0) in found
    assert ("recompute", 0, 7.0, 8.0) in found
    assert sum(end - start for _, _, start, end in found) == pytest.approx(8.0)
