"""What a release of the engine brings by itself."""

from dataclasses import replace

import pytest

import cost_models
from cost_models import SpecError, client_overhead_s, cudagraph_capture_sizes, engine_defaults, engine_profile
from cost_models.engines import padded_tokens, version_key


def test_versions_compare_as_numbers():
    assert (
        version_key("0.9.2") < version_key("0.10.0") < version_key("0.10.1.1") < version_key("0.19.1rc1.dev3")
    )
    assert version_key("v0.16.0") == (0, 16, 0)
    assert version_key("0.23.0+residency-patch") == (0, 23, 0)


def test_a_version_that_is_none_is_a_fault():
    with pytest.raises(SpecError, match="expected a release"):
        version_key("latest")


@pytest.mark.parametrize(
    ("version", "gpu", "entry_point", "seqs", "tokens"),
    [
        ("0.16.0", "h100-sxm", "server", 1024, 8192),
        ("0.16.0", "h100-sxm", "llm", 1024, 16384),
        ("0.16.0", "h200-sxm", "server", 1024, 8192),
        ("0.16.0", "a100-sxm-80gb", "server", 256, 2048),
        ("0.16.0", "a100-sxm-80gb", "llm", 256, 8192),
        ("0.16.0", "l40s", "server", 256, 2048),
        ("0.33.0", "h200-sxm", "server", 1024, 8192),
        ("0.33.0", "b200", "server", 1024, 16384),
        ("0.33.0", "b200", "llm", 1024, 16384),
        ("0.33.0", "b300", "server", 1024, 16384),
        ("0.33.0", "gb200", "server", 1024, 16384),
        ("0.33.0", "gb300", "server", 1024, 16384),
        ("0.33.0", "mi300x", "server", 1024, 16384),
        ("0.16.0", "b200", "server", 1024, 8192),
        ("0.16.0", "mi300x", "server", 1024, 8192),
        ("0.33.0", "gb10", "server", 256, 2048),
        ("0.33.0", "gb10", "llm", 256, 8192),
        ("0.16.0", "gb10", "server", 1024, 8192),
        ("0.16.0", "a800-sxm-80gb", "server", 1024, 8192),
        ("0.33.0", "a800-sxm-80gb", "llm", 1024, 16384),
        ("0.33.0", "a100-pcie-80gb", "server", 256, 2048),
        ("0.8.1", "a10g", "server", 1024, 2048),
        ("0.6.0", "h100-sxm", "server", 256, 2048),
    ],
)
def test_default_limits_by_release_gpu_and_entry_point(version, gpu, entry_point, seqs, tokens):
    """As documented, as start-up logs show, and as the engine chooses by memory and name.

    1024 sequences on 70 GiB and more, except on an A100 (by 0.33.0 also a GB10); then a server's step is
    larger from 160 GiB on.
    """
    defaults = engine_defaults(version, gpu, entry_point)
    assert (defaults.max_num_seqs, defaults.max_num_batched_tokens) == (seqs, tokens)
    assert defaults.source


def test_a_gpu_that_is_not_in_the_catalogue_takes_the_limits_of_its_memory_and_name():
    part = replace(cost_models.gpu("b200"), name="b400")
    assert engine_defaults("0.33.0", part).max_num_batched_tokens == 16384
    smaller = replace(part, memory_bytes=100 * 2**30)
    assert engine_defaults("0.33.0", smaller).max_num_batched_tokens == 8192
    assert engine_defaults("0.33.0", replace(smaller, name="a100x")).max_num_seqs == 256


@pytest.mark.parametrize(
    ("version", "model", "gpu", "tokens"),
    [
        ("0.16.0", "deepseek-ai/DeepSeek-V3", "h200-sxm", 64),
        ("0.16.0", "deepseek-ai/DeepSeek-V3", "b200", 64),
        ("0.33.0", "deepseek-ai/DeepSeek-V3", "b200", 32),
        ("0.33.0", "deepseek-ai/DeepSeek-V3", "b300", 32),
        ("0.16.0", "deepseek-ai/DeepSeek-V3", "a100-sxm-80gb", 16),
        ("0.16.0", "meta-llama/Llama-3.1-8B", "h200-sxm", 16),
        ("0.33.0", "meta-llama/Llama-3.1-8B", "b200", 16),
    ],
)
def test_default_block_size_by_release_attention_and_gpu(version, model, gpu, tokens):
    """Latent attention has kernels of its own, which want their own blocks."""
    spec = cost_models.model(model).model
    assert cost_models.default_block_size(version, spec, gpu) == tokens
    assert cost_models.Deployment.of(model, gpu, engine_version=version).block_size == tokens


def test_default_utilisation_rose_with_0_21():
    assert engine_defaults("0.20.1", "h100-sxm").gpu_memory_utilization == pytest.approx(0.90)
    assert engine_defaults("0.21.0", "h100-sxm").gpu_memory_utilization == pytest.approx(0.92)


def test_asynchronous_scheduling_is_the_default_of_recent_releases():
    assert not engine_defaults("0.10.1.1", "h100-sxm").async_scheduling
    assert engine_defaults("0.15.1", "h100-sxm").async_scheduling
    assert engine_defaults("0.23.0", "h100-sxm").async_scheduling


def test_an_unknown_entry_point_is_a_fault():
    with pytest.raises(SpecError, match="expected server or llm"):
        engine_defaults("0.16.0", "h100-sxm", "grpc")


def test_host_times_are_never_negative_and_name_their_source():
    for version in ("0.6.0", "0.10.0", "0.15.1", "0.16.0", "0.23.0", "0.33.0"):
        profile = engine_profile(version)
        assert min(profile.step_host_s, profile.request_host_s, profile.step_gap_s, profile.frontend_s) >= 0
        assert profile.source


def test_the_front_end_of_0_23_takes_five_to_nine_milliseconds():
    """Measured with the lag of asynchronous scheduling taken into account, at some 20 requests in flight."""
    profile = engine_profile("0.23.0")
    assert 5e-3 <= profile.frontend_s + 20 * profile.frontend_stream_s <= 9e-3


def test_captured_sizes_grow_by_8_then_by_16():
    sizes = cudagraph_capture_sizes(256, 8192)
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-1] == 512
    assert cudagraph_capture_sizes(16, 8192)[-1] == 32
    assert cudagraph_capture_sizes(1024, 64)[-1] == 64


def test_tokens_are_padded_to_the_next_captured_size():
    sizes = cudagraph_capture_sizes(256, 8192)
    assert [padded_tokens(n, sizes) for n in (1, 3, 5, 8, 9, 257, 512, 513)] == [
        1,
        4,
        8,
        8,
        16,
        272,
        512,
        513,
    ]
    assert padded_tokens(77, ()) == 77


def test_a_python_client_delays_the_first_token():
    """Measured for asyncio clients: about +4 ms alone, +23 to +29 ms at 100 in flight."""
    assert client_overhead_s(0) == pytest.approx(4e-3)
    assert client_overhead_s(100) == pytest.approx(29e-3)
    assert client_overhead_s(100, "go") == 0.0
