"""Weight dtypes: bytes a weight, the arithmetic it runs in, and which layers it covers."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.catalog import nearest
from cost_models.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class WeightDtype:
    """One quantisation scheme.

    `bytes_per_weight` includes scales and zero points; `compute` is the dtype of the matrix product
    (weight-only schemes multiply in bf16); `scope` says what is quantised: `linears` (all block linears),
    `ffn` (feed-forward only), `experts` (routed experts only) or `none`. Embedding, head, router and norms
    always stay at 16 bit.
    Sizes: int4 with groups of 128 takes 0.52 B, nvfp4 0.56, mxfp4 0.531 (measured weight sizes of engine
    start-up logs agree within 0.4 % median).
    """

    name: str
    bytes_per_weight: float
    compute: str
    scope: str


_SCHEMES = {
    s.name: s
    for s in (
        WeightDtype("bf16", 2.0, "bf16", "none"),
        WeightDtype("fp16", 2.0, "fp16", "none"),
        WeightDtype("fp32", 4.0, "bf16", "linears"),
        WeightDtype("fp8", 1.0, "fp8", "linears"),
        WeightDtype("fp8-ffn", 1.0, "fp8", "ffn"),
        WeightDtype("int8", 1.0, "int8", "linears"),
        WeightDtype("w8a16", 1.0, "bf16", "linears"),
        WeightDtype("int4", 0.52, "bf16", "linears"),
        WeightDtype("int4-experts", 0.5625, "bf16", "experts"),
        WeightDtype("nvfp4", 0.56, "fp4", "linears"),
        WeightDtype("mxfp4", 0.531, "bf16", "experts"),
    )
}
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp8_e4m3": "fp8",
    "w8a8": "int8",
    "int8-w8a8": "int8",
    "int8-w8a16": "w8a16",
    "int4-gptq": "int4",
    "gptq": "int4",
    "awq": "int4",
    "w4a16": "int4",
    "fp4": "nvfp4",
}

KV_DTYPE_BYTES = {
    "auto": 2,
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


def weight_dtype(name: str) -> WeightDtype:
    """The scheme called `name` (or an alias such as `bfloat16`, `awq`, `w8a8`)."""
    key = _ALIASES.get(name, name)
    if key not in _SCHEMES:
        raise UnknownNameError("weight dtype", name, nearest(name, [*_SCHEMES, *_ALIASES]))
    return _SCHEMES[key]


def kv_dtype_bytes(name: str) -> int:
    """Bytes of one KV-cache element: 2 for `auto`, bf16 and fp16, 1 for the fp8 formats."""
    if name not in KV_DTYPE_BYTES:
        raise UnknownNameError("kv cache dtype", name, nearest(name, KV_DTYPE_BYTES))
    return KV_DTYPE_BYTES[name]
