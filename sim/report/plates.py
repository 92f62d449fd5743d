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

    def latency(figure: Figure) -> str:
        plot.latency(figure)
        return "Latency and its tail; dots are p50, p90 and p99."

    def parts(figure: Figure) -> str:
        left, right = figure.subplots(1, 2)
        plot.decomposition(left, metric="ttft")
        plot.decomposition(right, metric="e2e")
        left.set_ylabel("mean TTFT (s)")
        right.set_ylabel("mean E2E (s)")
        return "What TTFT (left) and E2E (right) are made of, by band of percentiles."

    def load(figure: Figure) -> str:
        plot.load_timeline(figure)
        return "Running and waiting requests; of many steps the mean, with a band from lowest to highest."

    def kv(figure: Figure) -> str:
        plot.kv_timeline(figure)
        return (
            "KV blocks in use and, paler, those cached but free; a tick above for each step that preempted."
        )

    def waterfall(figure: Figure) -> str:
        plot.request_waterfall(figure)
        start, end = figures.worst_minute(steps, run.scenario.warmup_s)
        return f"What each request did in a part of the worst minute, {start:,.0f}–{end:,.0f} s."

    def preemptions(figure: Figure) -> str:
        plot.preemptions_per_request(figure)
        return "How often requests were preempted."

    def fairness(figure: Figure) -> str:
        plot.fairness(figure)
        return "What each client class waits at worst."

    def close_up(figure: Figure) -> str:
        few = figures.busiest_steps(steps, run.scenario.warmup_s)
        plot.step_composition(figure)
        return f"{len(few)} steps of replica {few['replica'].iloc[0]} seen closely; bar width = step time."

    plates = [Plate("latency", (9.3, 5.0), latency)]
    if requests["status"].eq("finished").any():
        plates.append(Plate("parts", (9.3, 3.0), parts))
    if "class" in requests and len(requests["class"].unique()) > 1:
        plates.append(Plate("classes", (WIDE_IN, 1.6 + 0.5 * len(requests["class"].unique())), fairness))
    replicas = len(steps["replica"].unique()) if len(steps) else 0
    if replicas:
        tall_in = max(3.0, 1.1 * min(figures.MAX_PANELS, replicas) + 0.5)
        plates += [Plate("load", (WIDE_IN, tall_in), load), Plate("kv", (WIDE_IN, tall_in), kv)]
        plates += [Plate("waterfall", (WIDE_IN, 4.5), waterfall), Plate("steps", (WIDE_IN, 3.0), close_up)]
    if requests["num_preemptions"].any():
        plates.append(Plate("preemptions", (5.0, 3.0), preemptions))
    return plates
