"""Fits what kernels do inside a running engine (`cost_models.ServingFacts`) to measured runs of one GPU part.

Every trial simulates all the runs anew, so a fit takes some dozen times what validating them takes. Only runs
that are not held out are fitted; the held-out third is simulated once before and once after, to be reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import least_squares

from cost_models import ServingFacts, gpu, serving_facts
from sim.errors import input_error
from sim.evidence.validate.replay import SHIPPED, CostVariant, replay_all
from sim.evidence.validate.run_table import MeasuredRun
from sim.evidence.validate.scoring import ErrorSummary, MetricError, group_by, held_out, summarize_errors
from sim.jobs.options import RunOptions
from sim.report.document import Block, Bullets, Document, Preformatted, Table

__all__ = ["BOUNDS", "FITTED_METRICS", "ServingFit", "fit_serving"]

#: (typical size, lowest, highest) of each constant: what is physically possible.
BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "weight_stream_gain": (1.0, 0.8, 1.4),
    "single_row_gain": (1.0, 0.9, 1.3),
    "layer_gap_s": (4e-6, 0.0, 12e-6),
    "mixed_decode_slowdown": (1.5, 1.0, 8.0),
    "mixed_block_bandwidth": (1.5, 0.3, 10.0),
    "compute_derate": (1.0, 0.7, 1.1),
}
#: The metrics that say how long steps take; of their tails a constant of the GPU knows nothing.
FITTED_METRICS = ("tpot_mean", "tpot_p50", "itl_p50", "ttft_mean", "saturated_out_tput_tok_s")
#: Relative errors beyond this count linearly instead of squared (soft L1).
LOSS_SCALE = 0.03
#: Step of the numeric derivative: large enough that a queue which shifts by a step does not drown it.
DIFF_STEP = 0.03
MIN_COMPARISONS_PER_CONSTANT = 2


@dataclass(frozen=True)
class ServingFit:
    """The constants found, remarks on them (bounds hit), and errors by (part, metric) before and after."""

    gpu: str
    constants: dict[str, float]
    warnings: tuple[str, ...]
    before: dict[tuple[str, ...], ErrorSummary]
    after: dict[tuple[str, ...], ErrorSummary]
    num_trials: int

    def document(self) -> Document:
        """The report, and the table of `serving.toml` that the fit amounts to."""
        shipped = serving_facts(gpu(self.gpu))
        constants = [
            (name, f"{getattr(shipped, name):.4g}", f"{value:.4g}") for name, value in self.constants.items()
        ]
        errors = []
        for (part, metric), old in self.before.items():
            percents = [
                f"{e:.1f} %" for each in (old, self.after[part, metric]) for e in (each.median, each.p90)
            ]
            errors.append((part, metric, str(old.rows), *percents))
        header = ("part", "metric", "rows", "before: median", "p90", "after: median", "p90")
        blocks: list[Block] = [
            Table(("constant", "shipped", "fitted"), tuple(constants), (False, True, True))
        ]
        if self.warnings:
            blocks.append(Bullets(tuple(f"warning: {text}" for text in self.warnings)))
        blocks.append(Table(header, tuple(errors), (False, False, *(True for _ in header[2:]))))
        blocks.append(Preformatted("\n".join(self.toml())))
        return Document(f"serving constants of {self.gpu}, {self.num_trials} trials", blocks)

    def toml(self) -> list[str]:
        """The constants as a table of `serving.toml`."""
        return [f'["{self.gpu}"]', *(f"{name} = {value:.4g}" for name, value in self.constants.items())]


def fit_serving(
    runs: Sequence[MeasuredRun],
    gpu_name: str,
    names: Sequence[str],
    *,
    limit_requests: int | None = None,
    options: RunOptions | None = None,
    max_trials: int = 60,
    on_trial: Callable[[int, float], None] | None = None,
) -> ServingFit:
    """Fit the constants `names` to the runs on that GPU that are not held out.

    Minimises soft L1 of log(simulated / measured) over `FITTED_METRICS`, runs that repeat one condition
    sharing one vote; starts at the shipped values, draws nothing at random. InputError for a constant that
    nobody knows, or if there are fewer than two measurements to each. `on_trial` hears of every trial, with
    its cost.
    """
    unknown = sorted(set(names) - set(BOUNDS))
    if unknown:
        raise input_error(f"no such constant: {', '.join(unknown)}; there are {', '.join(BOUNDS)}")
    part = gpu(gpu_name).name
    here = [run for run in runs if run.gpu and gpu(run.gpu).name == part]
    fitted = [run for run in here if not held_out(run.run_id)]
    shipped = serving_facts(gpu(part))
    replayed = partial(_errors, limit_requests=limit_requests, options=options)
    before = replayed(here, {})
    weights = _weights([error for error in before if error.part == "fitted"])
    if len(weights) < MIN_COMPARISONS_PER_CONSTANT * len(names):
        raise input_error(f"{len(weights)} measurements on {part} are too few for {len(names)} constants")
    scale, low, high = (np.array(column) for column in zip(*(BOUNDS[name] for name in names), strict=True))
    trials = 0

    def errors(values: np.ndarray) -> np.ndarray:
        nonlocal trials
        trials += 1
        tried = replayed(fitted, dict(zip(names, values * scale, strict=True)))
        found = {(e.run.run_id, e.metric): np.log(e.simulated / e.measured) for e in tried}
        result = np.array([weight * found.get(key, 0.0) for key, weight in weights.items()])
        if on_trial is not None:
            on_trial(trials, float(np.abs(result).sum() / sum(weights.values())))
        return result

    first = np.array([getattr(shipped, name) or BOUNDS[name][0] for name in names])
    margin = 1e-3 * (high - low)
    first = np.clip(first, low + margin, high - margin)
    best = least_squares(
        errors,
        first / scale,
        bounds=(low / scale, high / scale),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        diff_step=np.full(len(names), DIFF_STEP),
        xtol=1e-3,
        ftol=1e-3,
        max_nfev=max(2, max_trials // (len(names) + 1)),
    )
    values = best.x * scale
    warnings = [
        f"{name} at its {'lower' if value - lo < hi - value else 'upper'} bound {value:.3g}"
        for name, value, lo, hi, near in zip(names, values, low, high, margin, strict=True)
        if value - lo < near or hi - value < near
    ]
    if best.status <= 0:
        warnings.append("stopped before it converged")
    constants = {name: float(f"{value:.4g}") for name, value in zip(names, values, strict=True)}
    after = replayed(here, constants)
    return ServingFit(part, constants, tuple(warnings), _summaries(before), _summaries(after), trials)


def _changed(constants: Mapping[str, float], facts: ServingFacts) -> ServingFacts:
    return replace(facts, **constants)  # type: ignore[arg-type]


def _errors(
    runs: Sequence[MeasuredRun],
    constants: Mapping[str, float],
    *,
    limit_requests: int | None,
    options: RunOptions | None,
) -> list[MetricError]:
    variant = CostVariant("trial", facts=partial(_changed, constants)) if constants else SHIPPED
    replayed = replay_all(runs, limit_requests=limit_requests, variant=variant, options=options)
    return [error for each in replayed for error in each.errors if error.metric in FITTED_METRICS]


def _weights(errors: Sequence[MetricError]) -> dict[tuple[str, str], float]:
    """Root of each error's vote, by run and metric: repeats of one condition share one."""
    votes = Counter((error.condition, error.metric) for error in errors)
    return {(e.run.run_id, e.metric): votes[(e.condition, e.metric)] ** -0.5 for e in errors}


def _summaries(errors: Sequence[MetricError]) -> dict[tuple[str, ...], ErrorSummary]:
    groups = group_by(errors, lambda error: (error.part, error.metric))
    return {key: summarize_errors(group) for key, group in groups.items()}
