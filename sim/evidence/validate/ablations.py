"""What each term of the cost model buys: measured runs simulated again with one named term off at a time.

Beside the full model and the terms stands the uncalibrated roofline: every operator at datasheet peaks, and
no time but the GPU's. A term whose removal raises the errors earns its place; one that changes nothing has
nothing to show on these runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models import Calibration, EngineProfile, ServingFacts
from cost_models.calibration import (
    AllReduceParams,
    DecodeParams,
    GemmParams,
    MoeParams,
    NcclParams,
    PrefillParams,
    WholeModel,
)
from sim.evidence.validate.replay import SHIPPED, Variant, replay_all
from sim.evidence.validate.run_table import MeasuredRun
from sim.evidence.validate.scoring import ErrorSummary, errors_by_metric
from sim.jobs.options import RunOptions

__all__ = ["ABLATED_METRICS", "VARIANTS", "Ablation", "ablate", "ablation_lines", "ablation_markdown"]

#: What the table shows of each variant.
ABLATED_METRICS = ("tpot_mean", "e2e_mean", "ttft_mean", "ttft_p99", "saturated_out_tput_tok_s")


@dataclass(frozen=True)
class Ablation:
    """The errors of one variant by metric."""

    name: str
    errors: dict[str, ErrorSummary]


def _no_host(profile: EngineProfile) -> EngineProfile:
    return replace(profile, step_host_s=0.0, request_host_s=0.0, step_gap_s=0.0)


def _no_front_end(profile: EngineProfile) -> EngineProfile:
    return replace(profile, frontend_s=0.0, frontend_stream_s=0.0)


def _no_cpu(profile: EngineProfile) -> EngineProfile:
    return replace(_no_front_end(_no_host(profile)), sampler_bytes_per_logit=0.0)


def _no_mixing(facts: ServingFacts) -> ServingFacts:
    return replace(facts, mixed_decode_slowdown=1.0, mixed_block_bandwidth=0.0)


def _as_on_the_bench(_: ServingFacts) -> ServingFacts:
    return ServingFacts()


def _no_waves(fitted: Calibration) -> Calibration:
    gemm = {name: replace(each, wave_quantization=0.0) for name, each in fitted.gemm.items()}
    return replace(fitted, gemm=gemm, prefill=replace(fitted.prefill, wave_quantization=0.0))


_NO_ALL_REDUCE = AllReduceParams(0.0, 0.0, 1e12, 0.0, 0.0, 1e12)
_NO_NCCL = NcclParams(0.0, 0.0, 1e12, 0.0, 0.0, 1e12)


def _no_communication(fitted: Calibration) -> Calibration:
    nccl = dict.fromkeys(fitted.nccl, _NO_NCCL)
    return replace(fitted, all_reduce=_NO_ALL_REDUCE, nccl=nccl)


def _no_fixed_time(fitted: Calibration) -> Calibration:
    """Kernels that do their work and nothing else: no launch, no floor, no filling of pipelines."""
    gemm = {name: replace(each, t0_s=0.0, split_s=0.0) for name, each in fitted.gemm.items()}
    decode = replace(fitted.decode, t0_s=0.0, cold_s=0.0, combine_s=0.0, reorder_s=0.0)
    return replace(
        fitted,
        gemm=gemm,
        decode=decode,
        prefill=replace(fitted.prefill, t0_s=0.0),
        moe=replace(fitted.moe, t0_s=0.0),
        whole_model=replace(fitted.whole_model, graph_floor_s=0.0),
    )


_SHARP = 20.0  # An exponent at which the soft maximum of two times is their maximum.


def datasheet_roofline(fitted: Calibration) -> Calibration:
    """Every operator at datasheet peaks: max(FLOPs / peak, bytes / bandwidth), communication bytes / link.

    Tiles remain, at no loss of efficiency for their size; nothing has a fixed time.
    """
    return replace(
        fitted,
        gemm={name: GemmParams(0.0, 1.0, 1.0, _SHARP) for name in fitted.gemm},
        decode=DecodeParams(0.0, 1.0, _SHARP, 0.0, 1e-12, 0.0, 0.0, 1e9),
        prefill=PrefillParams(0.0, 1.0, 1.0, _SHARP, _SHARP, 0.0, 0.0, 1.0, 0.0, packs_heads=True),
        small_ops={
            name: replace(each, floor_s=1e-12, memory_efficiency=1.0)
            for name, each in fitted.small_ops.items()
        },
        all_reduce=AllReduceParams(0.0, 0.0, 1.0, 0.0, 0.0, 1.0),
        nccl=dict.fromkeys(fitted.nccl, NcclParams(0.0, 0.0, 1.0, 0.0, 0.0, 1.0)),
        moe=MoeParams(0.0, 1.0, 1.0, _SHARP, 0.0, 0.0, 0.0, 0.0, 0.0),
        whole_model=WholeModel(0.0, 0.0, 1.0),
    )


VARIANTS = (
    SHIPPED,
    Variant("no host time", profile=_no_host),
    Variant("no front-end time", profile=_no_front_end),
    Variant("no slowdown of decodes beside a prefill", facts=_no_mixing),
    Variant("operators as on the bench", facts=_as_on_the_bench),
    Variant("no wave quantization", calibration=_no_waves),
    Variant("no fixed time of kernels", calibration=_no_fixed_time),
    Variant("no CUDA-graph padding", padding=False),
    Variant("greedy sampling", greedy=True),
    Variant("no communication", calibration=_no_communication),
    Variant(
        "datasheet roofline",
        calibration=datasheet_roofline,
        facts=_as_on_the_bench,
        profile=_no_cpu,
        greedy=True,
    ),
)


def ablate(
    runs: Sequence[MeasuredRun],
    *,
    limit_requests: int | None = None,
    variants: Sequence[Variant] = VARIANTS,
    options: RunOptions | None = None,
) -> list[Ablation]:
    """Simulate the runs once for every variant."""
    options = (options or RunOptions()).over_many_calls()
    table = []
    for variant in variants:
        replayed = replay_all(runs, limit_requests=limit_requests, variant=variant, options=options)
        errors = errors_by_metric(error for each in replayed for error in each.errors)
        table.append(
            Ablation(variant.name, {name: errors[name] for name in ABLATED_METRICS if name in errors})
        )
    return table


def ablation_lines(table: Sequence[Ablation]) -> list[str]:
    """The table for a terminal: median and bias of each metric, a variant a line."""
    metrics = [metric for metric in ABLATED_METRICS if any(metric in each.errors for each in table)]
    names = {metric: metric.removesuffix("_tok_s").replace("saturated_", "sat ") for metric in metrics}
    rows = {
        metric: max(each.errors[metric].rows for each in table if metric in each.errors) for metric in metrics
    }
    lines = [
        "What each term buys: median absolute error % (median signed error %), a term off at a time",
        f"  {'':42}" + "".join(f"{names[metric]:>19}" for metric in metrics),
        f"  {'rows':42}" + "".join(f"{rows[metric]:>19}" for metric in metrics),
    ]
    for each in table:
        cells = [f"{_cell(each.errors.get(metric)):>19}" for metric in metrics]
        lines.append(f"  {each.name:42}" + "".join(cells))
    return lines


def ablation_markdown(table: Sequence[Ablation]) -> list[str]:
    """The same as a table of a document."""
    metrics = [metric for metric in ABLATED_METRICS if any(metric in each.errors for each in table)]
    lines = [f"| | {' | '.join(metrics)} |", "|---|" + "---|" * len(metrics)]
    return lines + [
        f"| {each.name} | {' | '.join(_cell(each.errors.get(metric)) for metric in metrics)} |"
        for each in table
    ]


def _cell(errors: ErrorSummary | None) -> str:
    return "" if errors is None else f"{errors.median:.1f} ({errors.bias:+.1f})"
