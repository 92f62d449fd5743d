"""LoRA adapters: slots in a step, memory, and results by adapter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models import Parallelism, model
from cost_models.memory import lora_bytes
from sim.simulation import simulate
from tests.cluster.helpers import make_table, make_world, token_times_s
from tests.features.helpers import make_scenario

BUSY = {
    "kind": "poisson",
    "rate_per_s": 12,
    "num_requests": 200,
    "lengths": {"kind": "fixed", "prompt_tokens": 200, "output_tokens": 100},
}


def with_adapters(table, adapters):
    return replace(table, adapter=np.array(adapters, np.int32), adapter_names=("a", "b", "c"))


def test_a_second_adapter_waits_for_the_slot_of_the_first():
    """One slot. At 0 come requests with adapter a, b, a and none; steps take 1 s, answers have 2 tokens. b
    waits until both with a have ended; nobody behind it waits for it.
    """
    table = with_adapters(make_table([0.0] * 4, 10, 2), [0, 1, 0, -1])
    world = make_world(table, max_loras=1)
    world.run()
    assert [token_times_s(world, request) for request in range(4)] == [[1, 2], [3, 4], [1, 2], [1, 2]]


def test_with_two_slots_nobody_waits():
    table = with_adapters(make_table([0.0] * 4, 10, 2), [0, 1, 0, -1])
    world = make_world(table, max_loras=2)
    world.run()
    assert all(token_times_s(world, request) == [1, 2] for request in range(4))


def test_adapters_do_not_share_prefixes():
    """The same prompt of 64 tokens four times, one by one: the adapter belongs to a block's identity."""
    table = make_table([0.0, 10.0, 20.0, 30.0], 64, 1)
    table = with_adapters(replace(table, prompts=type(table.prompts)(distinct=1)), [0, 0, 1, -1])
    world = make_world(table, max_loras=2)
    world.run()
    assert list(world.recorder.requests.cached_tokens) == [0, 48, 0, 0]


def test_no_step_has_more_adapters_than_slots():
    result = simulate(
        make_scenario(
            {**BUSY, "lora": {"num_adapters": 20, "popularity": "zipf"}}, engine={"lora": {"max_loras": 3}}
        ),
        check=True,
    )
    requests = result.requests
    ends = np.sort(np.concatenate([requests["first_token_s"], requests["last_token_s"]]))
    for now in ends[::7]:
        here = requests[(requests["first_scheduled_s"] < now) & (requests["last_token_s"] > now)]
        assert here["adapter"].nunique() <= 3


def test_adapters_of_rank_16_have_the_size_that_is_known():
    """peft counts 41,943,040 parameters for rank 16 on all linear layers of Llama-3.1-8B; 2 bytes each."""
    llama = model("meta-llama/Llama-3.1-8B").model
    assert lora_bytes(llama, Parallelism(), max_loras=1, rank=16) == 2 * 41_943_040
    assert lora_bytes(llama, Parallelism(), max_loras=4, rank=32) == 8 * 2 * 41_943_040


def test_slots_take_memory_from_the_kv_cache():
    def plan(**engine):
        return simulate(make_scenario({"kind": "burst", "num_requests": 1}, engine=engine)).setup.plan

    alone, beside = plan(), plan(lora={"max_loras": 8, "max_lora_rank": 64})
    taken = 8 * 4 * 2 * 41_943_040
    assert alone.kv_cache_bytes - beside.kv_cache_bytes == taken
    assert beside.num_gpu_blocks == int((alone.kv_cache_bytes - taken) // (16 * alone.bytes_per_token))


def test_the_summary_has_a_row_for_every_adapter_and_they_add_up():
    section = {"num_adapters": 4, "popularity": "zipf", "share": 0.8}
    result = simulate(make_scenario({**BUSY, "lora": section}, engine={"lora": {"max_loras": 2}}))
    table, requests = result.summary["adapters"], result.requests
    assert list(table)[-1] == "(base model)"
    assert sum(row["completed"] for row in table.values()) == 200
    assert sum(row["token_share"] for row in table.values()) == pytest.approx(1)
    of = requests[requests["adapter"] == "adapter-0"]
    row = table["adapter-0"]
    assert row["num_requests"] == len(of)
    ttft_ms = 1000 * (of["first_token_s"] - of["arrival_s"])
    assert row["mean_ttft_ms"] == pytest.approx(ttft_ms.mean(), rel=1e-5)
    assert row["p99_ttft_ms"] == pytest.approx(np.percentile(ttft_ms, 99), rel=1e-5)
    waits_s = of["first_scheduled_s"] - of["arrival_s"]
    assert row["max_wait_s"] == pytest.approx(waits_s.max(), abs=1e-6)


def test_fewer_slots_make_rare_adapters_wait_longer():
    def waits(slots):
        section = {"num_adapters": 8, "popularity": "zipf"}
        scenario = make_scenario({**BUSY, "lora": section}, engine={"lora": {"max_loras": slots}})
        table = simulate(scenario).summary["adapters"]
        return sum(row["mean_ttft_ms"] * row["num_requests"] for row in table.values())

    assert waits(1) > 2 * waits(8)


def test_the_same_seed_gives_the_same_run():
    scenario = make_scenario({**BUSY, "lora": {"num_adapters": 9}}, engine={"lora": {"max_loras": 2}})
    assert simulate(scenario).requests.equals(simulate(scenario).requests)
