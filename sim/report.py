"""The report of a run: one page and its figures, drawn again at any time from the run folder alone.

Tables come first, because numbers are what a report is asked for; then the figures, each with a caption that
says what was simulated and on how many requests; then what the metrics mean. The bytes depend on the run
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sim.scenario.rules import mirrored

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from sim.scenario import Scenario

Summary = Mapping[str, object]

DEFINITIONS = """\
* **TTFT**: first token − arrival at the cluster, queueing included; waiting in the client is not.
* **TPOT**: (last token − first token) / (output tokens − 1), per request with more than one output token.
* **ITL**: each gap between tokens of a request, pooled over requests.
* **E2E**: last token − arrival.
* **SLO attainment**: share of requests that met *all* targets; **goodput**: those requests per second.
* **Preemption tax**: recomputed tokens / all computed tokens.
* **Prefix hit rate**: hit tokens / queried tokens, as the engine counts them.

Latencies are of requests that finished and arrived at or after the end of the warm-up. Percentiles
interpolate linearly and standard deviations are of the population, as in `vllm bench serve`."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: the page, the figures, and by name why a figure failed."""

    page: Path
    figures: tuple[Path, ...]
    failures: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Plate:
    """One figure of the report: file name, size in inches, and what draws it and says what it shows."""

    name: str
    size_in: tuple[float, float]
    draw: Callable[[Figure], str]


def write_report(
    run_dir: Path,
    requests: pd.DataFrame,
    steps: pd.DataFrame,
    summary: Summary,
    scenario: Scenario,
    notes: Sequence[str] = (),
) -> Report:
    """Write `report.md` and `figures/*.png` into `run_dir`, which exists; say what was written and failed.

    `requests` and `steps` have the columns of the run folder's CSV files, `summary` the keys of
    `summary.json`. `notes` are remarks of the run, such as repairs of its trace. A figure that cannot be
    drawn is named on the page and in the result, and costs the others nothing.
    """
    from sim.figures.style import blank_figure, save_png

    folder = run_dir / "figures"
    folder.mkdir(exist_ok=True)
    drawn: list[Path] = []
    failures: dict[str, str] = {}
    lines: list[str] = []
    about = caption(summary, scenario)
    for plate in _plates(requests, steps, summary, scenario):
        try:
            figure = blank_figure(*plate.size_in)
            shows = plate.draw(figure)
            save_png(figure, folder / f"{plate.name}.png")
        except Exception as error:  # whatever went wrong, the other figures are still wanted
            failures[plate.name] = f"{type(error).__name__}: {error}"
            lines += [f"**{plate.name}.png could not be drawn:** `{failures[plate.name]}`", ""]
        else:
            drawn.append(folder / f"{plate.name}.png")
            lines += [f"![{plate.name}](figures/{plate.name}.png)", "", f"*{shows} {about}*", ""]
    page = run_dir / "report.md"
    sections = [*_page(summary, scenario, notes), "## Figures", "", *lines, "## Definitions", "", DEFINITIONS]
    page.write_text("\n".join(sections) + "\n", encoding="utf-8")
    return Report(page, tuple(drawn), failures)


def _plates(
    requests: pd.DataFrame, steps: pd.DataFrame, summary: Summary, scenario: Scenario
) -> list[_Plate]:
    from sim import figures

    warmup_s, blocks = scenario.warmup_s, summary.get("num_gpu_blocks")

    def latency(figure: Figure) -> str:
        measured = requests[requests["arrival_s"] >= warmup_s]
        slo = dict(scenario.slo.root) if scenario.slo else None
        figures.plot_latency_panels({scenario.name: measured}, figure, slo=slo)
        return "Latency and its tail."

    def load(figure: Figure) -> str:
        figures.plot_load_timeline(steps, figure, warmup_s=warmup_s)
        return "Running and waiting requests, step by step."

    def kv(figure: Figure) -> str:
        pool = blocks if isinstance(blocks, int) else None
        figures.plot_kv_timeline(steps, figure, num_blocks=pool, warmup_s=warmup_s)
        return (
            "KV blocks in use and, paler, those cached but free; a tick above for each step that preempted."
        )

    def close_up(figure: Figure) -> str:
        few = figures.busiest_steps(steps, warmup_s)
        budget = scenario.engine.max_num_batched_tokens
        figures.plot_step_composition(few, figure, token_budget=budget, step_time=True)
        return f"{len(few)} steps of replica {few['replica'].iloc[0]} seen closely; bar width = step time."

    replicas = len(steps["replica"].unique()) if len(steps) else 0
    tall_in = max(3.0, 1.1 * min(figures.MAX_PANELS, replicas) + 0.5)
    plates = [_Plate("latency", (9.3, 5.0), latency)]
    if replicas:
        plates += [_Plate("load", (7.0, tall_in), load), _Plate("kv", (7.0, tall_in), kv)]
        plates += [_Plate("steps", (7.0, 3.0), close_up)]
    return plates


