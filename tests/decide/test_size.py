"""`size` on engines that really run: known answers, candidates that cannot run, what is never invented."""

from __future__ import annotations

import json
import re

import pytest

from sim import InputError, RunOptions, load_scenario, simulate, size
from sim.questions.prices import read_prices
from sim.questions.size import Sizing
from sim.questions.size.answer import is_open
from sim.questions.size.promise import JOINT, MISSED, Judgement, Promise
from sim.statistics.intervals import replication_interval
from tests.cli.helpers import dryserve
from tests.decide.helpers import m_d_1_capacity, one_at_a_time

HERE = RunOptions(workers=1, store=None)
QUICK = {"options": HERE, "replications": 2, "requests": 150, "precision": 0.1}
SLO = "ttft_p90=200ms,tpot_p90=20ms"
SHORT = [
    "workload.lengths={kind: uniform, prompt_tokens: [200, 1400], output_tokens: [10, 50]}",
    "cluster.router={kind: round_robin}",
]
"""Overrides for answers that are quick to simulate."""


def text_of(found: Sizing) -> str:
    """The answer on the screen, its lines joined where they are wrapped."""
    return re.sub(r"\n *(?=\S)", " ", found.as_text())


def faults(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [str(fault) for fault in error.value.faults]


@pytest.fixture(scope="module")
def two():
    """An H100 and an A100 at 30 requests a second, with prices."""
    return size(
        "quickstart",
        rate=30.0,
        slo=SLO,
        overrides=SHORT,
        gpus=["h100-sxm", "a100-sxm-80gb"],
        prices="h100-sxm=4,a100-sxm-80gb=1.5",
        **QUICK,
    )


def test_an_engine_that_serves_one_at_a_time_has_the_capacity_of_m_d_1():
    base = one_at_a_time()
    alone, crowded = (
        simulate(base.model_copy(update={"workload": base.workload.model_copy(update={"rate_per_s": rate})}))
        for rate in (0.01, 1000.0)
    )
    service_s = 1.0 / crowded.summary["request_throughput"]
    front_end_s = alone.summary["mean_ttft_ms"] / 1000.0 - service_s
    slo = f"ttft_p95={1000 * (front_end_s + 5 * service_s):.6f}ms"
    found = size(base, slo=slo, options=HERE, replications=4, requests=1500)
    theory = m_d_1_capacity(service_s, 5 * service_s, 0.95)
    assert found.found[0].rate_per_s == pytest.approx(theory, rel=0.08)
    assert not found.fleets


def test_where_the_warm_up_leaves_no_request_no_promise_is_called_broken():
    found = size("quickstart", rate=4.0, slo=SLO, overrides=[*SHORT, "warmup_s=1e9"], **QUICK)
    said = text_of(found)
    assert "a run has no request to judge: its warm-up or its horizon left none" in said
    assert "No candidate can run." in said
    assert "keeps the promise" not in said


def test_a_warm_up_that_swallows_the_fastest_runs_alone_is_no_hindrance():
    found = size("quickstart", slo=SLO, overrides=[*SHORT, "warmup_s=0.5"], **QUICK)
    assert found.found[0].error is None
    assert found.found[0].rate_per_s > 0.0


def test_the_smallest_fleet_keeps_the_promise_and_one_replica_fewer_does_not(two):
    for number, fleet in two.answers.items():
        assert fleet.tried[fleet.replicas].is_met
        if fleet.replicas > 1:
            assert not fleet.tried[fleet.replicas - 1].is_met
        assert two.candidates[number].label in text_of(two)
    roles = two.fleet_table.groupby("candidate")["role"].agg(list)
    assert all(names.count("answer") == 1 for names in roles)


def test_the_cheapest_is_not_the_smallest_where_a_slower_gpu_costs_much_less(two):
    gpus = {two.candidates[n].gpu: fleet.replicas for n, fleet in two.answers.items()}
    assert gpus["h100-sxm"] < gpus["a100-sxm-80gb"]
    assert two.candidates[two.smallest].gpu == "h100-sxm"
    cost = {"h100-sxm": 4.0 * gpus["h100-sxm"], "a100-sxm-80gb": 1.5 * gpus["a100-sxm-80gb"]}
    assert two.candidates[two.cheapest].gpu == min(cost, key=cost.get)
    row = two.fleet_table[two.fleet_table["role"].eq("answer") & two.fleet_table["gpu"].eq("h100-sxm")].iloc[
        0
    ]
    assert row["cost_per_h"] == 4.0 * row["gpus"]
    assert row["per_million_output"] > 0


def test_the_order_of_candidates_does_not_matter_and_nor_do_workers(two):
    turned = size(
        "quickstart",
        rate=30.0,
        slo=SLO,
        overrides=SHORT,
        gpus=["a100-sxm-80gb", "h100-sxm"],
        prices="h100-sxm=4,a100-sxm-80gb=1.5",
        **{**QUICK, "options": RunOptions(workers=2, store=None)},
    )
    assert turned.as_text() == two.as_text()
    assert turned.fleet_table.equals(two.fleet_table)


def test_without_prices_no_money_is_spoken_of():
    found = size("quickstart", slo=SLO, overrides=SHORT, **QUICK)
    said = text_of(found)
    assert "$" not in said
    assert "no prices given" in said
    assert "cost_per_h" not in found.capacity_table
    assert found.cheapest is None


def test_a_model_that_does_not_fit_is_shown_with_the_arithmetic():
    found = size(
        "quickstart",
        slo="ttft_p90=1s",
        tp="1,3,4",
        overrides=[*SHORT, "model=llama-3.1-70b"],
        rate=2.0,
        **QUICK,
    )
    said = text_of(found)
    assert re.search(r"cannot run: h100-sxm TP 1: .*131\.42 weights.* GiB for KV cache; the smallest", said)
    assert "cannot run: h100-sxm TP 3: " in said
    assert "does not divide" in said
    assert [found.candidates[n].label for n in found.found] == ["h100-sxm TP 4"]


def test_where_nothing_fits_that_is_the_answer():
    found = size("quickstart", slo=SLO, tp="1", rate=2.0, overrides=["model=llama-3.1-405b"], **QUICK)
    assert not found.has_answer
    assert not found.figures
    assert "No candidate can run." in text_of(found)
    assert "none: no candidate ran" in text_of(found)


def test_a_promise_that_no_replica_keeps_even_alone_is_said_to_be_so():
    found = size("quickstart", slo="tpot_p90=1ms", rate=10.0, overrides=SHORT, **QUICK)
    said = text_of(found)
    assert not found.has_answer
    assert "not even with next to no load" in said
    assert found.smallest is None


def test_too_few_requests_to_show_a_promise_are_no_proof_against_it():
    """Two seeds of 90 judged requests, all in time: the interval begins below the 99 % promised."""
    found = size("kv-starved", rate=5.0, **{**QUICK, "requests": 100})
    said = text_of(found)
    assert "No candidate keeps the promise" not in said
    assert re.search(
        r"too few requests to say, even at .* 2 seeds of 100 leave \d+ to judge, .* 381 to", said
    )
    assert "? (at " in said
    (told,) = found.as_json()["conclusions"]
    assert told in said
    enough = int(re.search(r"--requests (\d+)", told)[1])
    assert size("kv-starved", **{**QUICK, "requests": enough}).has_answer


def test_one_run_whose_requests_could_have_kept_the_promise_proves_nothing_against_it():
    promise = Promise({}, {JOINT: 0.99})

    def one_run(share: float) -> Judgement:
        found = replication_interval([share])
        return Judgement(MISSED, found, {JOINT: found}, (JOINT,), {}, [{"slo_judged_requests": 100}])

    assert is_open(one_run(0.98), promise)
    assert not is_open(one_run(0.90), promise)


def test_what_binds_is_told_with_the_runs_that_it_was_seen_in(two):
    for number, fleet in two.answers.items():
        runs = fleet.replicas - 1 or fleet.replicas
        assert re.search(rf"\(with {runs} replicas?, (where the promise|too close)", two.bound(number))
    alone = size("quickstart", slo=SLO, overrides=SHORT, **QUICK)
    rate = f"{alone.found[0].above_per_s:.3g}"
    assert f"(at {rate} req/s, " in text_of(alone)


def test_a_limit_on_running_requests_that_is_reached_is_what_binds():
    """Four run at most; in so short a run the mean over time, drain and all, stays well below that."""
    found = size("quickstart", slo=SLO, overrides=[*SHORT, "engine.max_num_seqs=4"], **QUICK)
    assert "max_num_seqs binds: " in found.bound(0)
    assert "of 4 run at p50, 4 at p95" in found.bound(0)


def test_so_many_gpus_are_shared_out_among_replicas():
    """Two replicas of one GPU against one of two, and no way to make replicas of four from two."""
    found = size("quickstart", slo=SLO, tp="1,2,4", num_gpus=2, overrides=SHORT, **QUICK)
    replicas = {
        found.candidates[n].setting["engine.tensor_parallel_size"]: c.replicas for n, c in found.found.items()
    }
    assert replicas == {1: 2, 2: 1}
    assert "2 GPUs are no whole number of replicas of 4" in text_of(found)
    shares = found.capacity_table.set_index("engine.tensor_parallel_size")["comm_share"]
    assert shares[1] == 0.0
    assert 0.0 < shares[2] < 0.5


def test_every_mistake_is_named_at_once():
    with pytest.raises(InputError) as caught:
        size("closed-loop", rate=-1.0, gpus=["h1000"], tp="two", prices="h100=cheap", attainment=1.5)
    said = faults(caught)
    assert any("--rate -1: must be above 0" in s for s in said)
    assert any("closed_loop has no rate" in s for s in said)
    assert any("--gpus" in s and "h1000" in s for s in said)
    assert any("must be a price above 0" in s for s in said)
    assert any("--tp two: must be whole numbers" in s for s in said)
    assert any("--attainment 1.5" in s for s in said)
    assert any("--slo: is needed" in s for s in said)


def test_a_trace_that_is_not_there_is_a_mistake_at_its_place_in_the_file():
    with pytest.raises(InputError) as caught:
        size("mooncake-h100", gpus=["h100-sxm", "h200-sxm"], tp="1,2", **QUICK)
    (said,) = faults(caught)
    assert re.match(r"scenarios/mooncake-h100\.yaml:\d+:3: workload\.path: no such file: conversation", said)


# --- prices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", 'currency = "EUR"\n[per_gpu_hour]\nH100-SXM = 3.5\n'),
        ("p.yaml", "currency: EUR\nper_gpu_hour: {H100-SXM: 3.5}\n"),
    ],
)
def test_prices_come_from_a_file_under_any_name_that_the_gpu_has(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    prices = read_prices(str(tmp_path / name))
    assert (prices.currency, dict(prices.per_gpu_hour)) == ("EUR", {"h100-sxm": 3.5})


def test_the_prices_that_come_along_say_that_they_are_made_up():
    assert "nobody's offer" in read_prices("example").source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[per_gpu_hour]\nh100-sxm = 0\n", "must be a price above 0"),
        ("[per_gpu_hour]\nh100-sxm = true\n", "must be a price above 0"),
        ("[per_gpu_hour]\nh100-sxn = 1\n", "h100-sxn"),
        ("[per_gpu_hour]\nh100-sxm = 1\nH100-SXM = 2\n", "is given twice"),
        ("per_gpu_hours = 1\n", "did you mean 'per_gpu_hour'"),
        ("h100 = \n", "not TOML"),
        ("currency = 3\n[per_gpu_hour]\nh100-sxm = 1\n", "must be text"),
    ],
)
def test_a_price_file_that_cannot_be_used_says_why(tmp_path, text, said):
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_prices(str(tmp_path / "p.toml"))
    assert any(said in fault for fault in faults(caught))


