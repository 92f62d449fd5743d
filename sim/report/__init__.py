"""The report of a run, or of several side by side: one page as Markdown and as HTML, drawn from run folders.

Tables come first, because numbers are what a report is asked for; then the figures, each with a caption that
says what was simulated and on how many requests; then what the metrics mean. The bytes depend on the runs
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sim.report import html, markdown
from sim.report.captions import caption, describe_load, describe_system
from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Plate, draw_plate
from sim.report.plates import run_plates
from sim.report.tables import run_tables

if TYPE_CHECKING:
    from sim.results.run_folder import SavedRun

__all__ = ["Report", "caption", "describe_load", "describe_system", "write_comparison", "write_report"]

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
    failed.

    A figure that cannot be drawn is named on the page and in the result, and costs the others nothing.
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


def write_comparison(runs: Sequence[SavedRun], folder: Path) -> Report:
    """Write one page on several runs into `folder`, which is made: what they differ in, a table of their
    numbers and differences, and each figure with all of them.
    """
    from sim.report.comparison import comparison_blocks, comparison_plates, labels_of

    labels = labels_of(runs)
    folder.mkdir(parents=True, exist_ok=True)
    title = " vs ".join(labels) if len(labels) <= 3 else f"{len(labels)} runs side by side"
    return write_page(folder, title, comparison_blocks(labels, runs), comparison_plates(labels, runs), "")


def write_page(
    folder: Path, title: str, blocks: Sequence[Block], plates: Sequence[Plate], about: str
) -> Report:
    """Draw the plates and write the page in both forms; `about` ends every caption."""
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    pictures = [draw_plate(plate, about) for plate in plates]
    drawn = []
    for picture in pictures:
        if not picture.failure:
            drawn.append(figures / f"{picture.name}.png")
            drawn[-1].write_bytes(picture.png)
    ends: list[Block] = [Heading(2, "Definitions"), Bullets(DEFINITIONS), Paragraph(READING)]
    document = Document(title, [*blocks, Heading(2, "Figures"), *pictures, *ends])
    page, web = folder / "report.md", folder / "report.html"
    page.write_text(markdown.render(document), encoding="utf-8")
    web.write_text(html.render(document), encoding="utf-8")
    failures = {picture.name: picture.failure for picture in pictures if picture.failure}
    return Report(page, web, tuple(drawn), failures)