def caption(summary: Summary, scenario: Scenario) -> str:
    """What every figure must say: loop and load, sample, seed, warm-up, release mirrored."""
    parts = [
        describe_load(scenario),
        f"n = {summary.get('completed', 0):,} finished requests",
        f"seed {scenario.seed}",
        f"warm-up {scenario.warmup_s:g} s left out" if scenario.warmup_s else "no warm-up removed",
        f"mirrors {mirrored(scenario.engine)}",
        f"calibration {summary.get('calibration_id', 'unknown')}",
    ]
    return "; ".join(parts) + "."


def describe_load(scenario: Scenario) -> str:
    """Open or closed loop, and the rate or the concurrency, in a few words."""
    load = scenario.workload
    if load.kind == "mix":
        return "; ".join(f"{name}: {describe_load(scenario.part(name))}" for name in load.workloads)
    if load.kind == "closed_loop":
        return f"Closed loop, {load.max_concurrency:,} requests in flight"
    cap = f", client keeps at most {load.max_concurrency:,} in flight" if load.max_concurrency else ""
    if load.kind == "burst":
        return f"Open loop, all {load.num_requests:,} requests at t = 0{cap}"
    if load.kind == "trace":
        scaled = f" at {load.rate_per_s:g} req/s" if load.rate_per_s else ""
        return f"Open loop, arrivals of the trace {Path(load.path).name}{scaled}{cap}"
    shape = {"poisson": "Poisson arrivals", "constant": "equal gaps"}.get(load.kind, "gamma arrivals")
    if load.kind == "gamma":
        shape += f" (burstiness {load.burstiness:g})"
    return f"Open loop, {shape} at {load.rate_per_s:g} req/s{cap}"


def _page(summary: Summary, scenario: Scenario, notes: Sequence[str]) -> list[str]:
    cluster, engine = scenario.cluster, scenario.engine
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    shape = f"{cluster.replicas} × (TP {engine.tensor_parallel_size} × PP {engine.pipeline_parallel_size})"
    lines = [f"# {scenario.name}", ""]
    if scenario.description:
        lines += [scenario.description, ""]
    lines += [
        f"{scenario.model} on {cluster.replicas * gpus} × {scenario.gpu}, replicas × GPUs: {shape}. "
        f"{caption(summary, scenario)}",
        "",
        *_headline(summary),
        *_latency(summary),
        *_slo(summary),
        *_groups(summary, "classes", "Client classes"),
        *_groups(summary, "adapters", "LoRA adapters"),
        *_engine(summary),
    ]
    if notes:
        lines += ["## Notes", "", *[f"* {note}" for note in notes], ""]
    return lines


def _headline(summary: Summary) -> list[str]:
    ends = ("finished", "aborted", "rejected", "in_flight", "not_sent")
    counts = ", ".join(f"{_number(summary.get(f'num_{end}'))} {end.replace('_', ' ')}" for end in ends)
    rows = [
        ("requests", f"{_number(summary.get('num_requests'))}: {counts}"),
        ("request throughput (req/s)", _number(summary.get("request_throughput"))),
        ("goodput (req/s)", _number(summary.get("request_goodput"))),
        ("output tokens (tok/s)", _number(summary.get("output_throughput"))),
        ("output tokens per GPU (tok/s)", _number(summary.get("output_throughput_per_gpu"))),
        ("all tokens (tok/s)", _number(summary.get("total_token_throughput"))),
    ]
    return ["## Headline", "", "| | |", "|---|---|", *[f"| {name} | {value} |" for name, value in rows], ""]


