"""How a model is split over GPUs, and what a split that cannot be says."""

import pytest

from cost_models import Parallelism, SpecError, model, weight_dtype
from cost_models.weights import attention_linears, ffn_linears, head_parameters

LLAMA = model("meta-llama/Meta-Llama-3.1-70B").model
BF16 = weight_dtype("bf16")


def shapes(linears):
    return {linear.name: (linear.n, linear.k, linear.count) for linear in linears}


def test_llama_70b_on_one_gpu_by_hand():
    """64 query and 8 KV heads of 128, hidden 8192, feed-forward 28672, 80 layers."""
    assert shapes(attention_linears(LLAMA, Parallelism(), BF16)) == {
        "qkv": ((64 + 2 * 8) * 128, 8192, 80),
        "o": (8192, 64 * 128, 80),
    }
    assert shapes(ffn_linears(LLAMA, Parallelism(), BF16)) == {
        "gate_up": (2 * 28672, 8192, 80),
        "down": (8192, 28672, 80),
    }


def test_kv_heads_are_repeated_when_there_are_fewer_than_gpus():
    """With TP 16 each GPU has 4 query heads and one whole KV head of the 8: two GPUs hold the same one."""
    assert shapes(attention_linears(LLAMA, Parallelism(tensor=16), BF16))["qkv"][0] == (4 + 2) * 128
    assert Parallelism(tensor=16).kv_heads_per_gpu(LLAMA) == 1


def test_the_vocabulary_is_padded_and_split():
    opt = model("facebook/opt-125m").model
    assert head_parameters(opt, Parallelism()) == 50304 * 768
    assert head_parameters(opt, Parallelism(tensor=2)) == 50304 * 768 // 2


def test_a_split_that_does_not_divide_lists_every_fault():
    with pytest.raises(SpecError) as error:
        Parallelism(tensor=3, pipeline=200, expert=2).check(LLAMA)
    assert len(error.value.faults) >= 3
    assert "does not divide 64 attention heads" in str(error.value)
    assert "exceeds 80 layers" in str(error.value)
    assert "mixture-of-experts" in str(error.value)


def test_sizes_below_one_are_faults():
    with pytest.raises(SpecError, match="tensor parallel size must be at least 1, not 0"):
        Parallelism(tensor=0).check(LLAMA)


def test_quantisation_covers_linear_layers_or_experts_only():
    fp8 = weight_dtype("fp8")
    assert all(linear.quantized for linear in attention_linears(LLAMA, Parallelism(), fp8))
    mixtral = model("mistralai/Mixtral-8x7B-v0.1").model
    router = [x for x in ffn_linears(mixtral, Parallelism(), fp8) if x.name == "router"]
    assert not router[0].quantized
    mxfp4 = weight_dtype("mxfp4")
    assert not any(linear.quantized for linear in attention_linears(mixtral, Parallelism(), mxfp4))
