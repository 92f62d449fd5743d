"""Tables of an installed aiconfigurator-core, an optional extra; a fake module stands in."""

import sys
import types

import pytest

from cost_models import CalibrationError
from cost_models.fit import read_aiconfigurator

GEMM = {"gemm_dtype": "bfloat16", "m": 8, "n": 4096, "k": 1024, "latency": 0.005}
DECODE = {
    "batch_size": 4,
    "isl": 1,
    "step": 1023,
    "num_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attn_dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16",
    "window_size": 0,
    "latency": 0.02,
}
GATHER = {"nccl_dtype": "half", "op_name": "all_gather", "num_gpus": 8, "message_size": 256, "latency": 0.007}


@pytest.fixture
def systems(tmp_path, monkeypatch):
    """A folder as in the package, with a reader that answers by file name."""
    rows = {"gemm_perf": [GEMM], "generation_attention_perf": [DECODE], "nccl_perf": [GATHER]}
    for place in ("gemm/trtllm/1.3.0", "gemm/trtllm/1.10.0", "attention/vllm/0.24.0", "comm/nccl/2.29.2"):
        (tmp_path / "data" / "h100_sxm" / place).mkdir(parents=True)
    data = tmp_path / "data" / "h100_sxm"
    read = []
    for path in (
        data / "gemm/trtllm/1.3.0/gemm_perf.parquet",
        data / "gemm/trtllm/1.10.0/gemm_perf.parquet",
        data / "attention/vllm/0.24.0/generation_attention_perf.parquet",
        data / "comm/nccl/2.29.2/nccl_perf.parquet",
    ):
        path.touch()

    def read_table(path):
        read.append(path)
        return types.SimpleNamespace(to_pylist=lambda: rows[path.stem])

    monkeypatch.setitem(sys.modules, "pyarrow", types.ModuleType("pyarrow"))
    module = types.SimpleNamespace(read_table=read_table)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)
    return tmp_path, read


def test_rows_become_tables_in_seconds_and_bytes(systems):
    folder, _ = systems
    tables = {table.operator: table for table in read_aiconfigurator("H100", folder)}
    assert set(tables) == {"gemm.bf16", "attn_decode", "nccl.all_gather"}
    assert tables["gemm.bf16"].seconds[0] == pytest.approx(5e-6)
    assert tables["attn_decode"].columns["kv"][0] == 1024
    assert tables["nccl.all_gather"].columns["bytes"][0] == 512
    assert {table.gpu for table in tables.values()} == {"h100-sxm"}


def test_the_newest_version_of_a_collector_counts(systems):
    folder, read = systems
    read_aiconfigurator("H100", folder)
    assert [path.parent.name for path in read if path.stem == "gemm_perf"] == ["1.10.0"]


def test_what_is_missing_is_named(systems, monkeypatch):
    folder, _ = systems
    with pytest.raises(CalibrationError, match="no tables for rtx-4090"):
        read_aiconfigurator("RTX 4090", folder)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(CalibrationError, match="needs the package pyarrow"):
        read_aiconfigurator("H100", folder)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with pytest.raises(CalibrationError, match="needs the package aiconfigurator-core"):
        read_aiconfigurator("H100")
