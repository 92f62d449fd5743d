"""From the load columns of a run to the requests its client found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.evidence.validate.run_table import read_runs
from sim.evidence.validate.sent_requests import CannotRunError, sent_requests
from tests.validate.helpers import sent, write_requests

FILE = """exp,idx,arrival_s,in_tok,out_tok_forced,out_tok,ttft_ms,e2e_ms
a,0,5.0,100,10,7,50,500
a,1,4.0,200,20,7,60,600
a,2,9.0,300,30,7,70,700
b,0,0.0,999,99,7,80,800
"""


def test_a_burst_sends_everything_at_once(tmp_path: Path) -> None:
    found = sent(tmp_path, load="burst", num_requests="5")
    assert found.arrival_s.tolist() == [0.0] * 5
    assert found.run.max_concurrency is None


def test_a_closed_loop_keeps_its_concurrency(tmp_path: Path) -> None:
    found = sent(tmp_path, load="closed", num_requests="20", max_concurrency="4")
    assert found.run.max_concurrency == 4
    assert found.num_measured == 20


def test_poisson_gaps_are_independent_and_poisson_exact_ends_on_the_second(tmp_path: Path) -> None:
    free = sent(tmp_path, load="poisson", rate_per_s="10", num_requests="4000").arrival_s
    exact = sent(tmp_path, load="poisson_exact", rate_per_s="10", num_requests="4000").arrival_s
    assert exact[-1] == pytest.approx(400.0, rel=1e-12)
    assert free[-1] == pytest.approx(400.0, rel=0.05)
    assert free[-1] != pytest.approx(400.0, rel=1e-6)
    gaps = np.diff(exact)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


def test_a_cap_in_the_client_goes_with_any_load(tmp_path: Path) -> None:
    found = sent(tmp_path, load="poisson", rate_per_s="10", max_concurrency="3")
    assert found.run.max_concurrency == 3
    assert found.arrival_s[0] > 0


@pytest.mark.parametrize("name", ["requests.csv", "requests.csv.gz"])
def test_a_trace_is_selected_sorted_and_counted_from_its_first_arrival(tmp_path: Path, name: str) -> None:
    write_requests(tmp_path, name, FILE)
    found = sent(
        tmp_path,
        load="trace",
        num_requests="",
        prompt="file",
        output="file",
        requests_file=name,
        requests_filter="exp=a",
    )
    assert found.arrival_s.tolist() == [0.0, 1.0, 5.0]
    assert found.prompt_tokens.tolist() == [200, 100, 300]
    assert found.output_tokens.tolist() == [20, 10, 30], "forced lengths come before counted ones"
    assert found.rows is not None
    assert found.rows.ttft_s == pytest.approx([0.060, 0.050, 0.070])


def test_a_range_in_the_filter_includes_both_ends(tmp_path: Path) -> None:
    write_requests(tmp_path, "requests.csv", FILE)
    found = sent(
        tmp_path,
        load="trace",
        num_requests="2",
        prompt="file",
        requests_file="requests.csv",
        requests_filter="exp=a;idx=1..2",
    )
    assert found.prompt_tokens.tolist() == [200, 300]
    assert found.output_tokens.tolist() == [10, 10], "only the prompt comes from the file"


def test_with_a_closed_loop_the_file_gives_lengths_alone_in_sending_order(tmp_path: Path) -> None:
    write_requests(tmp_path, "requests.csv", FILE)
    found = sent(
        tmp_path,
        load="closed",
        max_concurrency="2",
        num_requests="3",
        prompt="file",
        output="file",
        requests_file="requests.csv",
        requests_filter="exp=a",
    )
    assert found.arrival_s.tolist() == [0.0, 0.0, 0.0]
    assert found.prompt_tokens.tolist() == [200, 100, 300]


def test_distinct_prompts_are_cycled_in_order_with_their_lengths(tmp_path: Path) -> None:
    found = sent(tmp_path, num_requests="7", distinct_prompts="3", prompt="uniform:10:1000")
    assert found.prompt.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert found.prompt_tokens[0] == found.prompt_tokens[3] == found.prompt_tokens[6]
    assert len(set(found.prompt_tokens[:3].tolist())) == 3


def test_prompts_of_a_group_share_its_prefix(tmp_path: Path) -> None:
    found = sent(tmp_path, num_requests="6", prefix_groups="2", shared_prefix_tokens="64")
    assert found.prefix.tolist() == [0, 1, 0, 1, 0, 1]
    assert found.run.shared_prefix_tokens == 64


def test_a_warm_up_runs_each_distinct_prompt_once_and_ends_before_the_rest(tmp_path: Path) -> None:
    found = sent(
        tmp_path, num_requests="6", distinct_prompts="3", warmup_requests="4800", prompt="fixed:2000"
    )
    assert found.num_warmup == 3
    assert found.num_measured == 6
    assert found.prompt.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert found.arrival_s.tolist() == [0.0, 3.0, 6.0] + [9.0] * 6
    assert found.output_tokens.tolist() == [1] * 3 + [10] * 6


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"load": ""}, "load is unknown"),
        ({"load": "closed"}, "max_concurrency is unknown"),
        ({"load": "poisson"}, "rate_per_s is unknown"),
        ({"prompt": ""}, "prompt lengths are unknown"),
        ({"num_requests": ""}, "num_requests is unknown"),
        ({"prompt": "quantiles:nowhere"}, "no length quantiles named 'nowhere'"),
        ({"load": "trace"}, "requests_file is blank"),
        ({"load": "trace", "requests_file": "gone.csv"}, "gone.csv does not stand beside"),
    ],
)
def test_a_run_that_cannot_be_sent_says_why(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(CannotRunError, match=reason):
        sent(tmp_path, **changes)


def test_the_number_of_requests_may_follow_from_rate_and_duration(tmp_path: Path) -> None:
    found = sent(tmp_path, load="poisson", rate_per_s="5", duration_s="20", num_requests="")
    assert found.num_measured == 100
    assert any("num_requests" in line for line in found.assumptions)


def test_every_measured_run_gives_its_stated_number_of_requests(shared_dir: Path) -> None:
    folder = shared_dir / "validation"
    for run in read_runs(folder / "runs.csv").runs:
        found = sent_requests(run)
        assert found.num_measured == run.num_requests
        assert (np.diff(found.arrival_s) >= 0).all()
