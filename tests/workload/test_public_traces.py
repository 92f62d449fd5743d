"""The public traces, read whole, have the statistics that are published of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sim.workload import RequestTable
from tests.workload.helpers import build, gaps_s


def replayed(path: Path, **options: object) -> RequestTable:
    return build({"kind": "trace", "path": str(path), **options}).table  # type: ignore[dict-item]


@dataclass(frozen=True)
class Published:
    """Mean, p50, p90 and p99 of lengths, their rank correlation, and statistics of arrivals."""

    rows: int
    prompt: tuple[float, ...]
    output: tuple[float, ...]
    spearman: float
    rate_per_s: float
    span_s: float
    gap_cv: float
    gap_p50_s: float
    gap_p99_s: float


AZURE = {
    "azure2023_conv": Published(
        19_366, (1155, 1020, 2734, 4142), (211, 129, 424, 601), 0.0728, 5.530, 3502, 1.09, 0.1184, 0.890
    ),
    "azure2023_code": Published(
        8_819, (2048, 1469, 5188, 7436), (27.9, 13, 55, 251), -0.0215, 2.566, 3436, 13.15, 0.0638, 2.205
    ),
}


@pytest.mark.parametrize("name", AZURE)
def test_azure_2023_has_its_published_statistics(name: str, shared_dir: Path) -> None:
    published = AZURE[name]
    table = replayed(shared_dir / "traces" / f"{name}.csv")
    assert len(table) == published.rows
    for column, expected in (
        (table.prompt_tokens, published.prompt),
        (table.output_tokens, published.output),
    ):
        got = (column.mean(), *np.percentile(column, [50, 90, 99]))
        assert got == pytest.approx(expected, rel=0.003, abs=0.5)
    assert stats.spearmanr(table.prompt_tokens, table.output_tokens).statistic == pytest.approx(
        published.spearman, abs=5e-4
    )
    gaps = gaps_s(table)
    assert table.arrival_s[-1] == pytest.approx(published.span_s, abs=0.5)
    assert len(table) / table.arrival_s[-1] == pytest.approx(published.rate_per_s, abs=1e-3)
    assert gaps.std() / gaps.mean() == pytest.approx(published.gap_cv, abs=0.006)
    assert np.percentile(gaps, 50) == pytest.approx(published.gap_p50_s, abs=1e-4)
    assert np.percentile(gaps, 99) == pytest.approx(published.gap_p99_s, abs=1e-3)


@pytest.mark.parametrize(("window_s", "dispersion"), [(1, 1.39), (10, 3.86), (60, 16.13)])
def test_azure_conversations_are_nearly_poisson_at_a_second_and_drift_later(
    window_s: int, dispersion: float, shared_dir: Path
) -> None:
    """Published variance over mean of the counts in windows of 1, 10 and 60 s."""
    arrivals = replayed(shared_dir / "traces" / "azure2023_conv.csv").arrival_s
    counts, _ = np.histogram(arrivals, bins=np.arange(0, arrivals[-1], window_s))
    assert counts.var() / counts.mean() == pytest.approx(dispersion, rel=0.05)


def test_a_generated_hour_resembles_the_recorded_one(shared_dir: Path) -> None:
    """Same lengths by the Kolmogorov-Smirnov distance, and as bursty, as the trace they are made from."""
    trace = replayed(shared_dir / "traces" / "azure2023_conv.csv")
    made = build(
        {
            "kind": "gamma",
            "rate_per_s": 5.53,
            "burstiness": 1 / 1.09**2,
            "num_requests": 19_366,
            "lengths": {"kind": "quantiles", "grid": "azure2023_conv"},
        }
    ).table
    for name in ("prompt_tokens", "output_tokens"):
        assert stats.ks_2samp(getattr(trace, name), getattr(made, name)).statistic < 0.02
    assert gaps_s(made).std() / gaps_s(made).mean() == pytest.approx(1.09, abs=0.03)


SAMPLES = {
    "sharegpt_first_turn_sample4000": "sharegpt",
    "lmsys_chat_first_turn_sample4000": "lmsys",
    "arxiv_summarization_sample4000": "arxiv",
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_grid_agrees_with_a_sample_of_its_data_set(sample: str, shared_dir: Path) -> None:
    recorded = np.loadtxt(shared_dir / "traces" / f"{sample}.csv", delimiter=",", skiprows=1)
    section = {
        "kind": "burst",
        "num_requests": 40_000,
        "lengths": {"kind": "quantiles", "grid": SAMPLES[sample]},
    }
    made = build(section).table  # type: ignore[arg-type]
    assert stats.ks_2samp(recorded[:, 0], made.prompt_tokens).statistic < 0.035
    assert stats.ks_2samp(recorded[:, 1], made.output_tokens).statistic < 0.035


MOONCAKE = "mooncake_conversation_head4000.jsonl"


def reused_blocks(blocks_of_requests: list[list[tuple[int, ...]]]) -> tuple[int, int]:
    """Blocks in all, and those found in an infinite prefix cache: each is known by all blocks before it."""
    known: set[tuple[object, ...]] = set()
    total = hits = 0
    for blocks in blocks_of_requests:
        parent: tuple[object, ...] = ()
        hit = True
        for block in blocks:
            parent = (hash(parent), *block)
            hit = hit and parent in known
            hits += hit
            total += 1
            known.add(parent)
    return total, hits


def test_mooncake_prompts_share_as_much_as_its_hash_ids_say(shared_dir: Path) -> None:
    """The prefix hit ratio of an infinite cache, from our token ranges and from the file's own ids."""
    path = shared_dir / "traces" / MOONCAKE
    records = [json.loads(line) for line in path.read_text().splitlines()]
    from_ids = reused_blocks([[(each,) for each in record["hash_ids"]] for record in records])
    table = replayed(path)
    from_ranges = []
    for index in range(len(table)):
        starts = [
            (start + offset, min(512, length - offset))
            for start, length in table.prompt_ranges(index)
            for offset in range(0, length, 512)
        ]
        from_ranges.append(starts)
    assert reused_blocks(from_ranges) == from_ids
    total, hits = from_ids
    distinct = len({each for record in records for each in record["hash_ids"]})
    assert hits == total - distinct  # as in the whole trace: 1 - 182,790 / 288,500 = 0.3664
    assert 0.25 < hits / total < 0.45


def test_mooncake_ticks_are_an_artefact_that_spreading_removes(shared_dir: Path) -> None:
    path = shared_dir / "traces" / MOONCAKE
    raw, spread = gaps_s(replayed(path)), gaps_s(replayed(path, spread_ticks_s=3))
    assert raw.std() / raw.mean() == pytest.approx(3.03, rel=0.15)
    assert spread.std() / spread.mean() == pytest.approx(1.0, abs=0.1)
    assert (raw == 0).mean() > 0.85
