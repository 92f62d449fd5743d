"""Measured operators from an installed `aiconfigurator-core` package, an optional extra (Apache-2.0, NVIDIA).

Its Parquet files hold the tables that the shipped calibrations come from, and more; with it anyone can fit
again
from scratch: `calibrate(read_aiconfigurator("h100-sxm"), "h100-sxm", …)`. The shipped calibrations were not
fitted
this way: they leave out shapes and models that the package has, so that these can judge them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from cost_models.errors import CalibrationError
from cost_models.fit.tables import OperatorTable, tables_from_rows
from cost_models.gpus import gpu

_SYSTEMS = {
    "a100-sxm-80gb": "a100_sxm",
    "a100-pcie-80gb": "a100_pcie",
    "a30": "a30",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100-sxm": "h100_sxm",
    "h100-pcie": "h100_pcie",
    "h200-sxm": "h200_sxm",
    "l4": "l4",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
# Which collector's products to take: vLLM's were, on A100, measured with weights that had never been written.
_GEMM_COLLECTORS = ("trtllm", "sglang", "vllm")
_DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8"}
_KV_BYTES = {"bfloat16": "2", "float16": "2", "fp8": "1"}

_Row = dict[str, object]


def read_aiconfigurator(gpu_name: str, systems_dir: Path | None = None) -> list[OperatorTable]:
    """Products, attention and NCCL collectives that the package has on a GPU, newest collector version first.

    `systems_dir` is its folder `systems` (by default that of the installed package). Raises
    CalibrationError where the package, pyarrow or the GPU's tables are missing.
    """
    part = gpu(gpu_name)
    system = _SYSTEMS.get(part.name)
    place = (systems_dir or _installed()) / "data" / (system or "")
    if system is None or not place.is_dir():
        raise CalibrationError(
            f"aiconfigurator-core has no tables for {part.name}; it has {', '.join(_SYSTEMS)}"
        )
    rows = [
        *_gemm_rows(place, part.name),
        *_attention_rows(place, part.name, "generation", decode=True),
        *_attention_rows(place, part.name, "context", decode=False),
        *_nccl_rows(place, part.name),
    ]
    if not rows:
        raise CalibrationError(f"{place}: no table that this project can read")
    return tables_from_rows(rows, f"aiconfigurator-core, {system}")


def _installed() -> Path:
    try:
        package = importlib.import_module("aiconfigurator_core")
    except ImportError as fault:
        raise CalibrationError(
            "needs the package aiconfigurator-core (and pyarrow), which is not installed"
        ) from fault
    return Path(str(package.__file__)).parent / "systems"


def _read(path: Path) -> list[_Row]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as fault:
        raise CalibrationError("reading Parquet needs the package pyarrow, which is not installed") from fault
    table = cast("Callable[[Path], _Table]", parquet.read_table)(path)
    return table.to_pylist()


class _Table(Protocol):
    """The one method of a pyarrow table that is used here."""

    def to_pylist(self) -> list[_Row]:
        """One dictionary a row."""
        ...


def _newest(place: Path, kind: str, collectors: Sequence[str], name: str) -> Path | None:
    for collector in collectors:
        versions = sorted((place / kind / collector).glob(f"*/{name}"), key=_version)
        if versions:
            return versions[-1]
    return None


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.parent.name))


def _us(row: _Row) -> str:
    return repr(float(cast(float, row["latency"])) * 1e3)


def _gemm_rows(place: Path, part: str) -> list[dict[str, str]]:
    path = _newest(place, "gemm", _GEMM_COLLECTORS, "gemm_perf.parquet")
    return [
        {"gpu": part, "dtype": _DTYPES[str(row["gemm_dtype"])], "us": _us(row)}
        | {name: str(row[name]) for name in ("m", "n", "k")}
        for row in (_read(path) if path else [])
        if row["gemm_dtype"] in _DTYPES
    ]


def _attention_rows(place: Path, part: str, phase: str, *, decode: bool) -> list[dict[str, str]]:
    """16-bit attention over whole contexts of heads of 128; windows and other head sizes have no formula of
    their own.
    """
    path = _newest(place, "attention", ("vllm",), f"{phase}_attention_perf.parquet")
    rows = []
    for row in _read(path) if path else []:
        if (
            row["head_dim"] != 128
            or row.get("window_size")
            or str(row["attn_dtype"]) not in ("bfloat16", "float16")
        ):
            continue
        if str(row["kv_cache_dtype"]) not in _KV_BYTES or row["kv_cache_dtype"] == "fp8":
            continue
        isl, step = cast(int, row["isl"]), cast(int, row["step"])
        rows.append(
            {
                "gpu": part,
                "phase": "decode" if decode else "prefill",
                "b": str(row["batch_size"]),
                "q": "1" if decode else str(isl),
                "kv": str(isl + step),
                "h": str(row["num_heads"]),
                "kvh": str(row["num_key_value_heads"]),
                "d": "128",
                "kvb": _KV_BYTES[str(row["kv_cache_dtype"])],
                "us": _us(row),
            }
        )
    return rows


def _nccl_rows(place: Path, part: str) -> list[dict[str, str]]:
    path = _newest(place, "comm", ("nccl",), "nccl_perf.parquet")
    rows = []
    for row in _read(path) if path else []:
        if str(row.get("nccl_dtype", "half")) not in ("half", "bfloat16", "float16"):
            continue
        rows.append(
            {
                "gpu": part,
                "op": str(row["op_name"]),
                "impl": "nccl",
                "gpus": str(row["num_gpus"]),
                "bytes": str(2 * cast(int, row["message_size"])),
                "us": _us(row),
            }
        )
    return rows
