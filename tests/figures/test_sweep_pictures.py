"""Figures of sweeps on fixed tables look as they did when someone last looked."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from sim.figures import (
    latency_parts,
    plot_attainment,
    plot_budget_strips,
    plot_capacity_cost,
    plot_decomposition,
    plot_fairness,
    plot_knob_curves,
    plot_kv_cliff,
    plot_latency_throughput,
    plot_pareto,
    plot_preemption_tax,
    plot_preemptions_per_request,
    plot_saturation,
    plot_slo_heatmap,
)
from sim.figures.style import COLUMN_IN, RC, blank_figure
from tests.figures.helpers import make_requests

picture = pytest.mark.mpl_image_compare(
    baseline_dir="baseline", style=RC, tolerance=2, savefig_kwargs={"dpi": 80}, deterministic=True
)
RATES = (1.0, 2.0, 3.0, 4.0, 5.0)


def make_sweep() -> pd.DataFrame:
    """Two configurations over five rates."""
    one = pd.DataFrame(
        {
            "label": "budget 512",
            "rate_per_s": RATES,
            "attainment": (1.0, 1.0, 0.97, 0.6, 0.1),
            "attainment_low": (1.0, 0.99, 0.94, 0.5, 0.02),
            "attainment_high": (1.0, 1.0, 0.99, 0.7, 0.18),
            "ttft_attainment": (1.0, 1.0, 0.97, 0.62, 0.12),
            "tpot_attainment": (1.0, 1.0, 1.0, 0.98, 0.95),
            "request_throughput": (1.0, 1.99, 2.95, 3.5, 3.52),
            "request_goodput": (1.0, 1.99, 2.9, 2.1, 0.4),
        }
    )
    other = one.assign(
        label="budget 2048",
        attainment=(1.0, 0.999, 0.96, 0.9, 0.5),
        attainment_low=(0.99, 0.99, 0.93, 0.85, 0.4),
        attainment_high=(1.0, 1.0, 0.98, 0.94, 0.6),
        ttft_attainment=(1.0, 1.0, 1.0, 0.99, 0.7),
        tpot_attainment=(1.0, 0.999, 0.96, 0.91, 0.6),
        request_throughput=(1.0, 2.0, 3.0, 3.9, 4.2),
        request_goodput=(1.0, 2.0, 2.9, 3.5, 2.1),
    )
    return pd.concat([one, other], ignore_index=True)


@picture
def test_attainment_of_two_configurations() -> Figure:
    figure = blank_figure()
    plot_attainment(make_sweep(), figure, target=0.9)
    return figure


@picture
def test_attainment_of_one_configuration_per_gpu() -> Figure:
    figure = blank_figure()
    plot_attainment(make_sweep().query("label == 'budget 512'").drop(columns="label"), figure, num_gpus=4)
    return figure


@picture
def test_saturation_of_two_configurations() -> Figure:
    figure = blank_figure()
    plot_saturation(make_sweep(), figure)
    return figure


@picture
def test_pareto_of_two_gpus_with_an_slo() -> Figure:
    figure = blank_figure()
    table = pd.DataFrame(
        {
            "label": ["a100-sxm-80gb"] * 3 + ["h100-sxm"] * 3,
            "point": ["TP1", "TP2", "TP4"] * 2,
            "tokens_per_s_per_user": [18.0, 31.0, 44.0, 35.0, 58.0, 80.0],
            "tokens_per_s_per_gpu": [1500.0, 1200.0, 700.0, 2900.0, 2200.0, 1300.0],
        }
    )
    plot_pareto(table, figure, tpot_slo_s=0.040)
    return figure


@picture
def test_heatmap_of_two_knobs() -> Figure:
    figure = blank_figure()
    cells = [(seqs, budget) for seqs in (32, 64, 128) for budget in (512, 2048, 8192)]
    table = pd.DataFrame(cells, columns=["max_num_seqs", "max_num_batched_tokens"])
    table["attainment"] = (0.4, 0.62, 0.55, 0.88, 0.97, 0.71, 0.9, 0.99, 0.13)
    plot_slo_heatmap(table.iloc[:-1], "max_num_batched_tokens", "max_num_seqs", figure)
    return figure


@picture
def test_preemption_tax_of_two_policies() -> Figure:
    figure = blank_figure(9.0, 3.0)
    left, right = figure.subplots(1, 2)
    kv = (10e3, 20e3, 30e3, 40e3)
    one = pd.DataFrame(
        {"label": "last arrived", "kv_tokens": kv, "recomputed_token_share": (0.3, 0.2, 0.04, 0)}
    )
    one["share_low"], one["share_high"] = (
        one["recomputed_token_share"] * 0.8,
        one["recomputed_token_share"] * 1.2,
    )
    other = one.assign(label="least computed")
    other[["recomputed_token_share", "share_low", "share_high"]] *= 0.4
    plot_preemption_tax(pd.concat([one, other]), left)
    calm = make_requests(300)
    rough = calm.assign(num_preemptions=calm["num_preemptions"] * (1 + calm["request_id"] % 4))
    plot_preemptions_per_request({"last arrived": rough, "least computed": calm}, right)
    return figure


@picture
def test_decomposition_by_band() -> Figure:
    figure = blank_figure()
    plot_decomposition(latency_parts(make_requests(1000), "ttft"), figure)
    return figure


@picture
def test_latency_over_throughput_with_a_thin_percentile() -> Figure:
    figure = blank_figure()
    sweep = make_sweep().assign(output_throughput=lambda t: 250.0 * t["request_throughput"])
    sweep["median_ttft_ms"] = [40.0, 45, 60, 400, 9000, 50, 52, 58, 120, 3000]
    sweep["p99_ttft_ms"] = 4.0 * sweep["median_ttft_ms"]
    sweep["p99_ttft_ms_low"], sweep["p99_ttft_ms_high"] = (
        0.8 * sweep["p99_ttft_ms"],
        1.3 * sweep["p99_ttft_ms"],
    )
    sweep["completed"] = [400, 800, 1200, 1600, 2000] * 2
    plot_latency_throughput(sweep, figure, slo_s=1.0)
    return figure


@picture
def test_capacity_for_the_money_at_column_width() -> Figure:
    figure = blank_figure(COLUMN_IN, 2.2)
    table = pd.DataFrame(
        {
            "label": ["4 × A", "8 × B", "1 × C"],
            "capacity_per_s": [60.0, 55.0, float("nan")],
            "capacity_low": [57.0, 50.0, float("nan")],
            "capacity_high": [62.0, 58.0, float("nan")],
            "cost_per_h": [16.0, 20.0, 7.0],
        }
    )
    plot_capacity_cost(table, figure)
    return figure


@picture
def test_fairness_of_two_policies_towards_two_classes() -> Figure:
    figure = blank_figure()
    fcfs = make_requests(1500).assign(
        **{"class": lambda t: np.where(t["request_id"] % 8 == 0, "batch", "chat")}
    )
    first = fcfs.assign(first_token_s=fcfs["first_token_s"] + np.where(fcfs["class"].eq("batch"), 2.0, 0.0))
    plot_fairness({"fcfs": fcfs, "chat first": first}, figure)
    return figure


def make_cliff() -> pd.DataFrame:
    """Two seeds of p99 and median TTFT over KV blocks, with a cliff at 1,000."""
    blocks = np.arange(800.0, 1250.0, 50.0)
    p99 = 80.0 + 3000.0 / (1.0 + np.exp((blocks - 1000.0) / 25.0))
    seeds = [
        pd.DataFrame(
            {"kv_blocks": blocks, "p99_ttft_ms": p99 * factor, "median_ttft_ms": 40.0, "completed": 400}
        )
        for factor in (0.9, 1.1)
    ]
    return pd.concat(seeds, ignore_index=True)


@picture
def test_the_kv_cliff_of_two_seeds_at_column_width() -> Figure:
    figure = blank_figure(COLUMN_IN, 2.4)
    plot_kv_cliff(make_cliff(), figure, slo_s=1.0)
    return figure


@picture
def test_one_knob_in_four_panels() -> Figure:
    figure = blank_figure(5.0, 4.0)
    one = pd.DataFrame(
        {
            "engine.watermark": (0.0, 0.05, 0.1, 0.15),
            "preemptions_per_request": (0.5, 0.2, 0.05, 0.0),
            "median_ttft_ms": (900.0, 1000.0, 1200.0, 1500.0),
            "p99_ttft_ms": (4000.0, 4100.0, 4500.0, 5200.0),
            "median_itl_ms": (9.0, 9.0, 8.9, 8.8),
            "p99_itl_ms": (40.0, 30.0, 22.0, 18.0),
            "p99_itl_ms_low": (35.0, 27.0, 20.0, 16.0),
            "p99_itl_ms_high": (45.0, 33.0, 24.0, 20.0),
            "output_throughput": (2000.0, 2010.0, 1980.0, 1900.0),
        }
    )
    plot_knob_curves(one, "engine.watermark", figure)
    return figure


@picture
def test_steps_and_gaps_of_two_budgets() -> Figure:
    figure = blank_figure(6.0, 3.6)
    plot_budget_strips({512: make_budget_steps(512), 4096: make_budget_steps(4096)}, figure)
    return figure


def make_budget_steps(budget: int) -> pd.DataFrame:
    """Prompts of 3,000 tokens every 60 steps of 20 decodes; a step takes 10 ms and 1 ms per 20 tokens."""
    prefill = np.zeros(600)
    for begin in range(0, 600, 60):
        chunks = [min(budget - 20, 3000 - done) for done in range(0, 3000, budget - 20)]
        prefill[begin : begin + len(chunks)] = chunks
    took_s = 0.010 + (20 + prefill) / 20_000
    columns = {"end_s": np.cumsum(took_s), "step_time_s": took_s, "replica": 0, "decode_tokens": 20}
    return pd.DataFrame(columns | {"prefill_tokens": prefill.astype(int), "recompute_tokens": 0})
