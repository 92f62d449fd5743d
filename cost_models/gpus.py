"""GPU parts as facts: datasheet peaks, memory as CUDA reports it, links to the neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from cost_models.catalog import entry, read_table, resolve
from cost_models.errors import GIB, UnknownNameError

_REFERENCE_PARTS = {"Hopper": "h100-sxm", "Ampere": "a100-sxm-80gb", "Ada": "l40s", "Blackwell": "b200"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU part. Peaks are dense datasheet figures; 0.0 means that the part has no such unit.

    `memory_bytes` is what CUDA reports at start-up where a log was seen (`memory_is_logged`), else the
    label times the median ratio of reported to labelled memory.
    """

    name: str
    form: str
    arch: str
    sm_count: int
    l2_bytes: float
    bf16_flop_per_s: float
    fp8_flop_per_s: float
    int8_op_per_s: float
    fp4_flop_per_s: float
    memory_bytes: float
    memory_is_logged: bool
    memory_bytes_per_s: float
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    tdp_w: float
    source: str
    unchecked: str = ""

    @property
    def reference_part(self) -> str:
        """The measured part of its architecture, whose efficiencies an unmeasured part takes; "" if none."""
        return _REFERENCE_PARTS.get(self.arch.split(" ", 1)[0], "")

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth to a neighbour, one direction: NVLink where the part has it, else PCIe."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s

    def compute_dtype(self, wanted: str) -> str:
        """`wanted` where the part has a unit for it; else bf16: weights are then expanded before the
        product.
        """
        units = {"fp8": self.fp8_flop_per_s, "int8": self.int8_op_per_s, "fp4": self.fp4_flop_per_s}
        return wanted if units.get(wanted, 1.0) else "bf16"

    def peak_flop_per_s(self, compute_dtype: str) -> float:
        """Dense peak for bf16, fp16, fp8, int8 or fp4 operands; what the part lacks runs at its bf16 rate."""
        peaks = {"fp8": self.fp8_flop_per_s, "int8": self.int8_op_per_s, "fp4": self.fp4_flop_per_s}
        return peaks.get(compute_dtype, 0.0) or self.bf16_flop_per_s


# CUDA-reported GiB over labelled GB, median of the parts whose start-up logs were seen (80 GB: 79.2, 24 GB:
# 22-23.6, 141 GB: 139.8, 48 GB: 44.4).
_REPORTED_GIB_PER_LABEL_GB = 0.98


@cache
def _aliases() -> dict[str, str]:
    aliases: dict[str, str] = {}
    for name, row in read_table("gpus.toml").items():
        spellings = row.get("aliases", [])
        aliases.update({str(a): name for a in (spellings if isinstance(spellings, list) else [])})
    return aliases


def gpu_names() -> list[str]:
    """Canonical names of all known parts."""
    return list(read_table("gpus.toml"))


@cache
def gpu(name: str) -> Gpu:
    """The part called `name` (an id such as `h100-sxm`, or any alias). Unknown names raise
    UnknownNameError.
    """
    table = read_table("gpus.toml")
    try:
        key = name if name in table else resolve("gpu", name, table, _aliases())
    except UnknownNameError as unknown:
        ids = dict.fromkeys(_aliases().get(s, s) for s in unknown.suggestions)
        raise UnknownNameError("gpu", name, list(ids)) from None
    row = entry("gpus.toml", key)
    logged = "cuda_total_gib" in row.values
    total_gib = row.number("cuda_total_gib", 0.0) or row.number("memory_gb") * _REPORTED_GIB_PER_LABEL_GB
    part = Gpu(
        name=key,
        form=row.text("form"),
        arch=row.text("arch"),
        sm_count=row.whole("sm_count"),
        l2_bytes=row.number("l2_mb") * 1e6,
        bf16_flop_per_s=row.number("bf16_tflops") * 1e12,
        fp8_flop_per_s=row.number("fp8_tflops", 0.0) * 1e12,
        int8_op_per_s=row.number("int8_tflops", 0.0) * 1e12,
        fp4_flop_per_s=row.number("fp4_tflops", 0.0) * 1e12,
        memory_bytes=total_gib * GIB,
        memory_is_logged=logged,
        memory_bytes_per_s=row.number("memory_gb_per_s") * 1e9,
        nvlink_bytes_per_s=row.number("nvlink_gb_per_s", 0.0) * 1e9,
        pcie_bytes_per_s=row.number("pcie_gb_per_s", 0.0) * 1e9,
        tdp_w=row.number("tdp_w", 0.0),
        source=row.text("source"),
        unchecked=row.text("unchecked"),
    )
    row.check()
    return part
