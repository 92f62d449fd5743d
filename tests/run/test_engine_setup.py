"""From a scenario to an engine: the release's defaults, KV groups, the pool, and what cannot be."""

from __future__ import annotations

import dataclasses
from dataclasses import fields

import pytest

from cost_models import Model, engine_profile, model
from cost_models.models import SlidingWindow
from scheduler import GroupKind, SchedulerConfig
from sim.errors import InputError
from sim.scenario import EngineSection, Scenario, scenario_from_data
from sim.setup import engine_setup, kv_groups


def scenario(
    model_name: str = "meta-llama/Llama-3.1-8B", gpu: str = "h100-sxm", **engine: object
) -> Scenario:
    return scenario_from_data(
        {
            "model": model_name,
            "gpu": gpu,
            "engine": {"max_model_len": 4096} | engine,
            "workload": {
                "kind": "burst",
                "num_requests": 1,
                "lengths": {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 1},
            },
        }
    )


def windowed(num_layers: int, window: SlidingWindow | None) -> Model:
    return dataclasses.replace(
        model("meta-llama/Llama-3.1-8B").model, num_layers=num_layers, sliding_window=window
    )


@pytest.mark.parametrize(("gpu", "seqs", "budget"), [("h100-sxm", 1024, 8192), ("a100-sxm-80gb", 256, 2048)])
def test_open_fields_take_the_defaults_of_release_and_gpu(gpu, seqs, budget):
    limits = engine_setup(scenario(gpu=gpu)).replica.scheduler
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (seqs, budget)
    assert limits.async_scheduling


def test_two_batches_are_in_flight_with_asynchronous_scheduling_and_one_for_each_stage():
    depth = {
        (asynchronous, stages): engine_setup(
            scenario(async_scheduling=asynchronous, pipeline_parallel_size=stages)
        ).replica.depth
        for asynchronous in (False, True)
        for stages in (1, 4)
    }
    assert depth == {(False, 1): 1, (True, 1): 2, (False, 4): 4, (True, 4): 4}


def test_layers_of_one_kind_make_one_group():
    (group,), layers = kv_groups(windowed(32, None), 16)
    assert (group.kind, layers) == (GroupKind.FULL, 32)
    (group,), layers = kv_groups(windowed(32, SlidingWindow(4096, 32)), 16)
    assert (group.kind, group.window, layers) == (GroupKind.SLIDING, 4096, 32)


def test_half_windowed_layers_make_two_groups_that_share_a_pool():
    """gpt-oss: every second of 24 layers sees 128 tokens."""
    groups, layers = kv_groups(windowed(24, SlidingWindow(128, 12)), 16)
    assert [group.kind for group in groups] == [GroupKind.FULL, GroupKind.SLIDING]
    assert layers == 12


def test_a_majority_of_windowed_layers_is_cut_into_groups_as_large_as_the_minority():
    """Llama 4: 36 of 48 layers attend to chunks; 12 full ones, so three groups of 12 chunked."""
    groups, layers = kv_groups(windowed(48, SlidingWindow(8192, 36, chunked=True)), 16)
    assert [group.kind for group in groups] == [GroupKind.FULL] + [GroupKind.CHUNKED_LOCAL] * 3
    assert layers == 12


def test_kinds_that_differ_by_less_than_a_quarter_are_padded_to_the_larger():
    groups, layers = kv_groups(windowed(21, SlidingWindow(128, 10)), 16)
    assert len(groups) == 2
    assert layers == 11


def test_a_pool_of_two_groups_has_twice_the_blocks_of_half_the_size():
    setup = engine_setup(scenario("openai/gpt-oss-20b"))
    assert setup.plan is not None
    assert setup.replica.kv_cache.num_blocks == pytest.approx(2 * setup.plan.num_gpu_blocks, abs=1)


def test_given_blocks_replace_the_memory_plan():
    setup = engine_setup(scenario(num_gpu_blocks_override=500))
    assert setup.plan is None
    assert setup.replica.kv_cache.num_blocks == 500
    assert setup.num_gpu_blocks == 499


def test_a_pool_shorter_than_the_context_lowers_it_and_says_so():
    setup = engine_setup(scenario(num_gpu_blocks_override=11))
    assert setup.replica.scheduler.max_model_len == 160
    assert "160 in place of 4096" in setup.notes[0]


def test_what_does_not_fit_is_a_fault_of_the_split():
    with pytest.raises(InputError) as raised:
        engine_setup(scenario("meta-llama/Llama-3.1-70B"))
    assert raised.value.faults[0].path == "engine.tensor_parallel_size"


def test_an_uncalibrated_gpu_is_noted():
    assert any("not calibrated" in note for note in engine_setup(scenario(gpu="l4")).notes)


def test_requests_at_temperature_zero_spare_the_sampler_its_sort():
    """0.16.0 sorts 128,256 logits a row for top-p where the model's generation_config.json asks for it."""
    sampled = scenario()
    workload = sampled.workload.model_copy(update={"temperature": 0.0})
    greedy = sampled.model_copy(update={"workload": workload})
    slow, quick = (
        engine_setup(each).replica.timer.decode_step(64, 64_000, 1000) for each in (sampled, greedy)
    )
    assert slow.gpu_s - quick.gpu_s == pytest.approx(64 * 128_256 * 506 / 3.352e12, rel=0.01)


def test_the_front_end_is_that_of_the_release():
    replica = engine_setup(scenario(version="0.23.0")).replica
    profile = engine_profile("0.23.0")
    assert (replica.front_end_s, replica.front_end_stream_s) == (
        profile.frontend_s,
        profile.frontend_stream_s,
    )


def test_what_the_scheduler_is_told_has_the_name_that_a_scenario_gives_it() -> None:
    """A field of one name in both is passed on as it is, so a name spelled otherwise would be lost."""
    ours = {each.name for each in fields(SchedulerConfig)} - set(EngineSection.model_fields)
    in_another_form = {"policy", "speculative", "max_loras"}
    of_recorded_engines_alone = {"eos_token_id", "include_finished_set", "kv_load_failure_policy"}
    assert ours == in_another_form | of_recorded_engines_alone
