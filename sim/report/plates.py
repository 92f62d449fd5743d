"""The figures of a report: which ones a run has, how large they are and what each shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.report.document import Plate
from sim.results.plots import RunPlots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.results.run_folder import SavedRun

WIDE_IN = 7.0


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
