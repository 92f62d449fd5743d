"""Running a scenario under observation, and keeping the books of every request that finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models import StepShape
from sim.cluster.replica_spec import ReplicaSpec
from sim.cluster.watched import Watch
from sim.cluster.world import Progress
from sim.questions.explain.ledger import DecodeAlone, Ledger, keep_books
from sim.questions.explain.parts import KEYS
from sim.questions.explain.step_phases import StepPhases
from sim.random_streams import streams
from sim.scenario import Scenario
from sim.setup import engine_setup
from sim.simulation import RunResult, simulate_workload
from sim.values import Floats
from sim.workload import Limits, build_workload

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Observed:
    """A run with the books of its requests; the result is that of an ordinary run, to the last bit.

    `steps` has the phases of the steps of each replica.
    """

    result: RunResult
    books: Ledger
    steps: tuple[StepPhases, ...]

    def latency_s(self, metric: str) -> Floats:
        """`ttft` or `e2e` of the requests in the books, in their order."""
        times = self.result.times
        return (times.ttft_s if metric == "ttft" else times.e2e_s)[self.books.request]

    def parts(self, metric: str) -> Floats:
        """The parts of `ttft` or `e2e` of the requests in the books, s: shape (requests, parts)."""
        return self.books.ttft if metric == "ttft" else self.books.e2e

    def table(self) -> pd.DataFrame:
        """One row a request in the books: what it was, its TTFT and E2E, and the parts of both, s."""
        import pandas as pd

        requests = self.result.requests.set_index("request_id").loc[self.books.request]
        kept = requests[
            ["class", "replica", "arrival_s", "prompt_tokens", "output_tokens", "num_preemptions"]
        ]
        columns: dict[str, Floats] = {}
        for metric in ("ttft", "e2e"):
            columns[f"{metric}_s"] = self.latency_s(metric)
            columns |= {f"{metric}_{key}_s": self.parts(metric)[:, i] for i, key in enumerate(KEYS)}
        latencies = pd.DataFrame(columns, index=kept.index).round(9)
        return pd.concat([kept, latencies], axis=1).reset_index()


def observe(
    scenario: Scenario,
    *,
    progress: Progress | None = None,
    plain: bool = False,
    allow_plugins: bool = False,
) -> Observed:
    """Run a scenario as `simulate` does, and book of every finished request where its time went."""
    setup = engine_setup(scenario, allow_plugins=allow_plugins)
    limits = Limits(setup.replica.scheduler.max_model_len)
    workload = build_workload(scenario, streams(scenario.seed), limits)
    watch = Watch(len(workload.table))
    result = simulate_workload(scenario, setup, workload, watch=watch, progress=progress, plain=plain)
    recorder, tokens = result.recording
    steps = tuple(
        StepPhases(columns, log.end_s()) for columns, log in zip(watch.replicas, recorder.steps, strict=True)
    )
    done = result.times.done
    alone = _decode_alone(setup.replica, result) if done.any() else None
    return Observed(result, keep_books(recorder, tokens, watch, steps, done, alone), steps)


def _decode_alone(replica: ReplicaSpec, result: RunResult) -> DecodeAlone | None:
    """What a decode step costs a lone request, by its context. None under speculation, where the tokens of a
    step vary."""
    if replica.speculation is not None:
        return None
    times = result.times
    longest = int((times.prompt_tokens + times.output_tokens)[times.done].max())
    step_s = np.zeros(longest + 1)
    for context in range(1, longest + 1):
        windows = tuple(min(context, window) for window in replica.windows)
        shape = StepShape(1, 1, context, context, windows, num_sampled=1, num_requests=1)
        step_s[context] = replica.timer.step(shape).gpu_s
    return DecodeAlone(step_s, times.prompt_tokens)
