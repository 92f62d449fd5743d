"""What each term of the cost model buys: measured runs simulated again with one named term off at a time.

Beside the full model and the terms stands the uncalibrated roofline: every operator at datasheet peaks, and
no time but the GPU's. A term whose removal raises the errors earns its place; one that changes nothing has
nothing to show on these runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

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
from sim.evidence.validate.replay import SHIPPED, CostVariant, replay_all
from sim.evidence.validate.run_table import MeasuredRun
from sim.evidence.validate.scoring import ErrorSummary, errors_by_metric
from sim.jobs.options import RunOptions
from sim.report.answer import Answer, records
from sim.report.document import Block, Table
from sim.values import Json

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ABLATED_METRICS", "VARIANTS", "Ablation", "Ablations", "ablate"]

#: What the table shows of each variant.
ABLATED_METRICS = ("tpot_mean", "e2e_mean", "ttft_mean", "ttft_p99", "saturated_out_tput_tok_s")


@dataclass(frozen=True)
class Ablation:
    """The errors of one variant by metric."""

    name: str
    errors: dict[str, ErrorSummary]


@dataclass(frozen=True, repr=False)
class Ablations(Answer):
    """The errors of the full model, and of each of its variants."""

    kind: ClassVar[str] = "ablation"

    variants: tuple[Ablation, ...]

    @property
    def question(self) -> str:
        """What each term buys."""
        return "What each term buys: median absolute error % (median signed error %), a term off at a time"

    @property
    def _metrics(self) -> list[str]:
        return [name for name in ABLATED_METRICS if any(name in each.errors for each in self.variants)]

    def folder_in(self, root: Path) -> Path:
        """`root`/ablations."""
        return root / "ablations"

    def tables(self) -> dict[str, pd.DataFrame]:
        """Median, p90 and bias (%) by variant and metric."""
        import pandas as pd

        rows = [
            (each.name, metric, e.rows, e.median, e.p90, e.bias)
            for each in self.variants
            for metric, e in each.errors.items()
        ]
        columns = ["variant", "metric", "rows", "median_percent", "p90_percent", "bias_percent"]
        return {"ablations.csv": pd.DataFrame(rows, columns=columns)}

    def as_json(self) -> dict[str, Json]:
        """The rows of the table."""
        return {"errors": records(self.tables()["ablations.csv"])}

    def blocks(self) -> list[Block]:
        """A table with a variant a row."""
        metrics = self._metrics
        rows = [(each.name, *(_cell(each.errors.get(name)) for name in metrics)) for each in self.variants]
        counts = [max(each.errors[m].rows for each in self.variants if m in each.errors) for m in metrics]
        header = ("", *(name.removesuffix("_tok_s") for name in metrics))
        right = (False, *(True for _ in metrics))
        return [Table(header, (("rows", *map(str, counts)), *rows), right)]


def _cell(errors: ErrorSummary | None) -> str:
    return "" if errors is None else f"{errors.median:.1f} ({errors.bias:+.1f})"


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
    CostVariant("no host time", profile=_no_host),
    CostVariant("no front-end time", profile=_no_front_end),
    CostVariant("no slowdown of decodes beside a prefill", facts=_no_mixing),
    CostVariant("operators as on the bench", facts=_as_on_the_bench),
    CostVariant("no wave quantization", calibration=_no_waves),
    CostVariant("no fixed time of kernels", calibration=_no_fixed_time),
    CostVariant("no CUDA-graph padding", padding=False),
    CostVariant("greedy sampling", greedy=True),
    CostVariant("no communication", calibration=_no_communication),
    CostVariant(
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
    variants: Sequence[CostVariant] = VARIANTS,
    options: RunOptions | None = None,
) -> Ablations:
    """Simulate the runs once for every variant."""
    options = (options or RunOptions()).over_many_calls()
    found = []
    for variant in variants:
        replayed = replay_all(runs, limit_requests=limit_requests, variant=variant, options=options)
        errors = errors_by_metric(error for each in replayed for error in each.errors)
        shown = {name: errors[name] for name in ABLATED_METRICS if name in errors}
        found.append(Ablation(variant.name, shown))
    return Ablations(tuple(found))
