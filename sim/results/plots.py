"""A run's figures as methods, for notebooks: `result.plot.kv_timeline()`. Each calls one of `sim.figures`
with what the run knows: its tables, pool size, SLOs and warm-up.

Works on a `RunResult` and on a run read back with `load_run`. Further arguments go to the figure function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.scenario import Scenario


class Run(Protocol):
    """What figures need of a run; the tables are those of its folder."""

    @property
    def scenario(self) -> Scenario:
        """What was asked."""

    @property
    def summary(self) -> Mapping[str, object]:
        """The numbers of `summary.json`."""

    @property
    def requests(self) -> pd.DataFrame:
        """One row a request."""

    @property
    def steps(self) -> pd.DataFrame:
        """One row a step."""

    @property
    def preemption_times(self) -> pd.DataFrame | None:
        """One row a preemption, if known."""


class RunPlots:
    """The figures of one run. Every method draws into `ax` (an Axes or a Figure; None: a new figure)."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._warmup_s = run.scenario.warmup_s

    def __repr__(self) -> str:
        names = ", ".join(name for name in dir(self) if not name.startswith("_"))
        return f"figures of {self._run.scenario.name}: {names}"

    @property
    def _measured(self) -> pd.DataFrame:
        return self._run.requests[self._run.requests["arrival_s"] >= self._warmup_s]

    @property
    def _slo(self) -> dict[str, float] | None:
        slo = self._run.scenario.slo
        return dict(slo.root) if slo else None

    @property
    def _num_blocks(self) -> int | None:
        blocks = self._run.summary.get("num_gpu_blocks")
        return blocks if isinstance(blocks, int) else None

    def latency_cdf(self, ax: Axes | Figure | None = None, *, metric: str = "ttft", **more: Any) -> Axes:
        """F1 of one metric: ttft, tpot or e2e; `tail=True` draws the share at least so slow."""
        from sim.figures import plot_latency_cdf

        return plot_latency_cdf(
            {self._run.scenario.name: self._measured}, ax, metric=metric, **{"slo": self._slo, **more}
        )

    def latency(self, figure: Figure | None = None, **more: Any) -> list[Axes]:
        """F1 of TTFT, TPOT and E2E side by side, tails below."""
        from sim.figures import plot_latency_panels

        return plot_latency_panels(
            {self._run.scenario.name: self._measured}, figure, **{"slo": self._slo, **more}
        )

    def load_timeline(self, ax: Axes | Figure | None = None, **more: Any) -> Axes:
        """F7: running and waiting requests over time."""
        from sim.figures import plot_load_timeline

        return plot_load_timeline(self._run.steps, ax, **{"warmup_s": self._warmup_s, **more})

    def kv_timeline(self, ax: Axes | Figure | None = None, **more: Any) -> Axes:
        """F8: KV blocks in use and cached over time, preemptions ticked."""
        from sim.figures import plot_kv_timeline

        return plot_kv_timeline(
            self._run.steps, ax, **{"num_blocks": self._num_blocks, "warmup_s": self._warmup_s, **more}
        )

    def step_composition(
        self,
        ax: Axes | Figure | None = None,
        *,
        t0: float | None = None,
        t1: float | None = None,
        replica: int = 0,
        **more: Any,
    ) -> Axes:
        """F9 of a replica in [t0, t1]; without a window, of the busiest steps of any replica."""
        from sim.figures import busiest_steps, plot_step_composition

        steps = self._run.steps
        chosen = steps[steps["replica"].eq(replica)]
        if t0 is None and t1 is None:
            chosen = busiest_steps(steps, self._warmup_s)
        budget = self._run.scenario.engine.max_num_batched_tokens
        return plot_step_composition(
            chosen, ax, t0=t0, t1=t1, **{"token_budget": budget, "step_time": True, **more}
        )

    def request_waterfall(
        self,
        ax: Axes | Figure | None = None,
        *,
        t0: float | None = None,
        t1: float | None = None,
        **more: Any,
    ) -> Axes:
        """F10 of [t0, t1]; without a window, of the worst part of the worst minute (see `close_window`)."""
        from sim.figures import close_window, plot_request_waterfall

        run = self._run
        if t0 is None and t1 is None:
            t0, t1 = close_window(run.requests, run.steps, self._warmup_s)
        stalls = run.preemption_times
        return plot_request_waterfall(run.requests, ax, t0=t0, t1=t1, **{"stalls": stalls, **more})

    def decomposition(self, ax: Axes | Figure | None = None, *, metric: str = "e2e", **more: Any) -> Axes:
        """F13: what the slow requests waited for, by band of percentiles; ttft or e2e."""
        from sim.figures import latency_parts, plot_decomposition

        return plot_decomposition(latency_parts(self._measured, metric), ax, **more)

    def preemptions_per_request(self, ax: Axes | Figure | None = None, **more: Any) -> Axes:
        """F12's second panel: how many requests were preempted how often."""
        from sim.figures import plot_preemptions_per_request

        return plot_preemptions_per_request({self._run.scenario.name: self._run.requests}, ax, **more)

    def fairness(self, ax: Axes | Figure | None = None, **more: Any) -> Axes:
        """F16: p99 and longest wait of each client class, and Jain's index."""
        from sim.figures import plot_fairness

        return plot_fairness(self._measured, ax, **more)


def summary_html(summary: Mapping[str, object]) -> str:
    """The summary's main tables as HTML, as Jupyter shows a result."""
    from sim.report.html import fragment
    from sim.report.tables import summary_tables

    return fragment(summary_tables(summary))
