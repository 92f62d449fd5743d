"""The error band that goes with a prediction: of its own kind, or of the nearest that was measured enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from sim.evidence.validate import MeasuredRun, ReplayedRun
from sim.evidence.validate.answer import make_bands
from sim.evidence.validate.scoring import MetricError
from sim.results import error_bands
from sim.results.error_bands import Kind, error_band, fell_behind, nearest_band
from sim.scenario import load_scenario


def replayed(
    run_id: str, error_percent: float, *, gpu: str = "h100-sxm", model: str = "Qwen/Qwen3-14B"
) -> ReplayedRun:
    run = MeasuredRun(run_id=run_id, gpu=gpu, model=model, load="poisson")
    found = MetricError(run, run_id, "ttft_mean", 100.0, 100.0 + error_percent)
    return ReplayedRun(run, {}, (found,), ())


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> Iterable[dict[str, object]]:
    """Bands of four dense runs on H100 and of one on A100, in place of the shipped ones."""
    made = make_bands(
        [replayed(f"r{error}", error) for error in (1.0, -2.0, 3.0, -4.0)]
        + [replayed("a100", 50.0, gpu="a100-sxm-80gb")],
        "dryserve validate test.csv",
    )
    monkeypatch.setattr(error_bands, "_shipped", lambda: made)
    return made


def test_a_band_tells_median_p90_and_rows_of_its_own_kind(shipped: dict[str, object]) -> None:
    kind = Kind.of("h100-sxm", "Qwen/Qwen3-14B", saturated=False)
    assert kind is not None
    band = nearest_band(kind)
    assert band is not None
    assert band.exact
    assert band.errors["ttft_mean"] == (2.5, 3.7, 4)
    assert band.command == "dryserve validate test.csv"


def test_a_kind_with_too_few_rows_takes_the_nearest_wider_one(shipped: dict[str, object]) -> None:
    """One run on A100 is no band; the next wider kind with three rows is the same load on any GPU."""
    kind = Kind.of("a100-sxm-80gb", "Qwen/Qwen3-14B", saturated=False)
    assert kind is not None
    band = nearest_band(kind)
    assert band is not None
    assert not band.exact
    assert band.errors["ttft_mean"][2] == 5
    assert "nearest kind" in band.line()


def test_a_kind_unlike_anything_measured_has_no_band(shipped: dict[str, object]) -> None:
    kind = Kind.of("h100-sxm", "Qwen/Qwen3-14B", saturated=True)
    assert kind is not None
    assert nearest_band(kind) is None


def test_unknown_names_have_no_kind() -> None:
    assert Kind.of("h1000", "Qwen/Qwen3-14B", saturated=False) is None
    assert Kind.of("h100-sxm", "nobody/nothing", saturated=False) is None


def test_a_scenario_gets_the_band_of_its_gpu_model_and_load() -> None:
    band = error_band(load_scenario("quickstart"))
    assert band is not None
    assert set(band.errors) <= set(error_bands.BANDED)
    assert all(0 <= median <= p90 for median, p90, _ in band.errors.values())
    assert "TPOT" in band.line()


def test_a_run_that_falls_behind_gets_the_band_of_saturated_engines() -> None:
    """One server of 1 s: at 0.8 requests/s it keeps up, at 1.25 it is a fifth behind."""
    for rate_per_s, behind in ((0.8, False), (1.25, True)):
        arrival_s = np.cumsum(np.random.default_rng(5).exponential(1.0 / rate_per_s, 800))
        end_s = np.empty(800)
        free_s = 0.0
        for i, at_s in enumerate(arrival_s):
            free_s = end_s[i] = max(free_s, at_s) + 1.0
        assert fell_behind(arrival_s, end_s) is behind
    scenario = load_scenario("quickstart")
    above, below = error_band(scenario, overloaded=True), error_band(scenario)
    assert above is not None
    assert below is not None
    assert "saturated" in above.kind
    assert "open loop" in below.kind


def test_few_requests_and_those_that_never_end_are_judged_with_care() -> None:
    assert not fell_behind(np.array([]), np.array([]))
    assert not fell_behind(np.array([0.0, 1.0, 2.0]), np.array([5.0, 6.0, np.nan]))
    assert fell_behind(np.arange(100.0), np.full(100, np.nan))


def test_a_run_that_is_still_filling_up_is_not_judged() -> None:
    """Nobody waits: every request takes 4 s; 200 are in flight after 2 s of arrivals, 400 after 4 s."""
    arrival_s = np.arange(500.0) / 100.0
    assert not fell_behind(arrival_s, arrival_s + 4.0)


def test_a_client_that_holds_requests_back_all_the_time_is_behind() -> None:
    """Four in flight, each 4 s long, one sent whenever one ends: that is the cap of 4, and no cap of 5."""
    arrival_s = np.arange(100.0)
    assert fell_behind(arrival_s, arrival_s + 4.0 - 1e-9, max_concurrency=4)
    assert not fell_behind(arrival_s, arrival_s + 4.0 - 1e-9, max_concurrency=5)
    assert not fell_behind(arrival_s, arrival_s + 4.0 - 1e-9)


def test_throughput_below_saturation_makes_no_band() -> None:
    """It only repeats the offered rate."""
    run = MeasuredRun(run_id="r", gpu="h100-sxm", model="Qwen/Qwen3-14B", load="poisson")
    found = [MetricError(run, f"r{i}", "open_loop_out_tput_tok_s", 10.0, 10.0) for i in range(3)]
    assert make_bands([ReplayedRun(run, {}, tuple(found), ())], "command")["bands"] == {}


def test_engines_of_the_generation_before_v1_make_no_band() -> None:
    old = [replayed(f"r{i}", 1.0) for i in range(3)]
    made = make_bands([replace(o, run=replace(o.run, engine_gen="V0")) for o in old], "command")
    assert made["bands"] == {}
