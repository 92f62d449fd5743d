"""Grids in, tables and an answer out; every mistake in every grid named at once before anything runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sim
from sim import InputError, RunOptions, load_scenario, simulate, sweep
from sim.questions.sweep import axes as axes_module
from sim.questions.sweep.axes import make_axes
from sim.questions.sweep.cells import make_cells

SMALL = ("workload.duration_s=null", "workload.num_requests=60", "cluster.replicas=1")
"""Sixty requests to one H100: quick to simulate."""

HERE = RunOptions(workers=1)


@pytest.fixture(scope="module")
def base():
    return load_scenario("quickstart", SMALL)


@pytest.fixture(scope="module")
def rates(base):
    """Four rates up to far more than one H100 can serve within its targets, three seeds."""
    return sweep(
        base, rates=[5, 20, 80, 320], replications=3, slo="ttft_p90=500ms,tpot_p90=15ms", options=HERE
    )


def faults(error: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [str(fault) for fault in error.value.faults]


# --- what varies --------------------------------------------------------------------------------------------


def test_combinations_come_with_the_last_axis_fastest(base):
    axes, _ = make_axes(base, ["engine.max_num_seqs=32..64", "watermark=0.0,0.05"])
    cells = make_cells(base, axes)
    assert [tuple(cell.setting.values()) for cell in cells] == [(32, 0.0), (32, 0.05), (64, 0.0), (64, 0.05)]
    assert [cell.scenario.engine.max_num_seqs for cell in cells] == [32, 32, 64, 64]
    assert list(cells[0].setting) == ["engine.max_num_seqs", "engine.watermark"]


def test_zipped_fields_move_together(base):
    axes, _ = make_axes(base, ["max_num_seqs=8,16"], zipped=["gpu=h100-sxm,a100-sxm-80gb", "replicas=1,2"])
    settings = [tuple(cell.setting.values()) for cell in make_cells(base, axes)]
    assert settings == [
        (8, "h100-sxm", 1),
        (8, "a100-sxm-80gb", 2),
        (16, "h100-sxm", 1),
        (16, "a100-sxm-80gb", 2),
    ]


def test_any_path_can_vary_sections_and_lists_too(base):
    policies = "engine.victim_policy={kind: fcfs_tail},{kind: least_computed}"
    axes, _ = make_axes(base, [policies, "slo.ttft_p99=1s,2s", "workload.lengths.grid=azure2023_conv"])
    cells = make_cells(base, axes)
    assert len(cells) == 4
    assert cells[2].scenario.engine.victim_policy.kind == "least_computed"
    assert cells[1].scenario.slo.root["ttft_p99"] == 2.0


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1:20", [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20]),
        ("0.5:1", [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1]),
        ("10:30:10", [10, 20, 30]),
        ("1..8", [1, 2, 4, 8]),
        ("3,7", [3, 7]),
        ("5", [5]),
    ],
)
def test_rates_in_every_form(base, text, values):
    (axis,), _ = make_axes(base, rates=text)
    assert [row[0] for row in axis.rows] == values


def test_all_mistakes_in_all_grids_are_named_at_once(base):
    with pytest.raises(InputError) as error:
        sweep(
            base,
            [
                "engine.max_num_seqs=32..",
                "watermark",
                "gpu_memory_utilization=2",
                "kv_cache_dtype=fp8,fp8",
                "seed=1,2",
            ],
            zipped=["gpu=h100-sxm", "replicas=1,2"],
            rates="20:1",
            slo="ttft_p99=1,tppt=3ms",
            replications=0,
        )
    told = faults(error)
    assert len(told) == 10
    for part in (
        "'1' is no duration",
        "unknown metric 'tppt'",
        "--rate 20:1: must read low:high",
        "--grid engine.max_num_seqs=32..: '32..' is no grid",
        "--grid watermark: must read path=values",
        "--grid gpu_memory_utilization=2: engine.gpu_memory_utilization",
        "has fp8 twice",
        "seed: is set by --seeds",
        "--zip: needs equally many values: gpu has 1, cluster.replicas has 2",
        "--replications 0",
    ):
        assert any(part in line for line in told), part


def test_a_value_that_is_wrong_in_any_company_is_a_mistake_with_its_place(base):
    with pytest.raises(InputError) as error:
        sweep(base, ["max_num_seqs=-1,0,32", "engine.max_num_sequences=3", "gpu=h100-smx,a100-sxm-80gb"])
    told = faults(error)
    start = "--grid max_num_seqs=-1,0,32: engine.max_num_seqs"
    assert any(line.startswith(start) and "(got -1)" in line for line in told)
    assert any("max_num_sequences" in line and "did you mean 'max_num_seqs'" in line for line in told)
    assert any("h100-smx" in line and "h100-sxm" in line for line in told)
    assert len(told) == len(set(told))


def test_a_field_given_twice_or_inside_another(base):
    with pytest.raises(InputError, match="is given twice"):
        sweep(base, ["max_num_seqs=1,2", "engine.max_num_seqs=3,4"])
    with pytest.raises(InputError, match="one is inside the other"):
        sweep(base, ["lengths={kind: fixed, prompt_tokens: 9, output_tokens: 9}", "lengths.kind=fixed"])


def test_too_many_points_are_refused_before_they_are_made(base, monkeypatch):
    monkeypatch.setattr(axes_module, "MOST_RATES", 10)
    with pytest.raises(InputError, match=r"1,000,000 points with 5 seeds each are more than 100,000 runs"):
        sweep(base, [f"{field}=1..1000:1" for field in ("max_num_seqs", "max_num_batched_tokens")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": 0.0}, "--precision"),
        ({"precision": float("nan")}, "--precision"),
        ({"precision": 0.1, "replications": 3}, "found by --precision"),
        ({"seeds": [1, 1]}, "distinct"),
        ({"seeds": [-1]}, "distinct"),
        ({"seeds": []}, "distinct"),
        ({"seeds": [1], "replications": 2}, "leaves no choice"),
        ({"requests": 0}, "at least 1"),
        ({"rates": [float("nan")]}, "rate_per_s"),
        ({"grids": {"engine.max_num_seqs": []}}, "has no values"),
    ],
)
def test_options_that_make_no_sense(base, options, message):
    with pytest.raises(InputError, match=message):
        sweep(base, **options)


def test_a_combination_that_cannot_be_fails_alone_and_says_why(base):
    found = sweep(
        base,
        {"max_num_seqs": [16, 512], "max_num_batched_tokens": [256, 1024]},
        replications=1,
        options=HERE,
    )
    ((name, why),) = found.failed
    assert name == "max_num_seqs 512, max_num_batched_tokens 256"
    assert "max_num_batched_tokens" in why
    assert list(found.summary["replications"]) == [1, 1, 0, 1]


def test_a_model_that_does_not_fit_fails_alone_too(base):
    found = sweep(base, {"model": ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"]}, replications=1)
    ((name, why),) = found.failed
    assert "70B" in name
    assert "GiB" in why
    assert found.best.setting == {"model": "meta-llama/Llama-3.1-8B"}


# --- what comes out -----------------------------------------------------------------------------------------


def test_the_table_has_a_row_for_each_run_with_the_numbers_of_that_run(base, rates):
    assert len(rates.table) == 12
    row = rates.table.iloc[4]
    alone = load_scenario("quickstart", [*SMALL, "workload.rate_per_s=20", "seed=1", "slo={tpot_p90: 15ms}"])
    summary = simulate(alone).summary
    assert (row["workload.rate_per_s"], row["replication"], row["seed"]) == (20, 1, 1)
    assert row["p90_ttft_ms"] == summary["p90_ttft_ms"]
    assert row["attainment_tpot_p90"] == summary["slo"]["tpot_p90"]["attainment"]


def test_intervals_are_over_replications_and_shares_stay_shares(rates):
    at_20 = rates.table[rates.table["workload.rate_per_s"].eq(20)]
    row = rates.summary.iloc[1]
    values = at_20["mean_ttft_ms"].to_numpy()
    assert row["mean_ttft_ms"] == pytest.approx(values.mean())
    half = 4.302653 * values.std(ddof=1) / np.sqrt(3)
    assert row["mean_ttft_ms_high"] - row["mean_ttft_ms"] == pytest.approx(half, rel=1e-6)
    assert (rates.summary["slo_attainment_high"] <= 1.0).all()
    assert (rates.summary["slo_attainment_low"] >= 0.0).all()
    perfect = rates.summary.iloc[0]
    assert perfect["slo_attainment"] == 1.0
    assert 0.97 < perfect["slo_attainment_low"] < 1.0  # 180 requests in three runs, all good


def test_percentiles_of_too_few_are_marked_or_missing(rates):
    """Sixty requests have 0.6 above p99, 3 above p95, 6 above p90 and 30 above the median."""
    row = rates.summary.iloc[0]
    assert np.isnan(row["p99_ttft_ms"])
    assert np.isfinite(row["p90_ttft_ms"])
    assert "p90_ttft_ms" in row["thin_percentiles"].split()
    assert "median_ttft_ms" not in row["thin_percentiles"].split()


def test_the_answer_names_the_highest_rate_and_what_breaks_first(rates):
    (capacity,) = rates.capacities
    assert capacity.first_to_break == "tpot_p90"
    assert 5 < capacity.joint.estimate < 80
    assert capacity.tried[0] <= capacity.joint.estimate <= capacity.tried[1]
    assert capacity.joint.estimate == pytest.approx(capacity.by_target["tpot_p90"].estimate)
    assert capacity.by_target["ttft_p90"].estimate > capacity.joint.estimate
    verdicts = list(rates.summary["verdict"])
    assert (verdicts[0], verdicts[-1]) == ("met", "missed")


def test_equal_cells_are_called_equal_and_a_worse_one_is_not(base):
    found = sweep(
        base,
        {"max_num_seqs": [2, 60, 64, 512]},
        slo="ttft_p90=300ms,tpot_p90=50ms",
        rates=None,
        replications=4,
        options=HERE,
    )
    assert found.best.equals == 3
    assert found.best.setting["engine.max_num_seqs"] != 2
    assert found.flags.startswith("--max-num-seqs ")


def test_precision_asks_for_as_many_replications_as_it_takes(base):
    loose = sweep(base, {"max_num_seqs": [8]}, precision=0.5, options=HERE)
    tight = sweep(base, {"max_num_seqs": [8]}, precision=0.12, most_replications=40, options=HERE)
    assert list(loose.summary["replications"]) == [10]
    (count,) = tight.summary["replications"]
    assert 10 < count <= 40
    row = tight.summary.iloc[0]
    if not tight.runs.unreached:
        assert (row["request_goodput_high"] - row["request_goodput"]) / row["request_goodput"] <= 0.12
    short = sweep(base, {"max_num_seqs": [8]}, precision=0.001, most_replications=10, options=HERE)
    assert "after 10 replications" in short.runs.unreached[0]


def test_figures_that_fit_are_offered_and_drawn(rates, base):
    assert rates.figures == ["attainment", "saturation", "ttft_throughput", "tpot_throughput", "pareto"]
    assert rates.plot().get_ylabel() == "requests within SLO"
    with pytest.raises(ValueError, match="no figure 'heatmap'"):
        rates.plot("heatmap")


def test_the_folder_is_whole_and_the_same_every_time(rates, tmp_path):
    first = rates.write(tmp_path / "a")
    second = rates.write(tmp_path / "b")
    assert first.name == second.name
    names = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    assert names == sorted(
        ["base.resolved.yaml", "points.csv", "replications.csv", "report.html", "report.md", "sweep.json"]
        + [f"figures/{name}.png" for name in rates.figures]
    )
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    told = json.loads((first / "sweep.json").read_text(encoding="utf-8"))
    assert told["capacities"][0]["first_to_break"] == "tpot_p90"
    assert len(told["points"]) == 4
    assert rates.write(tmp_path / "a") == first  # again, over the old one


def test_the_folder_is_another_for_whatever_else_is_asked(base, tmp_path):
    def name(**asked):
        options = {"rates": [5], "seeds": [1], "options": HERE, "slo": "ttft_p90=500ms"} | asked
        return sweep(base, **options).write(tmp_path, draw=False).name

    asked = [
        {},
        {"prices": "h100-sxm=4.00"},
        {"prices": "h100-sxm=5.00"},
        {"slo": "ttft_p90=400ms"},
        {"warm_up": 1.0},
        {"requests": 50},
        {"seeds": [7]},
    ]
    assert len({name(**each) for each in asked}) == len(asked)
    assert name(prices="h100-sxm=4.0") == name(prices="h100=4")


def test_the_public_name():
    assert sim.sweep is sweep


def test_a_warm_up_is_found_and_left_out_of_every_run(base):
    """An engine starts empty: the first requests have it to themselves."""
    found = sweep(base, {"max_num_seqs": [4, 64]}, requests=400, replications=1, warm_up="auto", options=HERE)
    (note,) = found.notes
    assert "found by MSER-5" in note
    warm_ups = {outcomes[0].summary["warmup_s"] for outcomes in found.runs.outcomes}
    assert len(warm_ups) == 1  # the same requests are left in every cell
    assert found.table["completed"].max() <= 400
    given = sweep(base, {"max_num_seqs": [64]}, warm_up=2.0, replications=1, options=HERE)
    assert given.runs.outcomes[0][0].summary["warmup_s"] == 2.0
    with pytest.raises(InputError, match="--warm-up"):
        sweep(base, warm_up=float("nan"))


def test_where_the_warm_up_leaves_no_request_nothing_is_said_of_the_targets(base):
    found = sweep(base, rates=[5, 20], replications=2, slo="ttft_p90=500ms", warm_up=1e6, options=HERE)
    assert list(found.summary["verdict"]) == ["no data", "no data"]
    assert found.capacities == ()
    assert "every target is met" not in found.as_text().lower()


def test_the_knob_and_the_budget_have_figures_of_their_own(base):
    one = sweep(base, {"max_num_batched_tokens": [256, 2048]}, replications=1, options=HERE)
    assert one.figures == ["knob_curves", "budget_strips"]
    assert one.plot("budget_strips").get_ylabel() == "tokens in step"
    with pytest.raises(ValueError, match="several panels"):
        one.plot("knob_curves", one.plot("knob_curves"))


def test_prices_tell_what_a_million_tokens_cost_within_the_targets(base):
    found = sweep(
        base,
        {"gpu": ["h100-sxm", "a100-sxm-80gb"]},
        rates=[5, 40],
        slo="ttft_p90=1s,tpot_p90=30ms",
        prices="h100=4.00,a100-sxm-80gb=2.00",
        replications=1,
        options=HERE,
    )
    row = found.summary.iloc[0]
    assert list(found.summary["cost_per_h"]) == [4.0, 2.0, 4.0, 2.0]
    per_million = 4.0 / (row["output_throughput"] * 3600.0) * 1e6
    assert row["cost_per_1m_output_tokens"] == pytest.approx(per_million)
    assert "capacity_cost" in found.figures
    assert found.plot("capacity_cost").get_xlabel() == "thousand requests within SLO per $"
    with pytest.raises(InputError, match="--prices"):
        sweep(base, rates=[5], prices="h100-sxm=-1")


def test_a_trace_that_is_not_there_is_a_mistake_where_it_is_named(base, tmp_path):
    with pytest.raises(InputError, match=r"^scenarios/mooncake-h100\.yaml:\d+:3: workload\.path: no such"):
        sweep("mooncake-h100", {"max_num_seqs": [64, 128]}, rates=[5], replications=1, options=HERE)
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,10\n")
    trace = load_scenario("mooncake-h100", [f"workload.path={tmp_path / 't.csv'}"])
    with pytest.raises(InputError) as caught:
        sweep(trace, [f"workload.path={tmp_path / 't.csv'},gone.csv"], replications=1, options=HERE)
    (fault,) = caught.value.faults
    assert (fault.where or "").startswith("--grid workload.path")
    assert fault.message == "no such file: gone.csv"


def test_a_gpu_in_use_without_a_price_is_named(base):
    found = sweep(base, rates=[5], prices="a100-sxm-80gb=2.00", replications=1, options=HERE)
    assert "no price for h100-sxm: its cost is left out" in found.as_text()