def _latency(summary: Summary) -> list[str]:
    columns = ("mean", "median", "std", "p90", "p95", "p99")
    thin = summary.get("thin_percentiles")
    marked = set(thin) if isinstance(thin, list) else set()
    lines = ["| ms | " + " | ".join(columns) + " |", "|---|" + "--:|" * len(columns)]
    for metric, name in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E")):
        keys = [f"{column}_{metric}_ms" for column in columns]
        cells = [_number(summary.get(key)) + ("°" if key in marked else "") for key in keys]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    note = ["", "° fewer than 10 samples above it: little more than the maximum."] if marked else []
    return ["## Latency", "", *lines, *note, ""]


def _slo(summary: Summary) -> list[str]:
    targets = summary.get("slo")
    if not isinstance(targets, Mapping):
        return []
    lines = ["## SLO", "", "| target | limit (s) | attained (%) | met |", "|---|--:|--:|---|"]
    for key, target in targets.items():
        met = {True: "yes", False: "**no**", None: ""}[target["met"]]
        lines.append(f"| {key} | {_number(target['limit_s'])} | {_percent(target['attainment'])} | {met} |")
    lines.append(f"| all at once | | {_percent(summary.get('slo_attainment'))} | |")
    return [*lines, "", f"Judged: {_number(summary.get('slo_judged_requests'))} requests.", ""]


def _groups(summary: Summary, key: str, title: str) -> list[str]:
    """A table with a row for each group of requests, where there are groups."""
    groups = summary.get(key)
    if not isinstance(groups, Mapping):
        return []
    columns = ["completed", "failed", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms"]
    columns += ["p99_e2el_ms", "max_wait_s", "num_preemptions"]
    lines = [
        f"| | {' | '.join(column.replace('_', ' ') for column in columns)} | token share (%) | SLO (%) |",
        "|---|" + "--:|" * (len(columns) + 2),
    ]
    for name, row in groups.items():
        cells = [_number(row[column]) for column in columns]
        cells += [_percent(row["token_share"]), _percent(row["slo_attainment"])]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    jain = [f"Jain's index of the speeds they see: {_number(summary['class_jain_index'])}.", ""]
    return [f"## {title}", "", *lines, "", *(jain if key == "classes" else [])]


def _engine(summary: Summary) -> list[str]:
    kv = " / ".join(_percent(summary.get(f"kv_usage_{which}")) for which in ("p50", "p95", "max"))
    shares = summary.get("time_share_by_bound")
    bounds = sorted(shares.items(), key=lambda item: -item[1]) if isinstance(shares, Mapping) else []
    rows = [
        ("steps", _number(summary.get("num_steps"))),
        ("KV in use, p50 / p95 / max (%)", kv),
        ("KV blocks per replica", _number(summary.get("num_gpu_blocks"))),
        ("preemptions", _number(summary.get("num_preemptions"))),
        ("preemption tax (%)", _percent(summary.get("recomputed_token_share"))),
        ("prefix hit rate (%)", _percent(summary.get("prefix_cache_hit_rate"))),
        ("busy (%)", _percent(summary.get("busy_share"))),
        (
            "busy time by bound",
            ", ".join(f"{name} {_percent(share)} %" for name, share in bounds if share >= 0.0005),
        ),
    ]
    rows += [(name, show(summary[key])) for key, name, show in _FEATURES if key in summary]
    return ["## Engine", "", "| | |", "|---|---|", *[f"| {name} | {value} |" for name, value in rows], ""]


def _number(value: object) -> str:
    """Counts in full, measurements with three digits: a model's numbers do not bear more."""
    if not isinstance(value, (int, float)):
        return "–"
    if isinstance(value, int) or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _percent(share: object) -> str:
    return f"{100.0 * share:.1f}" if isinstance(share, (int, float)) else "–"


_FEATURES: tuple[tuple[str, str, Callable[[object], str]], ...] = (
    ("spec_decode_acceptance_rate", "accepted draft tokens (%)", _number),
    ("spec_decode_acceptance_length", "tokens per verification", _number),
    ("external_prefix_cache_hit_rate", "external cache hit rate (%)", _percent),
    ("external_cache_loads", "external cache loads", _number),
    ("external_cache_link_busy_share", "external cache link busy (%)", _percent),
    ("grammars_compiled", "grammars compiled", _number),
    ("num_sessions", "sessions", _number),
    ("num_sessions_left_early", "sessions left early", _number),
    ("aborted_output_tokens", "output tokens of aborted requests", _number),
)
"""Rows for features, if a run has them: key of the summary, name, form."""
