"""From the engine columns of a run to the scenario of its engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.evidence.validate.mapping import MappedRun, engine_release, map_run
from sim.evidence.validate.sent_requests import CannotRunError
from tests.validate.helpers import one_run


def mapped(folder: Path, **changes: str) -> MappedRun:
    return map_run(one_run(folder, **changes))


@pytest.mark.parametrize(
    ("version", "generation", "release", "assumed"),
    [
        ("0.16.0", "V1", "0.16.0", False),
        ("v0.19", "V1", "0.19.0", False),
        ("0.10.1.1", "V1", "0.10.1", False),
        ("0.23.0+residency-patch", "V1", "0.23.0", True),
        ("0.19.1rc1.dev339", "V1", "0.19.1", True),
        ("dev-dea63512", "V1", "0.33.0", True),
        ("", "V1", "0.33.0", True),
        ("", "V0", "0.7.3", True),
    ],
)
def test_a_version_becomes_the_release_whose_rules_hold(
    tmp_path: Path, version: str, generation: str, release: str, assumed: bool
) -> None:
    found, assumption = engine_release(one_run(tmp_path, engine_version=version, engine_gen=generation))
    assert found == release
    assert (assumption is not None) is assumed


def test_what_the_row_states_is_taken(tmp_path: Path) -> None:
    found = mapped(
        tmp_path,
        tp="2",
        max_num_seqs="128",
        max_num_batched_tokens="2048",
        max_model_len="4096",
        num_kv_tokens="288608",
        block_size="32",
        prefix_caching="0",
        async_scheduling="1",
        weight_dtype="fp16",
        kv_dtype="fp8",
    )
    engine = found.scenario.engine
    assert (engine.tensor_parallel_size, engine.max_num_seqs, engine.max_num_batched_tokens) == (2, 128, 2048)
    assert engine.num_gpu_blocks_override == 288608 // 32
    assert not engine.enable_prefix_caching
    assert engine.async_scheduling is True
    assert engine.kv_cache_dtype == "fp8"
    assert found.assumptions == ()


@pytest.mark.parametrize(
    ("gpu", "client", "limits"),
    [
        ("h100-sxm", "python", (1024, 8192)),
        ("h100-sxm", "in_process", (1024, 16384)),
        ("a100-sxm-80gb", "python", (256, 2048)),
        ("a100-sxm-80gb", "in_process", (256, 8192)),
    ],
)
def test_blank_limits_are_those_of_release_gpu_and_entry_point(
    tmp_path: Path, gpu: str, client: str, limits: tuple[int, int]
) -> None:
    found = mapped(tmp_path, gpu=gpu, client=client)
    assert (found.scenario.engine.max_num_seqs, found.scenario.engine.max_num_batched_tokens) == limits
    assert f"max_num_seqs {limits[0]}, the default of 0.16.0" in found.assumptions
    assert "KV blocks from the memory plan" in found.assumptions


def test_what_is_not_mirrored_is_said(tmp_path: Path) -> None:
    found = mapped(tmp_path, engine_version="0.6.0", engine_gen="V0")
    assert "V1 scheduling rules for a V0 engine" in found.assumptions


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": ""}, "gpu is unknown"),
        ({"model": ""}, "model is unknown"),
        ({"engine": "sglang"}, "engine sglang is not mirrored"),
        ({"speculative": "eagle3"}, "speculative decoding"),
        ({"kv_dtype": "int3"}, "kv_cache_dtype"),
    ],
)
def test_what_cannot_be_built_says_why(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(CannotRunError, match=reason):
        mapped(tmp_path, **changes)
