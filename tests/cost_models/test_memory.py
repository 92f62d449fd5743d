"""How many KV blocks fit: the plan by hand, over GPUs and splits, and against start-up logs of real
engines.
"""

import csv

import pytest

from cost_models import (
    Deployment,
    DoesNotFitError,
    Parallelism,
    SpecError,
    UnknownNameError,
    gpu,
    memory_plan,
    model,
    weight_dtype,
)
from cost_models.errors import GIB
from cost_models.memory import forward_bytes, kv_bytes_per_token
from cost_models.memory_check import check_rows
from cost_models.weights import weights_bytes

LLAMA_8B = model("meta-llama/Meta-Llama-3.1-8B").model
LLAMA_70B = model("meta-llama/Meta-Llama-3.1-70B").model


def test_the_plan_of_llama_8b_on_an_h100_by_hand():
    """0.9 · 79.18 - 14.96 weights - 4.72 sampler (1,024 rows of 128,256 at 38.6 B) - 0.12 = 51.46 GiB.

    vLLM 0.11.0 logged 51.38 GiB for this start-up.
    """
    plan = memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", engine_version="0.11.0"))
    assert plan.weights_bytes / GIB == pytest.approx(8.03e9 * 2 / GIB, rel=0.001)
    assert plan.sampler_bytes == pytest.approx(1024 * 128256 * 38.6)
    assert plan.forward_bytes == pytest.approx(8192 * 2 * (3 * 14336 + 4 * 4096))
    assert plan.activation_bytes == plan.sampler_bytes
    assert plan.bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131072
    assert plan.kv_cache_bytes / GIB == pytest.approx(51.38, abs=0.15)
    assert plan.num_gpu_blocks == int(plan.kv_cache_bytes // (131072 * 16))
    assert plan.kv_tokens == plan.num_gpu_blocks * 16


@pytest.mark.parametrize(
    ("name", "tensor", "dtype", "logged_gib"),
    [
        ("meta-llama/Meta-Llama-3.1-8B", 1, "bf16", 14.99),
        ("meta-llama/Meta-Llama-3.1-70B", 2, "fp8", 33.88),
        ("Qwen/Qwen3-30B-A3B", 1, "bf16", 56.93),
        ("Qwen/Qwen3-235B-A22B", 8, "fp8", 27.67),
        ("openai/gpt-oss-20b", 1, "mxfp4", 13.72),
        ("openai/gpt-oss-120b", 4, "mxfp4", 17.22),
        ("Qwen/Qwen2.5-14B-Instruct", 1, "int4", 9.38),
    ],
)
def test_weights_take_what_engines_logged(name, tensor, dtype, logged_gib):
    """GiB of weights on one GPU, as vLLM logged them at start-up: within 0.1 GiB."""
    planned = weights_bytes(model(name).model, Parallelism(tensor), weight_dtype(dtype))
    assert planned / GIB == pytest.approx(logged_gib, abs=0.1)


def test_an_activation_of_119_kb_a_token_was_measured_for_llama_8b():
    assert forward_bytes(LLAMA_8B, Parallelism(), 1) == pytest.approx(119e3, rel=0.02)


def test_kv_bytes_of_a_token_by_kind_of_attention():
    """Grouped: 2 · 80 · 8 · 128 · 2, split by TP until a KV head is left. Latent: 27 · 576 · 2 on every
    rank.
    """
    assert kv_bytes_per_token(Deployment.of(LLAMA_70B, "h100-sxm", Parallelism(1))) == 327_680
    assert kv_bytes_per_token(Deployment.of(LLAMA_70B, "h100-sxm", Parallelism(8))) == 40_960
    assert kv_bytes_per_token(Deployment.of(LLAMA_70B, "h100-sxm", Parallelism(16))) == 40_960
    assert (
        kv_bytes_per_token(Deployment.of(LLAMA_70B, "h100-sxm", Parallelism(1), kv_cache_dtype="fp8"))
        == 163_840
    )
    latent = model("deepseek-ai/DeepSeek-V2-Lite").model
    assert (
        kv_bytes_per_token(Deployment.of(latent, "h100-sxm", Parallelism(1)))
        == kv_bytes_per_token(Deployment.of(latent, "h100-sxm", Parallelism(4)))
        == 31_104
    )


def test_early_engines_pad_the_latent():
    """vLLM 0.7 keeps 640 instead of 576: 78,080 B a token for DeepSeek-R1, as logged."""
    spec = model("deepseek-ai/DeepSeek-R1").model
    assert (
        kv_bytes_per_token(Deployment.of(spec, "h100-sxm", Parallelism(8), engine_version="0.7.3")) == 78_080
    )


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200"])
@pytest.mark.parametrize("tensor", [1, 2, 4, 8, 16])
def test_a_replica_counts_the_blocks_of_one_gpu(name, tensor):
    """Every GPU holds its share of the same tokens: capacity is budget over per-GPU bytes, never times TP."""
    part = gpu(name)
    try:
        plan = memory_plan(Deployment.of(LLAMA_70B, part, Parallelism(tensor)))
    except DoesNotFitError:
        assert 2 * 70.55e9 / tensor > 0.8 * part.memory_bytes
        return
    share = 40_960 * max(8 // tensor, 1)
    assert plan.bytes_per_token == share
    assert plan.kv_tokens * share < part.memory_bytes
    assert plan.kv_tokens * share == pytest.approx(plan.kv_cache_bytes, rel=0.01)


def test_capacity_grows_faster_than_the_number_of_gpus():
    """Splitting the weights leaves more of each GPU: TP 4 keeps more than twice what TP 2 keeps."""
    two, four = (memory_plan(Deployment.of(LLAMA_70B, "h200-sxm", Parallelism(n))).kv_tokens for n in (2, 4))
    assert four > 2 * two


def test_a_model_that_cannot_fit_shows_the_arithmetic_and_the_smallest_tp():
    """141 GB of weights in 79 GiB. Two GPUs leave 0.3 GiB, too little for one request of 8,192 tokens."""
    with pytest.raises(DoesNotFitError) as error:
        memory_plan(Deployment.of(LLAMA_70B, "h100-sxm", max_model_len=8192))
    assert error.value.smallest_tensor_parallel == 4
    assert "0.9 x 79.18 GiB - 131.42 weights" in str(error.value)
    assert "smallest tensor_parallel_size that fits is 4" in str(error.value)


def test_a_model_that_fits_nowhere_says_so():
    with pytest.raises(DoesNotFitError, match="no tensor_parallel_size that divides the model fits"):
        memory_plan(Deployment.of(model("Qwen/Qwen2.5-7B-Instruct").model, "t4", gpu_memory_utilization=0.01))


def test_a_thin_margin_is_noted():
    scarce = Deployment.of(LLAMA_70B, "h100-sxm", Parallelism(2), max_num_seqs=8, gpu_memory_utilization=0.88)
    assert memory_plan(scarce).margin_note
    assert not memory_plan(Deployment.of(LLAMA_70B, "h100-sxm", Parallelism(8))).margin_note


def test_settings_move_the_plan_the_right_way():
    base = memory_plan(Deployment.of(LLAMA_8B, "h100-sxm")).kv_tokens
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", gpu_memory_utilization=0.8)).kv_tokens < base
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", max_num_batched_tokens=65536)).kv_tokens < base
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", max_num_seqs=128)).kv_tokens > base
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", kv_cache_dtype="fp8")).kv_tokens == pytest.approx(
        2 * base, rel=0.001
    )
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", weight_dtype="fp8")).kv_tokens > base
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm"), sampler="flashinfer").kv_tokens > base
    coarse = memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", block_size=128))
    assert coarse.kv_tokens <= base
    assert coarse.kv_tokens % 128 == 0


def test_graph_memory_counts_from_0_21_on_and_never_without_graphs():
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", engine_version="0.20.1")).cuda_graph_bytes == 0
    assert memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", engine_version="0.21.0")).cuda_graph_bytes > 0
    eager = Deployment.of(LLAMA_8B, "h100-sxm", engine_version="0.21.0", enforce_eager=True)
    assert memory_plan(eager).cuda_graph_bytes == 0


def test_nonsense_lists_every_fault():
    with pytest.raises(SpecError) as error:
        memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", gpu_memory_utilization=1.5, block_size=0))
    assert len(error.value.faults) == 2
    with pytest.raises(SpecError, match="sampler must be auto, native or flashinfer, not fast"):
        memory_plan(Deployment.of(LLAMA_8B, "h100-sxm"), sampler="fast")
    with pytest.raises(UnknownNameError, match="kv cache dtype"):
        memory_plan(Deployment.of(LLAMA_8B, "h100-sxm", kv_cache_dtype="int3"))


def row(**changes):
    logged = {
        "vllm_version": "0.11.0",
        "gpu": "H100-80GB",
        "tp": "1",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "kv_tokens": "",
        "kv_gib": "51.38",
    }
    return logged | changes


def test_a_check_compares_tokens_and_gib_and_ends_with_the_total():
    check = check_rows([row()])
    assert abs(check.rows[0].token_error) < 0.01
    assert abs(check.rows[0].kv_gib_error) < 0.2
    last = check.render().splitlines()[-1]
    assert last.startswith("fit: kv_tokens median 0.")
    assert last.endswith("over 1 rows")


def test_a_check_takes_the_scheme_that_was_logged():
    """fp8 of a bf16 checkpoint halves the linear layers; a scheme that the model has itself covers what it
    covers.
    """
    plain, fp8 = check_rows([row(), row(quant_class="fp8")]).rows
    assert fp8.plan.weights_bytes < 0.6 * plain.plan.weights_bytes
    kimi = row(model="moonshotai/Kimi-K2.5", gpu="B200", tp="8", quant_class="int4g128")
    assert check_rows([kimi]).rows[0].plan.weights_bytes / GIB < 80


def test_a_check_says_what_it_left_out():
    check = check_rows([row(), row(fit_ok="0"), row(model="nobody/knows"), row(kv_gib="")])
    assert len(check.rows) == 1
    assert "marked as not to be scored" in check.skipped[0]
    assert "nobody/knows" in check.skipped[1]
    assert "neither tokens nor blocks" in check.skipped[2]
    assert check_rows([]).render().endswith("no row could be compared")


def test_the_plan_predicts_what_real_engines_found(shared_dir):
    """Start-ups of V1 engines on A100, H100 and H200, without latent attention: 1 % median, 4 % p90 is the
    goal.
    """
    with (shared_dir / "validation" / "kv_capacity.csv").open(newline="", encoding="utf-8") as stream:
        check = check_rows(csv.DictReader(stream))
    large = [
        row
        for row in check.rows
        if row.generation == "V1" and row.gpu.startswith(("a100", "h100", "h200")) and row.model_kind != "mla"
    ]
    whole_cards = [row for row in large if "mig" not in row.gpu]
    assert len(whole_cards) >= 12
    for rows in (large, whole_cards):
        median, p90 = check.token_percentiles(rows)
        assert median < 1.0
        assert p90 < 4.0
    median, p90 = check.token_percentiles()
    assert median < 1.7
    assert p90 < 12.0
