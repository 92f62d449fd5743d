"""What a step costs: laws that every engine obeys, floors that none gets below, steps that were measured."""

import dataclasses
import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    Deployment,
    Parallelism,
    ServingFacts,
    SpecError,
    StepCostModel,
    StepShape,
    calibration,
    gpu,
    model,
)
from cost_models.step_cost import BOUNDS

MODELS = {
    "dense": StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", "h100-sxm")),
    "mha": StepCostModel(Deployment.of("meta-llama/Llama-2-7b-hf", "a100-sxm-80gb")),
    "windowed": StepCostModel(Deployment.of("openai/gpt-oss-20b", "h100-sxm")),
    "moe": StepCostModel(Deployment.of("mistralai/Mixtral-8x7B-v0.1", "h100-sxm", Parallelism(2))),
    "mla": StepCostModel(Deployment.of("deepseek-ai/DeepSeek-V2-Lite", "h200-sxm")),
    "piped": StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-70B", "h100-sxm", Parallelism(4, 2))),
}

QWEN3_14B = Deployment.of("Qwen/Qwen3-14B", "h100-sxm", engine_version="0.23.0", max_num_seqs=256)


def decodes(count, context, model_windows=()):
    return StepShape(
        num_tokens=count,
        num_decodes=count,
        decode_context_tokens=count * context,
        max_decode_context_tokens=context,
        window_context_tokens=tuple(count * min(context, window) for window in model_windows),
        num_sampled=count,
        num_requests=count,
    )


def prefill(chunk, prefix=0):
    return StepShape(num_tokens=chunk, prefill_chunks=((chunk, prefix),), num_sampled=1, num_requests=1)


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=30)
@given(count=st.integers(1, 600), context=st.integers(1, 50_000), longest=st.integers(1, 100_000))
def test_a_decode_step_is_a_step_bit_for_bit(kind, count, context, longest):
    cost = MODELS[kind]
    shape = decodes(count, context)
    shape.max_decode_context_tokens = max(longest, context)
    quick = cost.decode_step(count, shape.decode_context_tokens, shape.max_decode_context_tokens)
    assert cost.step(shape) == quick


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=30)
@given(count=st.integers(1, 600), context=st.integers(1, 50_000))
def test_terms_add_up_to_the_step(kind, count, context):
    cost = MODELS[kind]
    shape = decodes(count, context)
    terms = cost.terms(shape)
    step = cost.step(shape)
    assert tuple(terms) == BOUNDS
    assert min(terms.values()) >= 0
    assert sum(terms.values()) - terms["host"] == pytest.approx(step.gpu_s, rel=1e-12)
    assert step.bound in BOUNDS


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=30)
@given(count=st.integers(1, 511), context=st.integers(1, 30_000), more=st.integers(1, 200))
def test_more_requests_are_never_quicker(kind, count, context, more):
    cost = MODELS[kind]
    few, many = cost.step(decodes(count, context)), cost.step(decodes(count + more, context))
    assert many.gpu_s >= few.gpu_s * (1 - 1e-12)
    assert many.host_s >= few.host_s


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=30)
@given(count=st.integers(1, 300), context=st.integers(1, 30_000), more=st.integers(1, 30_000))
def test_longer_contexts_are_never_quicker(kind, count, context, more):
    cost = MODELS[kind]
    assert cost.step(decodes(count, context + more)).gpu_s >= cost.step(decodes(count, context)).gpu_s


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=30)
@given(chunk=st.integers(2, 8000), prefix=st.integers(0, 30_000), more=st.integers(1, 4000))
def test_a_larger_chunk_or_a_longer_prefix_is_never_quicker(kind, chunk, prefix, more):
    cost = MODELS[kind]
    base = cost.step(prefill(chunk, prefix)).gpu_s
    assert cost.step(prefill(chunk + more, prefix)).gpu_s >= base * (1 - 1e-12)
    assert cost.step(prefill(chunk, prefix + more)).gpu_s >= base * (1 - 1e-12)


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm-80gb", "h200-sxm", "b200", "l40s"])
@pytest.mark.parametrize(("count", "context"), [(1, 100), (64, 1000), (256, 8000)])
def test_no_decode_beats_the_memory_of_the_datasheet(name, count, context):
    """Every weight and every key and value is read once: 8.03 B - 0.53 B (embedding) at 2 bytes, 131,072 B
    a token.
    """
    cost = StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", name))
    moved = 2 * (8.03e9 - 128256 * 4096) + count * context * 131_072
    assert cost.step(decodes(count, context)).gpu_s > moved / gpu(name).memory_bytes_per_s


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm-80gb", "h200-sxm", "b200", "l40s"])
def test_no_prefill_beats_the_arithmetic_of_the_datasheet(name):
    """2 FLOPs a weight and token: 6.98 B weights in the layers, plus 4·32·4096·q²/2 of attention."""
    cost = StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", name))
    flops = 2 * 6.98e9 * 8192 + 32 * 4 * 4096 * 8192**2 / 2
    assert cost.step(prefill(8192)).gpu_s > flops / gpu(name).bf16_flop_per_s


