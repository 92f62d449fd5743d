"""The fitted parameters of one GPU, where they come from and how well they fit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar, cast

from cost_models.errors import CalibrationError
from cost_models.gpus import Gpu, gpu
from cost_models.parameters import (
    AllReduceParams,
    DecodeParams,
    GemmParams,
    MoeParams,
    NcclParams,
    PrefillParams,
    SendRecvParams,
    SmallOpParams,
    WholeModel,
)


@dataclass(frozen=True, slots=True)
class Residual:
    """How far off an operator is on rows that were not fitted: absolute relative errors and signed median,
    in %.
    """

    operator: str
    size_class: str
    rows: int
    median_pct: float
    p90_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """All fitted parameters of one GPU.

    is_measured is False for a part that was never measured: it runs at the efficiencies of its architecture's
    measured part. borrowed names, for single operators, the part they were measured on instead of this one.
    """

    calibration_id: str
    gpu: str
    is_measured: bool
    source: str
    date: str
    gemm: dict[str, GemmParams]
    prefill: PrefillParams
    decode: DecodeParams
    small_ops: dict[str, SmallOpParams]
    all_reduce: AllReduceParams
    nccl: dict[str, NcclParams]
    send_recv: SendRecvParams
    moe: MoeParams
    whole_model: WholeModel
    note: str = ""
    borrowed: dict[str, str] = field(default_factory=dict)
    residuals: tuple[Residual, ...] = ()


_T = TypeVar("_T")
_SINGLE: dict[str, type] = {
    "whole_model": WholeModel,
    "prefill": PrefillParams,
    "decode": DecodeParams,
    "all_reduce": AllReduceParams,
    "send_recv": SendRecvParams,
    "moe": MoeParams,
}
_KEYED: dict[str, type] = {"gemm": GemmParams, "small_ops": SmallOpParams, "nccl": NcclParams}

_WITHOUT_NVLINK = "l40s"

# Who lends to parts that were not measured, and what a measured part lacks to whom it looks.
REFERENCE_PART = {"Hopper": "h100-sxm", "Ampere": "a100-sxm-80gb", "Ada": "l40s", "Blackwell": "b200"}
_LENDERS = {
    "a100-sxm-80gb": ("h100-sxm",),
    "a100-pcie-80gb": ("a100-sxm-80gb", "h100-sxm"),
    "h200-sxm": ("h100-sxm",),
    "b200": ("h100-sxm",),
    "l40s": ("a100-sxm-80gb", "h100-sxm"),
}


def _record(kind: type[_T], values: object, where: str) -> _T:
    if not isinstance(values, dict):
        raise CalibrationError(f"{where}: expected a table of parameters")
    unknown = sorted(values.keys() - kind.__dataclass_fields__.keys())  # type: ignore[attr-defined]
    if unknown:
        raise CalibrationError(f"{where}: unknown parameters {', '.join(unknown)}")
    try:
        return kind(**values)
    except TypeError as fault:
        raise CalibrationError(f"{where}: {fault}") from fault


def parse_calibration(document: str, where: str, lenders: Sequence[Calibration] | None = None) -> Calibration:
    """Build a Calibration from JSON text; `where` names it in errors.

    Operators that the file lacks are borrowed from `lenders` (by default what is shipped for the same
    part), and listed in `borrowed`.
    """
    try:
        data = json.loads(document)
        if not isinstance(data, dict) or not isinstance(data.get("parameters", {}), dict):
            raise CalibrationError(f"{where}: not a calibration: not a JSON object with parameters")
        parameters = cast("dict[str, object]", data["parameters"])
        part = gpu(str(data["gpu"]))
        rows = cast("list[dict[str, object]]", data.get("residuals", []))
        residuals = tuple(_record(Residual, row, f"{where}: residuals") for row in rows)
        header = {
            "calibration_id": str(data["id"]),
            "gpu": part.name,
            "source": str(data["source"]),
            "date": str(data["date"]),
        }
    except (KeyError, json.JSONDecodeError, RecursionError) as fault:
        raise CalibrationError(f"{where}: not a calibration: {fault!r}") from fault
    fields: dict[str, object] = {
        name: _record(kind, parameters[name], f"{where}: {name}")
        for name, kind in _SINGLE.items()
        if name in parameters
    }
    for name, kind in _KEYED.items():
        table = cast("dict[str, object]", parameters.get(name, {}))
        fields[name] = {key: _record(kind, value, f"{where}: {name}.{key}") for key, value in table.items()}
    borrowed = _borrow(fields, part, (calibration(part.name),) if lenders is None else lenders)
    missing = [name for name in _SINGLE if name not in fields]
    if missing:
        raise CalibrationError(f"{where}: no parameters for {', '.join(missing)}")
    return Calibration(
        **header,  # type: ignore[arg-type]
        is_measured=bool(data.get("measured", True)),
        **fields,  # type: ignore[arg-type]
        note=str(data.get("note", "")),
        borrowed=borrowed,
        residuals=residuals,
    )


def _borrow(fields: dict[str, object], part: Gpu, lenders: Sequence[Calibration]) -> dict[str, str]:
    """Fill in what is missing from `lenders`, the first one first; returns operator → part it was measured
    on.
    """
    borrowed: dict[str, str] = {}
    for lender in lenders:
        for name in _SINGLE:
            if name not in fields:
                fields[name] = getattr(lender, name)
                borrowed[name] = lender.borrowed.get(name, lender.gpu)
        for name in _KEYED:
            own = cast("dict[str, object]", fields[name])
            for key, value in cast("dict[str, object]", getattr(lender, name)).items():
                if key not in own and part.compute_dtype(key) == key:
                    own[key] = value
                    borrowed[f"{name}.{key}"] = lender.borrowed.get(f"{name}.{key}", lender.gpu)
    return borrowed


def load_calibration(path: Path) -> Calibration:
    """Read one calibration JSON. Missing or unknown parameters raise CalibrationError naming the file."""
    try:
        return parse_calibration(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as fault:
        raise CalibrationError(f"{path}: {fault}") from fault


@cache
def _shipped(name: str) -> Calibration | None:
    place = files(__package__) / "data" / "calibrations" / f"{name}.json"
    if not place.is_file():
        return None
    lenders = [lender for lender in map(_shipped, _LENDERS.get(name, ())) if lender is not None]
    return parse_calibration(place.read_text(encoding="utf-8"), place.name, lenders)


def _reference_name(part: Gpu) -> str:
    return REFERENCE_PART.get(part.arch.split(" ", 1)[0], "a100-sxm-80gb")


@cache
def calibration(gpu_name: str) -> Calibration:
    """The calibration of a GPU. An unmeasured part takes its architecture's efficiencies, and says so in
    `note`.
    """
    part = gpu(gpu_name)
    measured = _shipped(part.name)
    if measured is not None:
        return measured
    lender = _shipped(_reference_name(part))
    assert lender is not None
    note = f"{part.name} is not calibrated: datasheet peaks at the efficiencies measured on {lender.gpu}"
    links: dict[str, str] = {}
    wired = _shipped(_WITHOUT_NVLINK)
    if not part.nvlink_bytes_per_s and wired is not None and lender is not wired:
        note += f", collectives over PCIe at those measured on {wired.gpu}"
        links = {"all_reduce": wired.gpu, "nccl": wired.gpu}
        lender = dataclasses.replace(lender, all_reduce=wired.all_reduce, nccl=wired.nccl)
    return dataclasses.replace(
        lender,
        calibration_id=f"{part.name}/uncalibrated",
        gpu=part.name,
        is_measured=False,
        note=note,
        borrowed=lender.borrowed | links,
        residuals=(),
    )
