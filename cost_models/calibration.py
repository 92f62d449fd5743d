"""The fitted parameters of one GPU: what the operators need beside datasheet peaks, and how well they fit."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar, cast

from cost_models.errors import CalibrationError
from cost_models.gpus import Gpu, gpu


@dataclass(frozen=True, slots=True)
class GemmParams:
    """One matrix product: t0 + pnorm(flops / (peak · compute_efficiency), bytes / (bw · memory_efficiency), exponent).

    `quantize_efficiency` > 0 adds the pass that quantises activations (fp8): m·k bytes at that fraction of bandwidth.
    """

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    quantize_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class PrefillParams:
    """Prefill attention; `launch_gap_s` of `t0_s` vanishes inside a model's own stream of kernels."""

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    half_kv_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """Decode attention: t0 + pnorm(KV bytes / (bw · memory_efficiency), CTA waves · wave_s, exponent)."""

    t0_s: float
    memory_efficiency: float
    wave_s: float
    exponent: float
    splits_mha: bool = True


@dataclass(frozen=True, slots=True)
class SmallOpParams:
    """Norms, rope, activation, residual: pnorm(floor_s, bytes / (bw · memory_efficiency), exponent)."""

    floor_s: float
    memory_efficiency: float
    exponent: float


@dataclass(frozen=True, slots=True)
class AllReduceParams:
    """Custom one-shot and two-shot all-reduce below 8 MB, NCCL LL and ring above; alpha + n·alpha_n + bytes/bandwidth."""

    one_shot_s: float
    one_shot_per_gpu_s: float
    one_shot_efficiency: float
    two_shot_s: float
    two_shot_per_gpu_s: float
    two_shot_efficiency: float
    ll_s: float
    ll_per_gpu_s: float
    ll_efficiency: float
    ring_s: float
    ring_per_gpu_s: float
    ring_efficiency: float


@dataclass(frozen=True, slots=True)
class SendRecvParams:
    """Point-to-point transfer: alpha + bytes / bandwidth, within a node and between nodes."""

    intra_s: float
    intra_bytes_per_s: float
    inter_s: float
    inter_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """All fitted parameters of one GPU, with their origin. `is_measured` is False for a GPU that borrows them."""

    calibration_id: str
    gpu: str
    is_measured: bool
    source: str
    date: str
    gemm: dict[str, GemmParams]
    prefill: PrefillParams
    decode: DecodeParams
    small_ops: SmallOpParams
    all_reduce: AllReduceParams
    send_recv: SendRecvParams
    launch_gap_s: float
    note: str = ""
    residuals: dict[str, dict[str, float]] = field(default_factory=dict)


_T = TypeVar("_T")
_ARCH_REFERENCE = {"Hopper": "h100-sxm", "Ampere": "a100-sxm-80gb", "Ada": "l40s", "Blackwell": "b200"}


def _params(kind: type[_T], values: object, where: str) -> _T:
    if not isinstance(values, dict):
        raise CalibrationError(f"{where}: expected a table of parameters")
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - names)
    if unknown:
        raise CalibrationError(f"{where}: unknown parameters {', '.join(unknown)}")
    return kind(**values)


def load_calibration(path: Path) -> Calibration:
    """Read one calibration JSON. Missing or unknown parameters raise CalibrationError naming the file."""
    return parse_calibration(path.read_text(encoding="utf-8"), path.name)


def parse_calibration(document: str, where: str) -> Calibration:
    """Build a Calibration from JSON text; `where` names it in errors."""
    try:
        data = cast("dict[str, object]", json.loads(document))
        parameters = cast("dict[str, object]", data["parameters"])
        gemm = cast("dict[str, object]", parameters["gemm"])
        return Calibration(
            calibration_id=str(data["id"]),
            gpu=str(data["gpu"]),
            is_measured=True,
            source=str(data["source"]),
            date=str(data["date"]),
            gemm={d: _params(GemmParams, p, f"{where}: gemm.{d}") for d, p in gemm.items()},
            prefill=_params(PrefillParams, parameters["prefill"], f"{where}: prefill"),
            decode=_params(DecodeParams, parameters["decode"], f"{where}: decode"),
            small_ops=_params(SmallOpParams, parameters["small_ops"], f"{where}: small_ops"),
            all_reduce=_params(AllReduceParams, parameters["all_reduce"], f"{where}: all_reduce"),
            send_recv=_params(SendRecvParams, parameters["send_recv"], f"{where}: send_recv"),
            launch_gap_s=float(cast("float", parameters["launch_gap_s"])),
            note=str(data.get("note", "")),
            residuals=cast("dict[str, dict[str, float]]", data.get("residuals", {})),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as fault:
        raise CalibrationError(f"{where}: not a calibration: {fault!r}") from fault


@cache
def _shipped(name: str) -> Calibration | None:
    place = files("cost_models") / "data" / "calibrations" / f"{name}.json"
    return parse_calibration(place.read_text(encoding="utf-8"), place.name) if place.is_file() else None


@cache
def calibration(gpu_name: str) -> Calibration:
    """The calibration of a GPU. A part that was not measured borrows its architecture's efficiencies, and says so."""
    part: Gpu = gpu(gpu_name)
    measured = _shipped(part.name)
    if measured is not None:
        return measured
    family = part.arch.split(" ", 1)[0]
    lender = _shipped(_ARCH_REFERENCE.get(family, "a100-sxm-80gb"))
    assert lender is not None
    return dataclasses.replace(
        lender,
        calibration_id=f"{part.name}/uncalibrated",
        gpu=part.name,
        is_measured=False,
        note=f"{part.name} is not calibrated: datasheet peaks at the efficiencies measured on {lender.gpu}",
        residuals={},
    )