def test_tensor_parallelism_halves_the_weights_and_adds_communication():
    one = StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", "h100-sxm")).terms(decodes(8, 500))
    two = StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", "h100-sxm", Parallelism(2))).terms(
        decodes(8, 500)
    )
    assert two["weights"] == pytest.approx(one["weights"] / 2, rel=0.05)
    assert one["comm"] == 0.0
    assert two["comm"] > 0.0


def test_pipeline_stages_overlap():
    """A batch passes two stages; the next may enter when the first is free, after about half the time."""
    step = MODELS["piped"].step(decodes(32, 1000))
    assert step.gpu_s / 2 < step.stage_s < 0.6 * step.gpu_s
    whole = MODELS["dense"].step(decodes(32, 1000))
    assert whole.stage_s == whole.gpu_s


def test_decodes_are_padded_to_a_captured_graph_and_eager_ones_are_not():
    """The linear layers of 257 decodes run at 272 tokens; without graphs they run at 257."""
    spec, part = "meta-llama/Meta-Llama-3.1-8B", "h100-sxm"
    graph = StepCostModel(Deployment.of(spec, part))
    assert graph.terms(decodes(257, 1))["weights"] == pytest.approx(
        graph.terms(decodes(272, 1))["weights"], rel=0.01
    )
    eager = StepCostModel(Deployment.of(spec, part, enforce_eager=True))
    assert eager.step(decodes(1, 100)).gpu_s > graph.step(decodes(1, 100)).gpu_s


def test_a_step_does_not_know_the_size_of_the_pool():
    """Neither building the model nor a step takes a number of KV blocks."""
    known = {*inspect.signature(StepCostModel).parameters, *inspect.signature(StepShape).parameters}
    assert not [name for name in known if "block" in name or "pool" in name]


def test_host_work_shows_when_it_is_not_hidden():
    """A tiny model on a fast GPU waits for the CPU."""
    tiny = Deployment.of("facebook/opt-125m", "b200", engine_version="0.10.1", async_scheduling=False)
    cost = StepCostModel(tiny)
    assert cost.step(decodes(1, 10)).bound == "host"


@pytest.mark.parametrize(
    ("shape", "bound"),
    [
        (prefill(8192), "compute"),
        (decodes(1, 100), "weights"),
        (decodes(256, 6000), "kv"),
    ],
)
def test_what_a_step_waits_for(shape, bound):
    assert MODELS["dense"].step(shape).bound == bound


def test_windowed_layers_read_only_their_window():
    """gpt-oss-20b: 12 of 24 layers see 128 tokens. Given or not, the sum within the window is what counts."""
    cost = MODELS["windowed"]
    given_sum = cost.decode_step(4, 40_000, 10_000, (4 * 128,))
    assert cost.decode_step(4, 40_000, 10_000) == given_sum
    whole = dataclasses.replace(model("openai/gpt-oss-20b").model, sliding_window=None)
    full = StepCostModel(Deployment.of(whole, "h100-sxm"))
    assert full.decode_step(4, 40_000, 10_000).gpu_s > given_sum.gpu_s


def test_fp8_kv_reads_less_but_not_half():
    spec, part = "meta-llama/Meta-Llama-3.1-8B", "h100-sxm"
    plain = StepCostModel(Deployment.of(spec, part)).terms(decodes(64, 8000))["kv"]
    fp8 = StepCostModel(Deployment.of(spec, part, kv_cache_dtype="fp8")).terms(decodes(64, 8000))["kv"]
    assert 0.5 * plain < fp8 < 0.8 * plain


def test_int4_weights_speed_up_decode_and_not_prefill():
    spec, part = "meta-llama/Meta-Llama-3.1-8B", "h100-sxm"
    plain = StepCostModel(Deployment.of(spec, part))
    int4 = StepCostModel(Deployment.of(spec, part, weight_dtype="int4"))
    assert int4.step(decodes(1, 100)).gpu_s < 0.6 * plain.step(decodes(1, 100)).gpu_s
    assert int4.step(prefill(8192)).gpu_s == pytest.approx(plain.step(prefill(8192)).gpu_s, rel=0.05)


