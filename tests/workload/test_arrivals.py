"""Arrivals have the rate, the burstiness and the drift that were asked for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sim.scenario.yaml_text import Data
from tests.workload.helpers import FIXED, build, gaps_s, poisson

MANY = 20_000


def fits(section: dict[str, Data], distribution: str, parameters: tuple[float, ...]) -> bool:
    """Whether the gaps of many seeds come from the distribution: then the p-values of a test are uniform."""
    gaps = [gaps_s(build(section, seed=seed).table) for seed in range(40)]
    p_values = [stats.kstest(each, distribution, args=parameters).pvalue for each in gaps]
    return bool(stats.kstest(p_values, "uniform").pvalue > 0.001)


def test_poisson_gaps_are_exponential() -> None:
    section = {**poisson(5000), "rate_per_s": 4}
    assert fits(section, "expon", (0, 1 / 4))
    assert not fits(section, "expon", (0, 1 / 4.1))


@pytest.mark.parametrize("burstiness", [0.25, 0.842, 1, 4, 100])
def test_burstiness_is_the_shape_of_gamma_gaps(burstiness: float) -> None:
    """vLLM: gaps ~ gamma(shape b, scale 1/(R b)); so the mean is 1/R and CV = 1/sqrt(b)."""
    section = {**poisson(5000), "kind": "gamma", "rate_per_s": 5, "burstiness": burstiness}
    assert fits(section, "gamma", (burstiness, 0, 1 / (5 * burstiness)))
    gaps = gaps_s(build({**section, "num_requests": MANY}).table)
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_constant_gaps_are_equal() -> None:
    assert build({**poisson(4), "kind": "constant", "rate_per_s": 2}).table.arrival_s.tolist() == [
        0.5,
        1,
        1.5,
        2,
    ]


def test_exact_rate_puts_the_last_arrival_where_vllm_bench_puts_it() -> None:
    """The delays are rescaled so that the last is num_prompts / rate."""
    table = build({**poisson(1000), "rate_per_s": 8, "exact_rate": True}).table
    assert table.arrival_s[-1] == pytest.approx(1000 / 8, rel=1e-12)
    loose = build({**poisson(1000), "rate_per_s": 8}).table
    assert np.allclose(
        table.arrival_s / table.arrival_s[-1], loose.arrival_s / loose.arrival_s[-1], rtol=1e-12
    )


def test_a_duration_gives_as_many_as_arrive_in_it() -> None:
    section = {"kind": "poisson", "rate_per_s": 10, "duration_s": 2000}
    counts = [len(build(section, seed=seed).table) for seed in range(20)]
    assert np.mean(counts) == pytest.approx(20_000, abs=4 * np.sqrt(20_000 / 20))
    assert np.var(counts) == pytest.approx(20_000, rel=0.8)
    assert build(section).table.arrival_s[-1] <= 2000
    assert len(build({**section, "kind": "constant"}).table) == 20_000


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = build(poisson(100)).table, build(poisson(5000)).table
    timed = build({"kind": "poisson", "rate_per_s": 1, "duration_s": float(short.arrival_s[-1])}).table
    assert np.array_equal(short.arrival_s, long.arrival_s[:100])
    assert np.array_equal(short.arrival_s, timed.arrival_s)


def test_another_rate_keeps_the_pattern_of_arrivals() -> None:
    """Common random numbers: twice the rate is the same run played at double speed."""
    slow, fast = build(poisson(500)).table, build({**poisson(500), "rate_per_s": 2}).table
    assert np.allclose(slow.arrival_s, 2 * fast.arrival_s)


def test_the_rate_follows_its_curve() -> None:
    curve = ((0, 1), (1000, 3), (2000, 0), (3000, 0.5))
    table = build({"kind": "poisson", "rate_per_s": 10, "duration_s": 4000, "rate_curve": curve}).table
    counts, _ = np.histogram(table.arrival_s, bins=[0, 1000, 2000, 3000, 4000])
    for count, expected in zip(counts, [10_000, 30_000, 0, 5_000], strict=True):
        assert count == pytest.approx(expected, abs=4 * np.sqrt(expected))


def test_gaps_inside_a_piece_of_the_curve_keep_their_shape() -> None:
    curve = ((0, 1), (1000, 5))
    section = {"kind": "gamma", "burstiness": 2, "rate_per_s": 4, "duration_s": 2000, "rate_curve": curve}
    p_values = []
    for seed in range(40):
        arrivals = build(section, seed=seed).table.arrival_s
        gaps = np.diff(arrivals[arrivals > 1000])
        p_values.append(stats.kstest(gaps, "gamma", args=(2, 0, 1 / (20 * 2))).pvalue)
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


def test_a_constant_rate_with_a_curve_is_exact() -> None:
    curve = ((0, 0), (10, 1), (12, 2))
    section = {"kind": "constant", "rate_per_s": 1, "num_requests": 6, "rate_curve": curve}
    assert build(section).table.arrival_s.tolist() == [11, 12, 12.5, 13, 13.5, 14]


def test_an_exact_rate_with_a_curve_ends_where_the_curve_says() -> None:
    curve = ((0, 1), (10, 2))
    section = {**poisson(30), "exact_rate": True, "rate_curve": curve}
    assert build(section).table.arrival_s[-1] == pytest.approx(20)


def test_a_burst_arrives_at_once() -> None:
    workload = build({"kind": "burst", "num_requests": 50})
    assert workload.table.arrival_s.tolist() == [0.0] * 50
    assert (workload.loop, workload.max_concurrency) == ("open", None)


def test_a_closed_loop_has_its_requests_ready_and_a_cap() -> None:
    workload = build({"kind": "closed_loop", "num_requests": 50, "max_concurrency": 8})
    assert workload.table.arrival_s.tolist() == [0.0] * 50
    assert (workload.loop, workload.max_concurrency) == ("closed", 8)


def test_an_open_loop_may_have_a_cap_at_the_client() -> None:
    workload = build({**poisson(5), "max_concurrency": 2, "ignore_eos": True})
    assert (workload.loop, workload.max_concurrency, workload.ignore_eos) == ("open", 2, True)


def test_lengths_do_not_depend_on_how_requests_arrive() -> None:
    lengths = {"kind": "quantiles", "grid": "lmsys"}
    one = build(poisson(200, lengths)).table
    other = build({**poisson(200, lengths), "kind": "gamma", "burstiness": 0.3, "rate_per_s": 9}).table
    assert np.array_equal(one.prompt_tokens, other.prompt_tokens)
    assert np.array_equal(one.output_tokens, other.output_tokens)


def test_a_million_requests_fit_in_memory() -> None:
    table = build({**poisson(1_000_000, FIXED)}).table
    columns = (getattr(table, name) for name in table.__dataclass_fields__)
    assert sum(column.nbytes for column in columns if isinstance(column, np.ndarray)) < 50e6
    assert table.prompt_ranges(999_999)[0][1] == 100
