"""Room at admission, a switch for every release: a watermark, and room for the whole prompt."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import EngineCore, KVCacheConfig, SchedulerConfig
from scheduler.invariants import check
from scheduler.release import release
from sim.scenario import load_scenario
from sim.simulation import simulate
from tests.policies.helpers import fresh, play

RELEASES = ["0.16.0", "0.33.0"]


def engine(version: str, num_blocks: int = 21, **config: object) -> EngineCore:
    limits = {"max_num_batched_tokens": 32, "max_num_seqs": 8, "max_model_len": 512}
    return EngineCore(SchedulerConfig(**limits | config), KVCacheConfig(num_blocks), release=release(version))


def admitted(core: EngineCore) -> list[int]:
    output = core.schedule()
    core.update(output, lambda _: [[5] if samples else [] for samples in output.samples])
    return [request.request_id for request in output.new + output.resumed]


# --- whole-prompt room --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("whole", [True, False, None])
def test_a_prompt_whose_first_chunk_fits_waits_if_its_whole_must(version: str, whole: bool | None) -> None:
    """Twenty blocks. The first prompt has one of them after its first chunk; of the 19 left the second needs
    one now and twenty in all.
    """
    core = engine(version, reserve_full_prompt=whole, long_prefill_token_threshold=16)
    for request in fresh([12 * 16, 20 * 16]):
        core.add_request(request)
    reserving = {"0.16.0": False, "0.33.0": True}[version] if whole is None else whole
    assert admitted(core) == ([0] if reserving else [0, 1])


@pytest.mark.parametrize("version", RELEASES)
def test_what_the_prefix_cache_has_need_not_be_free_twice(version: str) -> None:
    """The second prompt shares 18 of its 19 blocks with one that is running: one block is room enough."""
    core = engine(version, num_blocks=22, max_num_batched_tokens=512, reserve_full_prompt=True)
    first, second = fresh([18 * 16, 19 * 16])
    second.tokens.starts, second.tokens.shifts = (
        [0, 18 * 16],
        [first.tokens.shifts[0], second.tokens.shifts[0]],
    )
    core.add_request(first)
    assert admitted(core) == [0]
    core.add_request(second)
    assert admitted(core) == [1]


# --- watermark ----------------------------------------------------------------------------------------------

WORK = st.lists(
    st.tuples(st.integers(1, 120), st.integers(1, 40), st.integers(0, 20)), min_size=2, max_size=8
)


@settings(max_examples=50)
@given(work=WORK, watermark=st.sampled_from([0.1, 0.3, 0.6]), version=st.sampled_from(RELEASES))
def test_an_admission_beside_running_requests_leaves_the_watermark_free(
    work: list, watermark: float, version: str
) -> None:
    core = engine(version, watermark=watermark)
    requests = fresh([w[0] for w in work])
    pending = sorted(zip(work, requests, strict=True), key=lambda pair: pair[0][2])
    for now in range(3000):
        while pending and pending[0][0][2] <= now:
            core.add_request(pending.pop(0)[1])
        if not pending and not core.has_unfinished_requests():
            break
        alone = not core.running
        output = core.schedule()
        came = len(output.new) + len(output.resumed)
        if came and not (alone and came == 1):
            assert core.kv_cache.num_free_blocks >= int(watermark * 21)
        tokens = [
            [2 if r.num_output_tokens + 1 >= work[r.request_id][1] else 10**8 * (r.request_id + 1)]
            for r in output.requests
        ]
        sampled = [t if samples else [] for t, samples in zip(tokens, output.samples, strict=True)]
        core.update(output, lambda _, sampled=sampled: sampled)
        check(core)
    assert all(request.is_finished for request in requests), "nobody is kept out for ever"


@settings(max_examples=30)
@given(work=WORK)
def test_switched_off_both_change_nothing(work: list) -> None:
    def story(**switches: object) -> list:
        core = engine("0.16.0", **switches)
        lengths, arrivals = {i: w[1] for i, w in enumerate(work)}, {i: w[2] for i, w in enumerate(work)}
        return play(fresh([w[0] for w in work]), lengths, arrivals=arrivals, engine=core)

    assert story(watermark=0.0, reserve_full_prompt=False) == story()


def test_an_engine_with_nobody_running_admits_whatever_the_watermark() -> None:
    core = engine("0.16.0", watermark=0.9)
    core.add_request(fresh([150])[0])
    assert admitted(core) == [0]


# --- in scenarios -------------------------------------------------------------------------------------------


def test_headroom_trades_preemptions_and_stalls_for_waiting_time() -> None:
    """The shape that operators report for watermarks from 0 to 0.15 (vllm-project/vllm#44594): preemptions
    fall to a fraction, the tail of the inter-token latency falls, and the first token comes later.
    """
    summaries = [
        simulate(
            load_scenario("kv-starved", ["workload.num_requests=500", f"engine.watermark={watermark}"]),
            keep_steps=False,
        ).summary
        for watermark in (0.0, 0.02, 0.05, 0.15)
    ]
    preemptions = [summary["num_preemptions"] for summary in summaries]
    assert preemptions == sorted(preemptions, reverse=True)
    assert preemptions[-1] < preemptions[0] / 6
    assert summaries[-1]["p99_itl_ms"] < summaries[0]["p99_itl_ms"]
    assert summaries[-1]["median_ttft_ms"] > summaries[0]["median_ttft_ms"]


@pytest.mark.parametrize(("version", "default"), [("0.16.0", False), ("0.20.0", False), ("0.33.0", True)])
def test_whole_prompt_room_is_what_the_release_has_unless_told_otherwise(
    version: str, default: bool, tmp_path: Path
) -> None:
    scenario = load_scenario("kv-starved", [f"engine.version={version}"])
    assert scenario.resolved.engine.reserve_full_prompt is default
    other = load_scenario(
        "kv-starved", [f"engine.version={version}", f"engine.reserve_full_prompt={not default}"]
    )
    assert other.resolved.engine.reserve_full_prompt is not default