def test_an_alias_implies_its_weight_dtype():
    named = StepCostModel(Deployment.of("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "h100-sxm"))
    assert named.deployment.weight_dtype.name == "fp8"


def test_verifying_drafts_costs_less_than_decoding_them():
    """Three drafts and one token in one step, against four steps."""
    target = MODELS["dense"]
    shape = StepShape(
        num_tokens=4 * 8,
        num_decodes=8,
        decode_context_tokens=8 * 504,
        max_decode_context_tokens=504,
        num_sampled=32,
        num_requests=8,
    )
    assert target.step(shape).gpu_s < 2 * target.step(decodes(8, 500)).gpu_s


def test_experts_spread_over_two_engines_read_half_of_them_each():
    """Mixtral over 2 GPUs, experts whole: 4 experts a GPU; many tokens touch all 4, or 8 halves."""
    sliced = StepCostModel(Deployment.of("mistralai/Mixtral-8x7B-v0.1", "h100-sxm", Parallelism(2)))
    spread = StepCostModel(Deployment.of("mistralai/Mixtral-8x7B-v0.1", "h100-sxm", Parallelism(2, expert=2)))
    shape = decodes(64, 100)
    assert spread.terms(shape)["weights"] == pytest.approx(sliced.terms(shape)["weights"], rel=0.1)


def test_a_split_that_cannot_be_is_refused():
    with pytest.raises(SpecError, match="does not divide 32 attention heads"):
        StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", "h100-sxm", Parallelism(3)))


def test_a_part_that_was_not_measured_says_so():
    assert calibration("h100-sxm").is_measured
    borrowed = calibration("rtx-4090")
    assert not borrowed.is_measured
    assert "not calibrated" in borrowed.note
    assert "l40s" in borrowed.note
    assert StepCostModel(Deployment.of("Qwen/Qwen3-4B", "rtx-4090")).calibration_id == "rtx-4090/uncalibrated"


def test_one_decode_step_of_qwen3_14b_takes_as_long_as_on_a_real_h100():
    """Measured: 11.55 ms median gap between tokens at 2 requests/s, about 3 in flight with 1,050 tokens each.

    vLLM 0.23.0, one H100 SXM, bf16 (inference-sim/residency-vllm, sweep_rate/agg_2rps).
    """
    cost = StepCostModel(QWEN3_14B)
    assert cost.step(decodes(3, 1050)).gpu_s == pytest.approx(11.55e-3, rel=0.03)


def test_one_prefill_step_of_qwen3_14b_takes_as_long_as_on_a_real_h100():
    """Measured in the same runs: 41.1 ms 99th percentile gap, the one that holds the prefill of a 987-token
    prompt.
    """
    cost = StepCostModel(QWEN3_14B)
    shape = StepShape(990, 3, 3150, 1050, (), ((987, 0),), 4, 4)
    assert cost.step(shape).gpu_s == pytest.approx(41.1e-3, rel=0.05)


@pytest.mark.parametrize(("prompts", "measured_ms"), [(1, 74.0), (2, 115.0), (4, 196.0), (8, 360.0)])
def test_steps_of_a_full_engine_take_as_long_as_on_a_real_h100(prompts, measured_ms):
    """Measured: intervals between first tokens of one step and the next with 256 requests in flight, each
    step with so many prompts of 986 tokens beside decodes of 1,050 (same source, w5_sweep/agg24 and agg18).
    """
    cost = StepCostModel(QWEN3_14B)
    decoding = 256 - prompts
    shape = StepShape(
        decoding + 986 * prompts, decoding, 1050 * decoding, 1114, (), ((986, 0),) * prompts, 256, 256
    )
    assert cost.step(shape).gpu_s == pytest.approx(1e-3 * measured_ms, rel=0.035)


def test_beside_a_prefill_decodes_slow_down_and_the_longest_context_is_one_blocks_work():
    """Two decodes of 1,000 and 3,000 tokens on Llama-3.1-8B: 32 layers of 3,000 · 512 bytes on top."""
    part, facts = gpu("h100-sxm"), ServingFacts(mixed_decode_slowdown=1.5, mixed_block_bandwidth=2.0)
    cost = StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", part), facts=facts)
    plain = StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", part), facts=ServingFacts())
    mixed = StepShape(1026, 2, 4000, 3000, (), ((1024, 0),), 3, 3)
    prefill = StepShape(1026, 0, 0, 0, (), ((1024, 0),), 3, 3)
    alone = plain.terms(mixed)["kv"] - plain.terms(prefill)["kv"]
    block_s = 32 * 3000 * 512 / (2.0 * part.memory_bytes_per_s / part.sm_count)
    found = cost.terms(mixed)["kv"] - cost.terms(prefill)["kv"]
    assert found == pytest.approx(1.5 * alone + block_s)
    short = StepShape(18, 2, 4000, 3000, (), ((16, 0),), 3, 3)
    assert cost.terms(short)["kv"] == pytest.approx(plain.terms(short)["kv"])


def test_a_single_row_streams_weights_faster_where_a_part_has_such_kernels():
    facts = ServingFacts(single_row_gain=1.25)
    cost, plain = (
        StepCostModel(Deployment.of("meta-llama/Meta-Llama-3.1-8B", "a100-sxm-80gb"), facts=each)
        for each in (facts, ServingFacts())
    )
    assert cost.terms(decodes(1, 500))["weights"] == pytest.approx(
        plain.terms(decodes(1, 500))["weights"] / 1.25
    )
    assert cost.terms(decodes(2, 500))["weights"] == plain.terms(decodes(2, 500))["weights"]
