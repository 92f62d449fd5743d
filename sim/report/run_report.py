"""The report of a run: one page as Markdown and as HTML, drawn from its folder.

Tables come first, because numbers are what a report is asked for; then the figures, each with a caption that
says what was simulated and on how many requests; then what the metrics mean. The bytes depend on the run
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Plate
from sim.report.folder import FIGURES, draw_pictures, pages, write_files
from sim.report.tables import run_tables
from sim.results.plots import RunPlots
from sim.scenario.resolve import mirrored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.results.run_folder import SavedRun
    from sim.scenario import Scenario

Summary = Mapping[str, object]

WIDE_IN = 7.0
DEFINITIONS = (
    "**TTFT**: first token − arrival at the cluster, queueing included; waiting in the client is not.",
    "**TPOT**: (last token − first token) / (output tokens − 1), per request with more than one output.",
    "**ITL**: each gap between tokens of a request, pooled over requests.",
    "**E2E**: last token − arrival.",
    "**SLO attainment**: share of requests that met **all** targets; **goodput**: those requests per second.",
    "**Preemption tax**: recomputed tokens / all computed tokens.",
    "**Prefix hit rate**: hit tokens / queried tokens, as the engine counts them.",
    "**GPUs at work**: share of the time after the warm-up in which a replica had a step on its GPUs; the "
    "rest it had nothing to do. What **bounds** a step is the largest term of its time: compute, reading "
    "weights or KV, communication, launch latency, or the host.",
)
READING = (
    "Latencies are of requests that finished and arrived at or after the end of the warm-up. Percentiles "
    "interpolate linearly and standard deviations are of the population, as in `vllm bench serve`."
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: the page in both forms, the figures, and by name why a figure failed."""

    page: Path
    html: Path
    figures: tuple[Path, ...]
    failures: Mapping[str, str]


def write_report(run: SavedRun) -> Report:
    """Write `report.md`, `report.html` and `figures/*.png` into the run's folder; say what was written and
    what failed.

    A figure that cannot be drawn is named on the page and in the result, and costs the others nothing. Raises
    `InputError` if something cannot be written.
    """
    about = caption(run.summary, run.scenario)
    blocks: list[Block] = []
    if run.scenario.description:
        blocks.append(Paragraph(run.scenario.description))
    blocks.append(Paragraph(f"{describe_system(run.scenario)} {about}"))
    blocks += run_tables(run.summary, run.requests)
    notes = run.summary.get("notes")
    if isinstance(notes, Sequence) and notes:
        blocks += [Heading(2, "Notes"), Bullets(tuple(str(note) for note in notes))]
    return write_page(run.folder, run.scenario.name, blocks, run_plates(run), about)


def write_page(
    folder: Path, title: str, blocks: Sequence[Block], plates: Sequence[Plate], about: str
) -> Report:
    """Draw the plates and write the page in both forms; `about` ends every caption.

    Raises `InputError` if something cannot be written.
    """
    pictures = draw_pictures(plates, folder, about)
    ends: list[Block] = [Heading(2, "Definitions"), Bullets(DEFINITIONS), Paragraph(READING)]
    document = Document(title, [*blocks, Heading(2, "Figures"), *pictures, *ends])
    write_files(folder, pages(document))
    return Report(
        folder / "report.md",
        folder / "report.html",
        tuple(folder / FIGURES / f"{picture.name}.png" for picture in pictures if not picture.failure),
        {picture.name: picture.failure for picture in pictures if picture.failure},
    )


def run_plates(run: SavedRun) -> list[Plate]:
    """The figures of one run, in the order of the page."""
    from sim import figures

    requests, steps, plot = run.requests, run.steps, RunPlots(run)

    def parts(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        plot.decomposition(left, metric="ttft")
        plot.decomposition(right, metric="e2e")
        left.set_ylabel("mean TTFT (s)")
        right.set_ylabel("mean E2E (s)")

    plates = [Plate("latency", "Latency and its tail; dots are p50, p90 and p99.", plot.latency, (9.3, 5.0))]
    if requests["status"].eq("finished").any():
        shows = "What TTFT (left) and E2E (right) are made of, by band of percentiles."
        plates.append(Plate("parts", shows, parts, (9.3, 3.0)))
    if "class" in requests and len(requests["class"].unique()) > 1:
        tall_in = 1.6 + 0.5 * len(requests["class"].unique())
        shows = "What each client class waits at worst."
        plates.append(Plate("classes", shows, plot.fairness, (WIDE_IN, tall_in)))
    replicas = len(steps["replica"].unique()) if len(steps) else 0
    if replicas:
        tall_in = max(3.0, 1.1 * min(figures.MAX_PANELS, replicas) + 0.5)
        start_s, end_s = figures.worst_minute(steps, run.scenario.warmup_s)
        few = figures.busiest_steps(steps, run.scenario.warmup_s)
        plates += [
            Plate(
                "load",
                "Running and waiting requests; of many steps the mean, with a band from lowest to highest.",
                plot.load_timeline,
                (WIDE_IN, tall_in),
            ),
            Plate(
                "kv",
                "KV blocks in use and, paler, those cached but free; a tick above for each step that "
                "preempted.",
                plot.kv_timeline,
                (WIDE_IN, tall_in),
            ),
            Plate(
                "waterfall",
                f"What each request did in a part of the worst minute, {start_s:,.0f}–{end_s:,.0f} s.",
                plot.request_waterfall,
                (WIDE_IN, 4.5),
            ),
            Plate(
                "steps",
                f"{len(few)} steps of replica {few['replica'].iloc[0]} seen closely; bar width = step time.",
                plot.step_composition,
                (WIDE_IN, 3.0),
            ),
        ]
    if requests["num_preemptions"].any():
        plates.append(
            Plate(
                "preemptions", "How often requests were preempted.", plot.preemptions_per_request, (5.0, 3.0)
            )
        )
    return plates


def caption(summary: Summary, scenario: Scenario) -> str:
    """Loop and load, sample, seed, warm-up, release and calibration in one line."""
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


def describe_system(scenario: Scenario) -> str:
    """Model, GPUs and how they are divided into replicas."""
    cluster, engine = scenario.cluster, scenario.engine
    gpus = cluster.replicas * engine.num_gpus
    shape = f"{cluster.replicas} × (TP {engine.tensor_parallel_size} × PP {engine.pipeline_parallel_size})"
    return f"{scenario.model} on {gpus} × {scenario.gpu}, replicas × GPUs: {shape}."
