"""What is fitted: for each operator its parameters, their physical bounds, its formula and the roofline.

Bounds are (start, low, high) in seconds and shares; the roofline is that of the datasheet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from cost_models.calibration import (
    AllReduceParams,
    Calibration,
    DecodeParams,
    GemmParams,
    MoeParams,
    NcclParams,
    PrefillParams,
    SendRecvParams,
    SmallOpParams,
)
from cost_models.errors import CalibrationError
from cost_models.fit.tables import OperatorTable
from cost_models.gpus import Gpu, gpu
from cost_models.operators.attention import decode_attention_s, prefill_attention_s
from cost_models.operators.products import (
    all_reduce_s,
    custom_all_reduce_s,
    expert_loads,
    gemm_datasheet_s,
    gemm_s,
    moe_s,
    nccl_s,
    send_recv_s,
)
from cost_models.operators.roofline import PASSES, Floats, small_op_s

US = 1e-6
Bounds = tuple[float, float, float]

EXPONENT: Bounds = (2.0, 0.7, 12.0)
GEMM_BOUNDS: dict[str, Bounds] = {
    "t0_s": (3 * US, 0.0, 20 * US),
    "compute_efficiency": (0.8, 0.1, 1.0),
    "memory_efficiency": (0.8, 0.1, 1.0),
    "exponent": (2.5, 0.7, 20.0),
    "edge_elements": (15.0, 0.0, 200.0),
    "prologue_elements": (120.0, 0.0, 1000.0),
    "split_s": (2 * US, 0.0, 10 * US),
    "split_passes": (0.5, 0.0, 5.0),
    "element_s": (0.1e-9, 0.0, 5e-9),
    "wave_quantization": (0.3, 0.0, 1.0),
    "throttle": (0.05, 0.0, 0.4),
    "throttle_s": (500 * US, 100 * US, 0.1),
    "l2_fraction": (0.3, 0.05, 1.0),
    "l2_speedup": (1.5, 1.0, 10.0),
}
DECODE_BOUNDS: dict[str, Bounds] = {
    "t0_s": (9 * US, 2 * US, 25 * US),
    "memory_efficiency": (0.85, 0.2, 1.0),
    "exponent": EXPONENT,
    "cold_s": (8 * US, 0.0, 40 * US),
    "wave_s": (4 * US, 0.3 * US, 12 * US),
    "group_cost": (0.05, 0.0, 2.0),
    "combine_s": (3 * US, 0.0, 12 * US),
    "split_bandwidth": (30.0, 2.0, 200.0),
    "l2_fraction": (0.7, 0.1, 2.0),
    "l2_speedup": (1.2, 1.0, 8.0),
}
FA2_BOUNDS: dict[str, Bounds] = {
    "reorder_s": (5 * US, 0.0, 15 * US),
    "block_bandwidth": (1.2, 0.3, 10.0),
    "tail": (0.3, 0.0, 1.0),
}
PREFILL_BOUNDS: dict[str, Bounds] = {
    "t0_s": (8 * US, 2 * US, 25 * US),
    "compute_efficiency": (0.6, 0.2, 1.0),
    "memory_efficiency": (0.7, 0.05, 1.0),
    "exponent": EXPONENT,
    "io_exponent": (1.5, 0.7, 12.0),
    "prologue_tokens": (100.0, 0.0, 2000.0),
    "wave_quantization": (0.3, 0.0, 1.0),
    "kv_write_efficiency": (0.8, 0.05, 1.0),
    "kv_write_head_s": (1e-9, 0.0, 30e-9),
    "l2_fraction": (0.5, 0.1, 2.0),
    "l2_speedup": (2.0, 1.0, 20.0),
}
ALL_REDUCE_BOUNDS: dict[str, Bounds] = {
    "one_shot_s": (4 * US, 0.1 * US, 40 * US),
    "one_shot_per_gpu_s": (0.1 * US, 0.0, 5 * US),
    "one_shot_efficiency": (0.6, 0.02, 1.0),
    "two_shot_s": (8 * US, 0.1 * US, 60 * US),
    "two_shot_per_gpu_s": (0.2 * US, 0.0, 10 * US),
    "two_shot_efficiency": (0.7, 0.02, 1.0),
}
NCCL_BOUNDS: dict[str, Bounds] = {
    "ll_s": (5 * US, 0.1 * US, 40 * US),
    "ll_per_gpu_s": (1.5 * US, 0.0, 15 * US),
    "ll_efficiency": (0.25, 0.01, 1.0),
    "ring_s": (20 * US, 0.1 * US, 100 * US),
    "ring_per_gpu_s": (1 * US, 0.0, 30 * US),
    "ring_efficiency": (0.7, 0.01, 1.0),
}
SMALL_OP_BOUNDS: dict[str, Bounds] = {
    "floor_s": (3 * US, 0.5 * US, 20 * US),
    "memory_efficiency": (0.5, 0.02, 1.0),
    "exponent": EXPONENT,
}
SEND_RECV_BOUNDS: dict[str, Bounds] = {
    "intra_s": (10 * US, 1 * US, 200 * US),
    "intra_bytes_per_s": (2e11, 1e9, 9e11),
    "inter_s": (20 * US, 1 * US, 500 * US),
    "inter_bytes_per_s": (2e10, 1e8, 9e11),
}
MOE_BOUNDS: dict[str, Bounds] = {
    "t0_s": (25 * US, 3 * US, 80 * US),
    "compute_efficiency": (0.5, 0.1, 1.0),
    "memory_efficiency": (0.9, 0.3, 1.0),
    "exponent": EXPONENT,
    "padding": (0.3, 0.0, 1.0),
    "prologue_elements": (100.0, 0.0, 3000.0),
    "activation_passes": (1.0, 0.0, 20.0),
    "hidden_passes": (1.0, 0.0, 20.0),
    "skew": (1.0, 0.2, 1.5),
    "wide_slowdown": (1.1, 1.0, 2.0),
}
SOFT = frozenset({"exponent", "io_exponent"})


@dataclass(frozen=True, slots=True)
class Form:
    """One operator's formula, ready to be fitted.

    bounds: (start, low, high) of each free parameter; fixed: those that are given. A parameter whose bound
    has no physical meaning (how soft a maximum is) is named in `free`: hitting it is not worth a warning.
    """

    params: type
    bounds: dict[str, Bounds]
    fixed: dict[str, float | int | bool]
    predict: Callable[[OperatorTable, object], Floats]
    free: frozenset[str] = frozenset()


def _gemm_bytes(operator: str) -> float:
    return 1.0 if operator.endswith(("fp8", "int8")) else 2.0


def _gemm(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, GemmParams)
    c, compute = table.columns, table.operator.partition(".")[2]
    size = _gemm_bytes(table.operator)
    return gemm_s(
        c["m"], c["n"], c["k"], gpu(table.gpu), params, weight_bytes=size, compute=compute, l2_reuse=True
    )


def _decode(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, DecodeParams)
    c = table.columns
    return decode_attention_s(
        c["b"], c["kv"], c["h"], c["kvh"], 2.0 * c["d"] * c["kvb"], gpu(table.gpu), params
    )


def _prefill(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, PrefillParams)
    c = table.columns
    return prefill_attention_s(
        c["b"],
        c["q"],
        c["h"],
        c["kvh"],
        c["d"],
        gpu(table.gpu),
        params,
        prefix=c["kv"] - c["q"],
        kv_element_bytes=c["kvb"],
    )


def _custom_all_reduce(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, AllReduceParams)
    return custom_all_reduce_s(table.columns["bytes"], table.columns["gpus"], gpu(table.gpu), params)


def _nccl(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, NcclParams)
    operation = table.operator.partition(".")[2]
    return nccl_s(operation, table.columns["bytes"], table.columns["gpus"], gpu(table.gpu), params)


def _small_op(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, SmallOpParams)
    return small_op_s(_small_op_bytes(table), gpu(table.gpu), params)


def _small_op_bytes(table: OperatorTable) -> Floats:
    passes = PASSES.get(table.operator.partition(".")[2], 2.0)
    return 2.0 * passes * table.columns["m"] * table.columns["width"]


def _send_recv(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, SendRecvParams)
    size = table.columns["bytes"]
    within = send_recv_s(size, params)
    between = send_recv_s(size, params, between_nodes=True)
    return np.where(table.columns["nodes"] > 1, between, within)


def _moe(table: OperatorTable, params: object) -> Floats:
    assert isinstance(params, MoeParams)
    c = table.columns
    balanced, hottest, touched = routed_rows(table)
    rows = np.where(c["ep"] > 1, balanced + params.skew * (hottest - balanced), hottest)
    inner = c["inter"] / c["tp"]
    part = gpu(table.gpu)
    return moe_s(c["tok"], rows, touched, c["E"], c["hid"], inner, c["topk"], part, params)


def routed_rows(table: OperatorTable) -> tuple[Floats, Floats, Floats]:
    """(rows of an average rank, rows of the hottest, experts that it touches), each of shape (rows,)."""
    c = table.columns
    keys = zip(c["tok"], c["topk"], c["E"], c["ep"], table.labels["dist"], strict=True)
    values = np.array([_hottest_rank(t, int(k), int(e), int(p), dist) for t, k, e, p, dist in keys])
    return c["tok"] * c["topk"] / c["ep"], values[:, 0], values[:, 1]


@cache
def _hottest_rank(tokens: float, top_k: int, experts: int, ranks: int, dist: str) -> tuple[float, float]:
    pairs, local = tokens * top_k / ranks, experts // ranks
    if dist == "balanced":
        return max(pairs, 1.0), max(min(float(local), np.ceil(pairs)), 1.0)
    loads = expert_loads(tokens, experts, top_k, float(dist.rpartition("_")[2]))
    if ranks == 1:
        return float(loads.sum()), max(
            float(np.clip(loads, 0.0, 1.0).sum()), min(1.0 * top_k, float(experts))
        )
    rng = np.random.default_rng(0)
    hot = []
    for _ in range(8):
        shares = rng.permutation(loads).reshape(ranks, local)
        hot.append(shares[shares.sum(axis=1).argmax()])
    return (
        float(np.mean([share.sum() for share in hot])),
        max(float(np.mean([np.clip(share, 0.0, 1.0).sum() for share in hot])), 1.0),
    )


def form(operator: str, part: Gpu) -> Form:
    """The form of `operator` on a GPU. Kernels differ by architecture: FlashAttention-2 up to Ada, 3 from
    Hopper.
    """
    older = not part.arch.startswith(("Hopper", "Blackwell"))
    kind = operator.partition(".")[0]
    if kind == "gemm":
        limits = dict(GEMM_BOUNDS)
        if operator.endswith("fp8"):
            limits |= {"quantize_passes": (2.5, 0.0, 10.0), "t0_s": (12 * US, 0.0, 40 * US)}
        return Form(GemmParams, limits, {}, _gemm, SOFT)
    if kind == "attn_decode":
        if older:
            return Form(
                DecodeParams,
                DECODE_BOUNDS | FA2_BOUNDS,
                {"splits_mha": False},
                _decode,
                SOFT,
            )
        return Form(DecodeParams, DECODE_BOUNDS, {}, _decode, SOFT)
    if kind == "attn_prefill":
        tile = 64 if older else 256 if part.arch.startswith("Blackwell") else 128
        packs = part.arch.startswith("Hopper")
        return Form(
            PrefillParams,
            PREFILL_BOUNDS,
            {"tile_rows": tile, "packs_heads": packs},
            _prefill,
            SOFT,
        )
    simple: dict[str, Form] = {
        "all_reduce": Form(AllReduceParams, ALL_REDUCE_BOUNDS, {}, _custom_all_reduce),
        "nccl": Form(NcclParams, NCCL_BOUNDS, {}, _nccl),
        "small_op": Form(SmallOpParams, SMALL_OP_BOUNDS, {}, _small_op, SOFT),
        "send_recv": Form(SendRecvParams, SEND_RECV_BOUNDS, {}, _send_recv),
        "moe": Form(MoeParams, MOE_BOUNDS, {}, _moe, SOFT),
    }
    if kind not in simple:
        raise CalibrationError(f"no formula for operator {operator!r}")
    return simple[kind]


def parameters_of(fitted: Calibration, operator: str) -> object | None:
    """The parameters that a calibration has for an operator of a table; None where it has none."""
    kind, _, key = operator.partition(".")
    tables: dict[str, object] = {
        "gemm": fitted.gemm.get(key),
        "attn_decode": fitted.decode,
        "attn_prefill": fitted.prefill,
        "all_reduce": fitted.all_reduce,
        "nccl": fitted.nccl.get(key),
        "small_op": fitted.small_ops.get(key),
        "send_recv": fitted.send_recv,
        "moe": fitted.moe,
    }
    return tables.get(kind)


def predict(table: OperatorTable, fitted: Calibration) -> Floats | None:
    """Seconds of every row by a calibration; None where it has no parameters for the operator.

    An all-reduce is predicted as the engine does it: own kernels up to 8 MB, NCCL above.
    """
    params = parameters_of(fitted, table.operator)
    if params is None:
        return None
    if table.operator == "all_reduce":
        nccl = fitted.nccl["all_reduce"]
        size, gpus = table.columns["bytes"], table.columns["gpus"]
        return all_reduce_s(size, gpus, gpu(table.gpu), fitted.all_reduce, nccl)
    return form(table.operator, gpu(table.gpu)).predict(table, params)


def datasheet(table: OperatorTable) -> Floats:
    """The uncalibrated roofline: the larger of FLOPs / peak and bytes / bandwidth, both at datasheet
    figures.
    """
    c, part = table.columns, gpu(table.gpu)
    kind, _, key = table.operator.partition(".")
    bandwidth, peak, link = part.memory_bytes_per_s, part.bf16_flop_per_s, part.link_bytes_per_s
    if kind == "gemm":
        size = _gemm_bytes(table.operator)
        return gemm_datasheet_s(c["m"], c["n"], c["k"], part, weight_bytes=size, compute=key)
    if kind == "attn_decode":
        return 2.0 * c["b"] * c["kv"] * c["kvh"] * c["d"] * c["kvb"] / bandwidth
    if kind == "attn_prefill":
        flops = 4.0 * c["b"] * c["h"] * c["d"] * c["q"] * (c["kv"] - 0.5 * c["q"])
        moved = (
            4.0 * c["b"] * c["q"] * (c["h"] + c["kvh"]) * c["d"] + 4.0 * c["b"] * c["q"] * c["kvh"] * c["d"]
        )
        return np.maximum(flops / peak, moved / bandwidth)
    if kind == "moe":
        rows, _, touched = routed_rows(table)
        inner = c["inter"] / c["tp"]
        flops = 6.0 * rows * c["hid"] * inner
        return np.maximum(flops / peak, touched * 6.0 * c["hid"] * inner / bandwidth)
    if kind in ("all_reduce", "nccl"):
        factor = 2.0 if "reduce" in table.operator and "scatter" not in table.operator else 1.0
        return factor * (c["gpus"] - 1.0) / c["gpus"] * c["bytes"] / link
    if kind == "small_op":
        return _small_op_bytes(table) / bandwidth
    return c["bytes"] / link
