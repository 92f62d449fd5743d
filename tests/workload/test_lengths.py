"""Generated lengths have the distribution that was asked for, and that of the data sets they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sim.scenario.quantile_grids import grid, grid_names
from sim.workload.table import RequestTable
from tests.workload.helpers import build, poisson

MANY = 40_000


def lengths_of(**section: object) -> RequestTable:
    return build(poisson(MANY, section)).table  # type: ignore[arg-type]


def test_fixed_lengths() -> None:
    table = lengths_of(kind="fixed", prompt_tokens=7, output_tokens=3)
    assert set(table.prompt_tokens) == {7}
    assert set(table.output_tokens) == {3}


def test_uniform_lengths_reach_both_ends_equally_often() -> None:
    table = lengths_of(kind="uniform", prompt_tokens=(3, 7), output_tokens=(1, 1))
    values, counts = np.unique(table.prompt_tokens, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    assert stats.chisquare(counts).pvalue > 0.01
    assert set(table.output_tokens) == {1}


def test_lognormal_lengths_by_their_mean() -> None:
    table = lengths_of(
        kind="lognormal", prompt={"mean": 800, "sigma": 1.0}, output={"mean": 200, "sigma": 0.5}
    )
    assert table.prompt_tokens.mean() == pytest.approx(800, rel=0.03)
    assert table.output_tokens.mean() == pytest.approx(200, rel=0.01)
    assert np.log(table.prompt_tokens).std() == pytest.approx(1.0, rel=0.02)


def test_lognormal_lengths_by_mu() -> None:
    """Median exp(mu); 84.13 % lie below exp(mu + sigma)."""
    table = lengths_of(kind="lognormal", prompt={"mu": 6.633, "sigma": 0.985}, output={"mu": 5, "sigma": 0})
    assert np.median(table.prompt_tokens) == pytest.approx(np.exp(6.633), rel=0.02)
    assert np.mean(table.prompt_tokens <= np.exp(6.633 + 0.985)) == pytest.approx(0.8413, abs=0.006)
    assert set(table.output_tokens) == {round(np.exp(5))}


def test_lognormal_lengths_are_cut_at_their_ends() -> None:
    table = lengths_of(
        kind="lognormal",
        prompt={"mean": 100, "sigma": 2, "min": 20, "max": 500},
        output={"mu": -5, "sigma": 1},
    )
    assert (table.prompt_tokens.min(), table.prompt_tokens.max()) == (20, 500)
    assert set(table.output_tokens) == {1}


def test_a_length_that_no_machine_could_hold_stops_at_the_bound() -> None:
    table = build(
        poisson(50, {"kind": "lognormal", "prompt": {"mu": 20, "sigma": 10}, "output": {"mu": 0, "sigma": 0}})
    ).table
    assert table.prompt_tokens.max() == 1 << 23
    assert table.prompt_tokens.min() >= 1


def test_marginals_of_two_kinds_with_a_rank_correlation() -> None:
    table = lengths_of(
        kind="marginals",
        prompt={"kind": "uniform", "tokens": (100, 1000)},
        output={"kind": "lognormal", "mean": 300, "sigma": 0.7},
        spearman=-0.6,
    )
    rho = stats.spearmanr(table.prompt_tokens, table.output_tokens).statistic
    assert rho == pytest.approx(-0.6, abs=0.02)


# Published statistics: mean, p50, p90, p99 of prompts, the same of outputs, Spearman's rank correlation.
PUBLISHED = {
    "azure2023_code": ((2048, 1469, 5188, 7436), (27.9, 13, 55, 251), -0.0215),
    "azure2023_conv": ((1155, 1020, 2734, 4142), (211, 129, 424, 601), 0.0728),
    "mooncake_conversation": ((12035, 6909, 27367, 85400), (343, 350, 597, 1119), 0.0717),
    "sharegpt_nanoflow": ((299, 36, 829, 3473), (324, 280, 683, 999), 0.15),
    "lmsys_nanoflow": ((92.2, 28, 302, 750), (207, 140, 512, 850), 0.2197),
    "bwb_etalon": ((1067, 1037, 1453, 1800), (1613, 1601, 2149, 2533), 0.8053),
    "arxiv_summarization": ((2588, 2730, 3702, 3933), (291, 167, 372, 3271), -0.1138),
    "mlperf_llama3.1-8b_cnndm": ((871, 784, 1479, 2118), (81.6, 74, 123, 180), 0.3278),
    "mlperf_deepseek-r1": ((804, 902, 1281, 1432), (4043, 2194, 9477, 32768), -0.3433),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_grid_has_the_published_statistics_of_its_data_set(name: str) -> None:
    prompts, outputs, spearman = PUBLISHED[name]
    table = lengths_of(kind="quantiles", grid=name)
    for column, published in ((table.prompt_tokens, prompts), (table.output_tokens, outputs)):
        got = (column.mean(), *np.percentile(column, [50, 90, 99]))
        # the mean within its own sampling error; quantiles within one percentile point of their rank
        assert got[0] == pytest.approx(
            published[0], abs=4 * column.std() / np.sqrt(MANY) + 0.01 * published[0]
        )
        for percentile, value in zip((50, 90, 99), published[1:], strict=True):
            slack = min(1.0, (100 - percentile) / 4)
            low, high = np.percentile(column, [percentile - slack, percentile + slack])
            assert low - 1 <= value <= high + 1
    # ties in discrete lengths hide a little of the correlation
    assert stats.spearmanr(table.prompt_tokens, table.output_tokens).statistic == pytest.approx(
        spearman, abs=0.025
    )


def test_reasoning_answers_are_as_long_as_those_of_deepseek_r1() -> None:
    """ServeGen: input mean 1,268; output mean 1,527, p50 792, p99 12,607. Its grid is coarse (5 % steps)."""
    table = lengths_of(kind="quantiles", grid="servegen_deepseek_r1")
    assert table.prompt_tokens.mean() == pytest.approx(1268, rel=0.06)
    assert table.output_tokens.mean() == pytest.approx(1527, rel=0.04)
    assert np.percentile(table.output_tokens, [50, 99]) == pytest.approx([792, 12607], rel=0.05)


def test_a_correlation_may_be_put_in_place_of_the_measured_one() -> None:
    table = lengths_of(kind="quantiles", grid="azure2023_conv", spearman=0.5)
    assert stats.spearmanr(table.prompt_tokens, table.output_tokens).statistic == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", grid_names())
def test_every_grid_is_a_distribution_of_whole_requests(name: str) -> None:
    facts = grid(name)
    assert facts.source
    assert np.all(np.diff(facts.probabilities) > 0)
    for curve in (facts.prompt, facts.output):
        assert len(curve) == len(facts.probabilities)
        assert np.all(np.diff(curve) >= 0)
        assert curve[0] >= 1
    assert -1 <= facts.spearman <= 1


def test_a_mixture_has_its_shares_and_names_its_classes() -> None:
    table = lengths_of(
        kind="mixture",
        components=(
            {
                "name": "chat",
                "weight": 3,
                "lengths": {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 1},
            },
            {
                "name": "code",
                "weight": 1,
                "lengths": {"kind": "fixed", "prompt_tokens": 90, "output_tokens": 2},
            },
        ),
    )
    assert table.class_names == ("chat", "code")
    assert np.mean(table.class_index == 0) == pytest.approx(0.75, abs=0.01)
    assert np.array_equal(table.prompt_tokens, np.where(table.class_index == 0, 10, 90))
    assert np.array_equal(table.output_tokens, np.where(table.class_index == 0, 1, 2))


def test_more_requests_begin_like_fewer() -> None:
    lengths = {"kind": "quantiles", "grid": "sharegpt"}
    few, many = build(poisson(50, lengths)).table, build(poisson(500, lengths)).table
    assert np.array_equal(few.prompt_tokens, many.prompt_tokens[:50])
    assert np.array_equal(few.output_tokens, many.output_tokens[:50])
