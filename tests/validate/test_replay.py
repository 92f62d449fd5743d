"""Tiny runs whose answers follow from the cost model and the engine's rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models import Deployment, StepCostModel, engine_profile
from sim.evidence.validate import ReplayedRun, Selection, Validation, read_measured_runs, replay_all
from sim.evidence.validate.run_table import read_runs
from sim.jobs.options import Progress, RunOptions
from tests.validate.helpers import PLAIN, one_run, write_requests, write_runs

SYNC = {"async_scheduling": "0", "num_kv_tokens": "100000", "client": "go"}


def replay(folder: Path, **changes: str) -> ReplayedRun:
    (outcome,) = replay_all([one_run(folder, **changes)])
    return outcome


def cost_model() -> StepCostModel:
    return StepCostModel(
        Deployment.of("meta-llama/Llama-3.1-8B", "h100-sxm", engine_version="0.16.0", async_scheduling=False)
    )


def test_one_request_decodes_at_the_cost_models_pace(tmp_path: Path) -> None:
    """Prompt 100, output 10: nine steps of one decode at contexts 101 to 109, host time between."""
    seen = replay(tmp_path, num_requests="1", **SYNC).simulated
    steps = [cost_model().decode_step(1, context, context) for context in range(101, 110)]
    expected_s = sum(step.gpu_s + step.host_s for step in steps) / 9
    assert seen["tpot_mean_ms"] == pytest.approx(expected_s * 1e3, rel=1e-6)
    assert seen["itl_p50_ms"] == pytest.approx(seen["tpot_mean_ms"], rel=1e-2)
    assert seen["e2e_mean_ms"] == pytest.approx(seen["ttft_mean_ms"] + 9 * seen["tpot_mean_ms"])


def test_a_lone_request_waits_for_the_front_end_and_its_prefill_alone(tmp_path: Path) -> None:
    with_server = replay(tmp_path, num_requests="1", **SYNC).simulated["ttft_mean_ms"]
    inside = replay(tmp_path, num_requests="1", **SYNC | {"client": "in_process"}).simulated["ttft_mean_ms"]
    assert with_server - inside == pytest.approx(engine_profile("0.16.0").frontend_s * 1e3)


def test_a_warm_up_spares_the_prefill_of_a_repeated_prompt(tmp_path: Path) -> None:
    cold = replay(tmp_path, num_requests="1", prompt="fixed:8000", **SYNC)
    warm = replay(tmp_path, num_requests="1", prompt="fixed:8000", warmup_requests="1", **SYNC)
    assert warm.simulated["completed"] == 1
    assert warm.simulated["ttft_mean_ms"] < 0.2 * cold.simulated["ttft_mean_ms"]
    assert warm.simulated["tpot_mean_ms"] == pytest.approx(cold.simulated["tpot_mean_ms"], rel=1e-6)


def test_a_closed_loop_never_has_more_in_flight_than_it_may(tmp_path: Path) -> None:
    """Concurrency 1 serves one after the other: the run lasts as long as all of its requests together."""
    seen = replay(tmp_path, load="closed", max_concurrency="1", num_requests="5", **SYNC).simulated
    assert seen["req_tput_rps"] == pytest.approx(1e3 / seen["e2e_mean_ms"], rel=1e-6)


def test_what_cannot_be_simulated_says_why_and_stops_nobody_else(tmp_path: Path) -> None:
    path = write_runs(
        tmp_path,
        PLAIN | {"run_id": "no-such-gpu", "gpu": "h1000"},
        PLAIN | {"run_id": "no-such-model", "model": "nobody/nothing"},
        PLAIN | {"run_id": "too-large", "model": "meta-llama/Llama-3.1-405B-FP8"},
        PLAIN | {"run_id": "no-load", "load": ""},
        PLAIN | {"run_id": "fine"},
    )
    outcomes = replay_all(read_runs(path).runs)
    reasons = [outcome.reason or "" for outcome in outcomes]
    assert [outcome.run.run_id for outcome in outcomes if not outcome.reason] == ["fine"]
    assert "h1000" in reasons[0]
    assert "nobody/nothing" in reasons[1]
    assert "fit" in reasons[2]
    assert "load is unknown" in reasons[3]
    report = Validation(path, outcomes).as_text()
    assert "line 5: no-load: load is unknown" in report


def test_results_are_the_same_whatever_the_number_of_processes(tmp_path: Path) -> None:
    path = write_runs(
        tmp_path,
        *(
            PLAIN | {"run_id": f"r{i}", "load": "poisson", "rate_per_s": "20", "prompt": "uniform:10:900"}
            for i in range(4)
        ),
    )
    runs = read_runs(path).runs
    alone, together = (
        replay_all(runs, options=RunOptions(workers=workers, store=None)) for workers in (1, 2)
    )
    assert [o.simulated for o in alone] == [o.simulated for o in together]
    assert alone[0].simulated != alone[1].simulated, "each run draws its own arrivals"
    backwards = replay_all(runs[::-1])[::-1]
    assert [o.simulated for o in alone] == [o.simulated for o in backwards]


def test_twins_are_simulated_once_and_judged_each_by_its_own_client(tmp_path: Path) -> None:
    """Two runs of one burst, seen by two clients: one simulation, and the Python client's 4.25 ms between."""
    path = write_runs(
        tmp_path,
        PLAIN | {"run_id": "a", "num_requests": "1", "client": "go"},
        PLAIN | {"run_id": "b", "num_requests": "1", "client": "python"},
        PLAIN | {"run_id": "c", "num_requests": "2", "client": "go"},
    )
    told: list[Progress] = []
    a, b, c = replay_all(read_runs(path).runs, options=RunOptions(store=None, on_progress=told.append))
    assert told[-1].total == 2
    assert [o.run.run_id for o in (a, b, c)] == ["a", "b", "c"]
    assert b.simulated["ttft_mean_ms"] - a.simulated["ttft_mean_ms"] == pytest.approx(4.25)