def test_a_price_given_twice_in_words_is_a_mistake_as_in_a_file():
    with pytest.raises(InputError) as caught:
        read_prices("h100-sxm=4,h100-sxm=9,a100=cheap")
    said = faults(caught)
    assert any("per_gpu_hour.h100-sxm: is given twice" in s for s in said)
    assert any("must be a price above 0" in s for s in said)


def test_a_gpu_without_a_price_is_named():
    found = size("quickstart", slo=SLO, overrides=SHORT, prices="a100-sxm-80gb=2", **QUICK)
    assert "no price for h100-sxm: its cost is left out" in text_of(found)


def test_one_seed_has_no_interval_and_is_not_said_to_leave_nothing_to_chance():
    said = text_of(size("quickstart", slo=SLO, overrides=SHORT, **{**QUICK, "replications": 1}))
    assert "one seed gives no interval over seeds" in said
    assert "nothing here is left to chance" not in said
    assert "| rates to 10 % |" in said


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_prints_writes_and_draws(tmp_path):
    (tmp_path / "small.yaml").write_text(
        "# Small?\ndescription: x\nmodel: llama-3.1-8b\ngpu: h100-sxm\nengine: {max_model_len: 4096}\n"
        "workload: {kind: poisson, rate_per_s: 5, num_requests: 100, "
        "lengths: {kind: fixed, prompt_tokens: 200, output_tokens: 20}}\nslo: {ttft_p90: 100ms}\n"
    )
    flags = ["--rate", 300, "--requests", 100, "--replications", 2, "--workers", 1, "--prices", "example"]
    run = dryserve(
        "size", "small.yaml", *flags, cwd=tmp_path, env={"DRYSERVE_CACHE": str(tmp_path / "cache")}
    )
    assert run.returncode == 0, run.stderr
    assert "<- smallest" in run.stdout
    assert "Traceback" not in run.stderr
    (folder,) = (tmp_path / "sizes").iterdir()
    assert {file.name for file in folder.iterdir()} >= {
        "size.json",
        "candidates.csv",
        "fleets.csv",
        "figures",
    }
    assert json.loads((folder / "size.json").read_text())["smallest"] == "h100-sxm TP 1"
    assert "Compute binds" in (folder / "report.md").read_text(encoding="utf-8")
    assert (folder / "report.html").exists()
    assert (folder / "figures" / "attainment_fleet.png").stat().st_size > 0


def test_a_trace_has_one_order_of_arrivals_and_the_screen_says_that_nothing_is_left_to_chance(tmp_path):
    rows = "".join(f"{i * 0.1:.1f},{200 + i % 7},20\n" for i in range(300))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    (tmp_path / "s.yaml").write_text(
        "model: llama-3.1-8b\ngpu: h100-sxm\nengine: {max_model_len: 4096}\n"
        "workload: {kind: trace, path: t.csv}\nslo: {ttft_p90: 100ms}\n"
    )
    found = size(load_scenario(tmp_path / "s.yaml"), options=HERE, replications=2)
    assert found.has_answer
    assert "nothing here is left to chance" in text_of(found)
