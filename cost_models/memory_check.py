"""The memory plan against what real engines logged at start-up: errors in GiB and in tokens."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cost_models.deployment import Deployment
from cost_models.engines import version_key
from cost_models.errors import GIB, CostModelError
from cost_models.gpus import gpu
from cost_models.memory import MemoryPlan, memory_plan
from cost_models.models import Parallelism
from cost_models.named_models import model

# What a log calls a quantisation → weight dtype.
_QUANTIZATIONS = {
    "none": "bf16",
    "int4g128": "int4",
    "fp8": "fp8",
    "bnb4": "int4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}


@dataclass(frozen=True, slots=True)
class MemoryCheckRow:
    """One start-up: what it logged and what the plan says. `*_error` are relative; GiB are per GPU."""

    source: str
    model: str
    engine_version: str
    generation: str
    gpu: str
    tensor_parallel: int
    model_kind: str
    logged_kv_tokens: int
    planned_kv_tokens: int
    kv_gib_error: float | None
    weights_gib_error: float | None
    plan: MemoryPlan

    @property
    def token_error(self) -> float:
        """planned / logged - 1."""
        return self.planned_kv_tokens / self.logged_kv_tokens - 1.0


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """All rows that could be compared, and why others were not."""

    rows: tuple[MemoryCheckRow, ...]
    skipped: tuple[str, ...]

    def token_percentiles(self, rows: Sequence[MemoryCheckRow] | None = None) -> tuple[float, float]:
        """(median, 90th percentile) of the absolute error in tokens, in percent."""
        errors = sorted(100.0 * abs(row.token_error) for row in (self.rows if rows is None else rows))
        return statistics.median(errors), percentile(errors, 0.9)

    def groups(self) -> dict[str, list[MemoryCheckRow]]:
        """Rows by engine generation, GPU, TP and kind of model."""
        grouped: dict[str, list[MemoryCheckRow]] = {}
        for row in self.rows:
            name = f"{row.generation:<4}{row.gpu:<16}TP {row.tensor_parallel:<3}{row.model_kind}"
            grouped.setdefault(name, []).append(row)
        return dict(sorted(grouped.items()))

    def render(self) -> str:
        """Errors by group, then what was skipped; the last line is the total over all compared rows."""
        lines = [
            f"{'engine, GPU, TP, model':<36}{'rows':>5}{'tokens %':>10}{'p90 %':>8}{'bias %':>8}{'GiB':>8}"
        ]
        for name, rows in self.groups().items():
            median, p90 = self.token_percentiles(rows)
            bias = 100.0 * statistics.median(row.token_error for row in rows)
            gib = [abs(row.kv_gib_error) for row in rows if row.kv_gib_error is not None]
            size = f"{statistics.median(gib):8.2f}" if gib else f"{'-':>8}"
            lines.append(f"{name:<36}{len(rows):>5}{median:>10.1f}{p90:>8.1f}{bias:>8.1f}{size}")
        lines += [f"skipped: {reason}" for reason in self.skipped]
        if not self.rows:
            return "\n".join([*lines, "fit: no row could be compared"])
        median, p90 = self.token_percentiles()
        lines.append(f"fit: kv_tokens median {median:.1f} % p90 {p90:.1f} % over {len(self.rows)} rows")
        return "\n".join(lines)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics of a sorted sequence."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def check_rows(rows: Iterable[Mapping[str, str]]) -> MemoryCheck:
    """Compare the plan with start-up logs: rows with the columns of the project's table of KV capacities.

    Needed are vllm_version, gpu, tp, model and kv_tokens (or num_gpu_blocks); every other column that is
    missing or blank takes the release's default. Rows with fit_ok = 0 and rows that name an unknown part
    are skipped, and say so.
    """
    compared: list[MemoryCheckRow] = []
    skipped: dict[str, int] = {}
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            reason = f"line {number}: not as many fields as the header"
        elif row.get("fit_ok", "1") == "0":
            reason = "marked as not to be scored"
        else:
            try:
                compared.append(_compare(row))
                continue
            except (CostModelError, KeyError, ValueError) as fault:
                reason = f"line {number}: {fault}"
        skipped[reason] = skipped.get(reason, 0) + 1
    return MemoryCheck(
        tuple(compared),
        tuple(f"{count} x {reason}" if count > 1 else reason for reason, count in skipped.items()),
    )


def _compare(row: Mapping[str, str]) -> MemoryCheckRow:
    named = model(row["model"])
    part = gpu(row["gpu"])
    block_size = int(_number(row, "block_size") or 16)
    parallel = Parallelism(int(row["tp"]), int(_number(row, "pp") or 1))
    version = row["vllm_version"]
    total = _number(row, "gpu_mem_gb") or _number(row, "gpu_mem_assumed")
    deployment = Deployment.of(
        named.model,
        part,
        parallel,
        weight_dtype=_weight_dtype(row, named.model.quantization, named.weight_dtype),
        kv_cache_dtype=row.get("kv_dtype") or "auto",
        max_num_seqs=_whole(row, "seqs_eff") or _whole(row, "max_num_seqs"),
        max_num_batched_tokens=_whole(row, "mbt_eff") or _whole(row, "max_num_batched_tokens"),
        max_model_len=_whole(row, "max_model_len"),
        gpu_memory_utilization=_number(row, "gpu_mem_util"),
        block_size=block_size,
        engine_version=version,
        enforce_eager=row.get("enforce_eager") == "True",
    )
    plan = memory_plan(
        deployment,
        sampler=row.get("sampler") or "auto",
        enable_chunked_prefill=row.get("chunked_prefill") != "False",
        total_memory_bytes=total * GIB if total else None,
    )
    logged = _logged_tokens(row, plan)
    kv_gib, weights_gib = _number(row, "kv_gib"), _number(row, "weights_gib")
    return MemoryCheckRow(
        source=row.get("source", ""),
        model=row["model"],
        engine_version=version,
        generation=row.get("engine_gen") or ("V1" if version_key(version) >= (0, 8) else "V0"),
        gpu=part.name,
        tensor_parallel=parallel.tensor,
        model_kind=named.model.kind,
        logged_kv_tokens=logged,
        planned_kv_tokens=plan.kv_tokens,
        kv_gib_error=plan.kv_cache_bytes / GIB - kv_gib if kv_gib else None,
        weights_gib_error=plan.weights_bytes / GIB - weights_gib if weights_gib else None,
        plan=plan,
    )


def _logged_tokens(row: Mapping[str, str], plan: MemoryPlan) -> int:
    """Tokens as logged; else blocks times their size; else the logged GiB over the plan's bytes a token."""
    tokens = _whole(row, "kv_tokens") or (_whole(row, "num_gpu_blocks") or 0) * plan.block_size
    if not tokens:
        tokens = int((_number(row, "kv_gib") or 0.0) * GIB / plan.bytes_per_token)
    if not tokens:
        raise ValueError("the log has neither tokens nor blocks nor GiB of KV cache")
    return tokens


def _weight_dtype(row: Mapping[str, str], own: str, implied: str | None) -> str:
    """The scheme that a log calls `quant_class`; the model's or the alias's own where that is of the same
    kind.
    """
    logged = row.get("quant_class") or ""
    for scheme in (implied, own):
        if scheme and logged and scheme.startswith(logged.removesuffix("g128")):
            return scheme
    if logged in _QUANTIZATIONS:
        return _QUANTIZATIONS[logged]
    return implied or "auto"


def _number(row: Mapping[str, str], column: str) -> float | None:
    value = (row.get(column) or "").strip()
    return float(value) if value else None


def _whole(row: Mapping[str, str], column: str) -> int | None:
    value = _number(row, column)
    return None if value is None else int(value)