def test_the_answer_ends_with_one_line_a_metric(tmp_path: Path) -> None:
    """A run that 'measured' what the simulation says, and one that measured twice that: errors 0 and 50 %."""
    true_ms = replay(tmp_path, **SYNC).simulated["tpot_mean_ms"]
    path = write_runs(
        tmp_path,
        PLAIN | SYNC | {"run_id": "right", "tpot_mean_ms": repr(true_ms)},
        PLAIN | SYNC | {"run_id": "slower", "tpot_mean_ms": repr(2 * true_ms)},
    )
    outcomes = replay_all(read_runs(path).runs)
    found = Validation(path, outcomes)
    assert found.final_lines() == ["validate: tpot_mean median 25.0 % p90 45.0 % over 2 rows"]
    folder = found.write(tmp_path / "out", draw=False)
    lines = (folder / "validation.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("right,runs,h100-sxm,0.16.0,")


def test_rows_are_chosen_by_quality_source_and_pattern(tmp_path: Path) -> None:
    path = write_runs(
        tmp_path,
        PLAIN | {"run_id": "good/1", "quality": "A"},
        PLAIN | {"run_id": "rough/1", "quality": "B-"},
        PLAIN | {"run_id": "own/1"},
    )

    def chosen(selection: Selection) -> list[str]:
        return [run.run_id for run in read_measured_runs(path, selection)[0]]

    assert chosen(Selection()) == ["good/1", "own/1"], "a run without a quality is the user's own"
    assert chosen(Selection(qualities=())) == ["good/1", "rough/1", "own/1"]
    assert chosen(Selection(run_ids=("own/*",))) == ["own/1"]
    runs, _ = read_measured_runs(path, columns={"gpu": "a100-sxm-80gb"})
    assert runs[0].gpu == "a100-sxm-80gb"


def test_measured_requests_are_kept_for_the_figures(tmp_path: Path) -> None:
    write_requests(tmp_path, "r.csv", "arrival_s,in_tok,out_tok,ttft_ms,e2e_ms\n0,50,5,20,60\n1,60,5,21,61\n")
    run = one_run(
        tmp_path, load="trace", num_requests="2", prompt="file", output="file", requests_file="r.csv"
    )
    (outcome,) = replay_all([run])
    assert outcome.latencies is not None
    assert outcome.measured_rows is not None
    assert len(outcome.latencies) == outcome.measured_rows.count == 2


def test_a_recorded_run_is_simulated_within_a_tenth(shared_dir: Path) -> None:
    """Qwen3-14B on one H100 at 2 requests a second: nearly idle, so latency is the cost model's alone."""
    folder = shared_dir / "validation"
    runs = {run.run_id: run for run in read_runs(folder / "runs.csv").runs}
    (outcome,) = replay_all([runs["residency/sweep_rate/agg_2rps/vanilla"]], limit_requests=100)
    errors = {c.metric: c.error_percent for c in outcome.errors}
    assert abs(errors["tpot_mean"]) < 10
    assert abs(errors["e2e_mean"]) < 10


def test_a_client_inside_the_engine_does_not_see_the_front_end(tmp_path: Path) -> None:
    """One request: HTTP and tokenizer are all the difference to a client without time of its own."""
    clients = {"go": "outside", "in_process": "inside", "server_metrics": "metrics"}
    rows = [
        PLAIN | {"run_id": name, "client": client, "num_requests": "1"} for client, name in clients.items()
    ]
    runs, _ = read_measured_runs(write_runs(tmp_path, *rows))
    outside, inside, metrics = (outcome.simulated["ttft_mean_ms"] for outcome in replay_all(runs))
    assert outside - inside == pytest.approx(1e3 * engine_profile("0.16.0").frontend_s)
    assert metrics == inside
