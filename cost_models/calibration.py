"""The fitted parameters of one GPU, one record an operator; where they come from, and how well they fit.

All times are in seconds, efficiencies are fractions of the datasheet's peak.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar, cast

from cost_models.errors import CalibrationError, UnknownNameError
from cost_models.gpus import Gpu, gpu
from cost_models.machine import AS_SHIPPED, GAINS, HOST_CONSTANTS, Machine, read_machine


@dataclass(frozen=True, slots=True)
class GemmParams:
    """Matrix product: see `operators.products.gemm_time`.

    edge_elements: how fast a tile loses efficiency as it shrinks. prologue_elements: K elements that
    filling the pipeline costs. split_s, split_passes: fixed time of
    the reduction after split-K, and how often its 32-bit partial sums pass through memory. element_s:
    serial time of a block for each of its K elements. wave_quantization: 0 = waves count in fractions, 1 =
    rounded up.
    throttle: share of compute speed lost to the power limit in long products, half of it at throttle_s of
    work.
    quantize_passes: times that an m·k operand passes through memory to be quantised.
    l2_fraction, l2_speedup: reuse of operands that fit into L2, which serving does not see.
    """

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    edge_elements: float = 0.0
    prologue_elements: float = 0.0
    split_s: float = 0.0
    split_passes: float = 0.0
    element_s: float = 0.0
    wave_quantization: float = 0.0
    throttle: float = 0.0
    throttle_s: float = 1.0
    quantize_passes: float = 0.0
    l2_fraction: float = 1.0
    l2_speedup: float = 1.0


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """Decode attention: see `operators.attention.decode_attention_s`.

    cold_s: delay of a KV read that misses L2. wave_s: one wave of thread blocks; group_cost: its growth per
    8 query heads sharing a KV head. combine_s: merging split KV. reorder_s: copy of the output where a
    grouped kernel needs one. block_bandwidth: what one unsplit thread block streams, in shares of bandwidth
    / SM; split_bandwidth: what all the splits of one sequence and KV head together do. tail: weight of the
    last, partly filled wave.
    splits_mha: False where a kernel never splits the KV of a model without grouped heads (FlashAttention-2).
    l2_fraction, l2_speedup: reuse of a buffer that fits into L2, which serving does not see.
    """

    t0_s: float
    memory_efficiency: float
    exponent: float
    cold_s: float
    wave_s: float
    group_cost: float
    combine_s: float
    split_bandwidth: float
    reorder_s: float = 0.0
    block_bandwidth: float = 0.0
    tail: float = 0.0
    splits_mha: bool = True
    l2_fraction: float = 1.0
    l2_speedup: float = 1.0


@dataclass(frozen=True, slots=True)
class PrefillParams:
    """Prefill attention: see `operators.attention.prefill_attention_s`.

    tile_rows: query rows of a thread block; packs_heads: whether the query heads of a group share those rows.
    prologue_tokens: KV tokens that starting a block costs. exponent joins throughput and the longest block,
    io_exponent joins those with memory. kv_write_efficiency and kv_write_head_s: writing new keys and
    values, per byte and per token and KV head (up to 4).
    """

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    io_exponent: float
    prologue_tokens: float
    wave_quantization: float
    kv_write_efficiency: float
    kv_write_head_s: float
    tile_rows: int = 128
    packs_heads: bool = False
    l2_fraction: float = 1.0
    l2_speedup: float = 1.0


@dataclass(frozen=True, slots=True)
class SmallOpParams:
    """One elementwise kernel: pnorm(floor_s, bytes / (bandwidth · memory_efficiency), exponent)."""

    floor_s: float
    memory_efficiency: float
    exponent: float


@dataclass(frozen=True, slots=True)
class AllReduceParams:
    """All-reduce of the engine: one-shot or two-shot kernels up to 8 MB; see `operators.collectives`."""

    one_shot_s: float
    one_shot_per_gpu_s: float
    one_shot_efficiency: float
    two_shot_s: float
    two_shot_per_gpu_s: float
    two_shot_efficiency: float


@dataclass(frozen=True, slots=True)
class NcclParams:
    """A collective of NCCL: the better of a low-latency and a ring protocol; see `operators.collectives`."""

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
class MoeParams:
    """Fused mixture-of-experts block: see `operators.products.moe_s`.

    padding: share of a 64-row tile wasted per expert touched. prologue_elements: as for GEMM, on the
    intermediate size. activation_passes, hidden_passes: times that intermediate and hidden rows pass
    through memory. skew: how much of the expected imbalance between expert-parallel ranks is seen.
    wide_slowdown: factor on weight reads once there are more tokens than experts.
    """

    t0_s: float
    compute_efficiency: float
    memory_efficiency: float
    exponent: float
    padding: float
    prologue_elements: float
    activation_passes: float
    hidden_passes: float
    skew: float
    wide_slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class WholeModel:
    """What only a whole model shows, since single operators are measured alone, warm and unfused.

    launch_gap_s: share of a stand-alone attention launch that vanishes in a model's own stream of kernels.
    graph_floor_s: shortest elementwise kernel in a captured graph. fused_memory_efficiency: bandwidth of
    fused elementwise kernels. fp8_kv_efficiency: speed of streaming fp8 KV over 16-bit KV, a byte.
    `serving` has what differs by GPU part beyond that.
    """

    launch_gap_s: float
    graph_floor_s: float
    fused_memory_efficiency: float
    fp8_kv_efficiency: float = 1.0


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
    machine has the constants of one machine, where the calibration is of one; those that it has not shown
    itself are in borrowed as well, such as `machine.compute_gain`.
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
    machine: Machine = AS_SHIPPED

    def at_machine_speed(self) -> Calibration:
        """Its collectives as quick as they are on its machine; what the GPU does, `Machine.gpu` has."""
        gain = self.machine.all_reduce_gain
        return dataclasses.replace(
            self,
            all_reduce=_sped_up(self.all_reduce, gain),
            nccl={name: _sped_up(params, gain) for name, params in self.nccl.items()},
        )


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

# To whom a measured part looks for what it lacks itself.
_LENDERS = {
    "a100-sxm-80gb": ("h100-sxm",),
    "a100-pcie-80gb": ("a100-sxm-80gb", "h100-sxm"),
    "h200-sxm": ("h100-sxm",),
    "b200": ("h100-sxm",),
    "l40s": ("a100-sxm-80gb", "h100-sxm"),
}


def _sped_up(params: _T, gain: float) -> _T:
    """The same operator with all its times divided and all its efficiencies multiplied by `gain`."""
    values = dataclasses.asdict(params)  # type: ignore[call-overload]
    return type(params)(
        **{name: value / gain if name.endswith("_s") else value * gain for name, value in values.items()}
    )


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _record(kind: type[_T], values: object, where: str) -> _T:
    if not isinstance(values, dict):
        raise CalibrationError(f"{where}: expected a table of parameters")
    unknown = sorted(values.keys() - kind.__dataclass_fields__.keys())  # type: ignore[attr-defined]
    if unknown:
        raise CalibrationError(f"{where}: unknown parameters {', '.join(unknown)}")
    wrong = [
        f"{name} {values[name]!r}"
        for name, field_ in kind.__dataclass_fields__.items()  # type: ignore[attr-defined]
        if name in values and field_.type in ("float", "int") and not _is_amount(values[name])
    ]
    if wrong and kind is not Residual:
        raise CalibrationError(f"{where}: not a finite number of at least 0: {', '.join(wrong)}")
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
        own = data.get("parameters", {}) if "machine" in data else data["parameters"]
        parameters = cast("dict[str, object]", own)
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
        table = parameters.get(name, {})
        if not isinstance(table, dict):
            raise CalibrationError(f"{where}: {name}: expected a table of tables")
        fields[name] = {key: _record(kind, value, f"{where}: {name}.{key}") for key, value in table.items()}
    borrowed = _borrow(fields, part, (calibration(part.name),) if lenders is None else lenders)
    machine = AS_SHIPPED
    if "machine" in data:
        machine = read_machine(data["machine"], where)
        shipped = dict.fromkeys(HOST_CONSTANTS, "engine release") | dict.fromkeys(GAINS, part.name)
        borrowed |= {f"machine.{name}": of for name, of in shipped.items() if name not in machine.fitted}
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
        machine=machine,
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


def calibration_for(part: str, path: Path | None = None) -> Calibration:
    """The calibration in the file `path`, which must be one of this GPU; without a file the one shipped.

    Raises CalibrationError for a file that cannot be read or is of another GPU.
    """
    if path is None:
        return calibration(part)
    try:
        found = load_calibration(path)
    except UnknownNameError as fault:
        raise CalibrationError(f"{path}: {fault}") from fault
    if found.gpu != gpu(part).name:
        raise CalibrationError(f"{path.name} is of {found.gpu}, not of {gpu(part).name}")
    return found


@cache
def _shipped(name: str) -> Calibration | None:
    place = files(__package__) / "data" / "calibrations" / f"{name}.json"
    if not place.is_file():
        return None
    lenders = [lender for lender in map(_shipped, _LENDERS.get(name, ())) if lender is not None]
    return parse_calibration(place.read_text(encoding="utf-8"), place.name, lenders)


@cache
def calibration(gpu_name: str) -> Calibration:
    """The calibration of a GPU. An unmeasured part takes its architecture's efficiencies, and says so in
    `note`.
    """
    part = gpu(gpu_name)
    measured = _shipped(part.name)
    if measured is not None:
        return measured
    lender = _shipped(part.reference_part or "a100-sxm-80gb")
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
