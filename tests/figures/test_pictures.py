"""Each figure of a fixed table looks as it did when someone last looked at it.

After a wanted change, draw the baselines anew with
`pytest tests/figures/test_pictures.py --mpl-generate-path=tests/figures/baseline`, and look at every one.
"""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.figure import Figure

from sim.figures import (
    plot_kv_timeline,
    plot_latency_cdf,
    plot_latency_panels,
    plot_load_timeline,
    plot_request_waterfall,
    plot_step_composition,
)
from sim.figures.style import COLUMN_IN, RC, blank_figure
from tests.figures.helpers import make_fleet, make_requests, make_steps

picture = pytest.mark.mpl_image_compare(
    baseline_dir="baseline", style=RC, tolerance=2, savefig_kwargs={"dpi": 80}, deterministic=True
)


@picture
def test_ttft_of_two_rates_with_an_slo() -> Figure:
    figure = blank_figure()
    plot_latency_cdf(
        {"4 req/s": make_requests(1200), "6 req/s": make_requests(300, slow=2.0, unfinished=9)},
        figure,
        slo={"ttft_p99": 0.4, "tpot_p99": 0.04},
    )
    return figure


@picture
def test_simulated_e2e_dashed_beside_measured() -> Figure:
    figure = blank_figure()
    plot_latency_cdf(make_requests(400), figure, metric="e2e", measured=make_requests(350, slow=1.1))
    return figure


@picture
def test_latency_panels_with_tails() -> Figure:
    figure = blank_figure(9.3, 5.0)
    plot_latency_panels(make_requests(500), figure, slo={"ttft_p99": 0.4, "e2e": 6.0})
    return figure


@picture
def test_load_of_one_replica_with_its_warm_up() -> Figure:
    figure = blank_figure()
    plot_load_timeline(make_steps(), figure, warmup_s=1.0)
    return figure


@picture
def test_load_simulated_over_measured() -> Figure:
    figure = blank_figure()
    plot_load_timeline(make_steps(), figure, measured=make_steps(phase=0.02))
    return figure


@picture
def test_load_of_a_long_run_as_means_with_bands() -> Figure:
    figure = blank_figure()
    plot_load_timeline(make_steps(30_000), figure)
    return figure


@picture
def test_load_of_two_runs_side_by_side() -> Figure:
    figure = blank_figure()
    plot_load_timeline({"one replica": make_steps(), "three replicas": make_fleet()}, figure)
    return figure


@picture
def test_kv_of_two_runs_side_by_side() -> Figure:
    figure = blank_figure()
    runs = {"one replica": make_steps(), "three replicas": make_fleet()}
    plot_kv_timeline(runs, figure, num_blocks={"one replica": 1000, "three replicas": 1600})
    return figure


@picture
def test_kv_of_a_long_run_at_column_width() -> Figure:
    figure = blank_figure(COLUMN_IN, 2.2)
    plot_kv_timeline(make_steps(30_000), figure, num_blocks=1000)
    return figure


@picture
def test_kv_of_one_replica_with_preemptions_and_watermark() -> Figure:
    figure = blank_figure()
    plot_kv_timeline(make_steps(), figure, num_blocks=1000, watermark=0.02)
    return figure


@picture
def test_kv_of_a_fleet_in_shared_panels() -> Figure:
    figure = blank_figure(5.0, 3.8)
    plot_kv_timeline(make_fleet(), figure, num_blocks=1000, warmup_s=1.0)
    return figure


@picture
def test_waterfall_with_preemptions_cut_out() -> Figure:
    figure = blank_figure()
    requests = make_requests(24)
    begun = requests.loc[[3, 20], "first_token_s"].to_numpy()
    stalls = pd.DataFrame({"request_id": [3, 20], "preempted_s": begun + 0.5, "resumed_s": begun + 1.2,
                           "next_token_s": begun + 1.5})  # fmt: skip
    plot_request_waterfall(requests, figure, stalls=stalls, max_rows=22)
    return figure


@picture
def test_steps_seen_closely_with_budget_and_step_times() -> Figure:
    figure = blank_figure()
    plot_step_composition(make_steps(), figure, t0=0.9, t1=1.8, token_budget=2048, step_time=True)
    return figure


@picture
def test_steps_of_a_long_run_as_means_with_the_largest() -> Figure:
    figure = blank_figure()
    plot_step_composition(make_steps(3000), figure, token_budget=2048)
    return figure
