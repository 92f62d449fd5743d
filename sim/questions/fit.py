"""How many requests fit at once, and where the memory went: the memory plan, and three answers that differ.

Engines print a worst case at start-up, as if every request grew to `max_model_len`. Requests hold blocks only
for the tokens they have, so more of them run at once; how many, a short simulation of a full engine shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sim.cluster.recorder import histogram
from sim.random_streams import streams
from sim.results.metrics import percentiles_over_time
from sim.scenario import Scenario, load_scenario
from sim.setup import EngineSetup, engine_setup
from sim.simulation import simulate_workload
from sim.workload import Limits, RequestTable, Workload, build_workload

if TYPE_CHECKING:
    import pandas as pd

_MOST_OFFERED = 2048
_ROUNDS = 4
_BAR = 40
GIB = float(1 << 30)


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory of a replica and three concurrencies, in requests.

    at_max_model_len: every request as long as can be. at_mean_length: every request with the prompt and
    output of the workload's mean. running: 5th, 50th and 95th percentile over time of requests running in a
    short run that always offers more than fit.
    """

    scenario: Scenario
    setup: EngineSetup
    kv_tokens: int
    mean_tokens: float
    at_max_model_len: float
    at_mean_length: float
    running: tuple[int, int, int]
    num_offered: int
    num_preemptions: int

    def __str__(self) -> str:
        """What `dryserve fit` prints."""
        return render(self)


def fit(scenario: Scenario | str | Path, overrides: Sequence[str] = ()) -> Fit:
    """Plan the memory of one replica of the scenario, and run its requests in a closed loop that fills it.

    >>> found = fit("quickstart", ["engine.max_num_seqs=32"])
    >>> found.setup.num_gpu_blocks * 16 == found.kv_tokens, found.running[1]
    (True, 32)

    Raises `InputError` for a scenario that cannot be run, such as one whose model does not fit.
    """
    scenario = load_scenario(scenario, overrides)
    setup = engine_setup(scenario)
    config = setup.replica.scheduler
    table = build_workload(scenario, streams(scenario.seed), Limits(config.max_model_len)).table
    tokens = (table.prompt_tokens + table.output_tokens)[~table.rejected]
    mean_tokens = float(tokens.mean()) if len(tokens) else float(config.max_model_len)
    kv_tokens = setup.num_gpu_blocks // len(setup.replica.kv_cache.groups) * setup.replica.kv_cache.block_size
    offered = min(config.max_num_seqs + 1, int(2 * kv_tokens / mean_tokens) + 1, _MOST_OFFERED)
    steps = _full_engine(scenario, setup, _head(table, _ROUNDS * offered), offered)
    time_by_running_s = histogram(steps["num_running"].to_numpy(), steps["step_time_s"].to_numpy())
    low, middle, high = (int(n) for n in percentiles_over_time(time_by_running_s, (5, 50, 95)))
    return Fit(
        scenario,
        setup,
        kv_tokens,
        mean_tokens,
        kv_tokens / config.max_model_len,
        kv_tokens / mean_tokens,
        (low, middle, high),
        offered,
        int(steps["num_preemptions"].sum()),
    )


def _full_engine(scenario: Scenario, setup: EngineSetup, table: RequestTable, offered: int) -> pd.DataFrame:
    """Steps of one replica that always has `offered` requests, without the ramp-up and the drain."""
    single = scenario.model_copy(
        update={"cluster": scenario.cluster.model_copy(update={"replicas": 1}), "horizon_s": None}
    )
    workload = Workload(table, "closed", max_concurrency=offered, ignore_eos=scenario.workload.ignore_eos)
    result = simulate_workload(single, setup, workload)
    first_end_s, last_start_s = result.requests["last_token_s"].min(), result.requests["arrival_s"].max()
    steps = result.steps
    inside = steps["end_s"].between(first_end_s, last_start_s)
    return steps.loc[inside] if inside.any() else steps


def _head(table: RequestTable, count: int) -> RequestTable:
    """The first `count` requests, all due at once."""
    rows = slice(0, count)
    return dataclasses.replace(
        table,
        arrival_s=np.zeros(len(table.arrival_s[rows])),
        prompt_tokens=table.prompt_tokens[rows],
        output_tokens=table.output_tokens[rows],
        class_index=table.class_index[rows],
        session=table.session[rows],
        priority=table.priority[rows],
        rejected=table.rejected[rows],
    )


def render(found: Fit) -> str:
    """The answer as text: a memory bar, the KV cache, and three concurrencies with the reason why they
    differ."""
    return "\n".join([*_memory(found), *_cache(found), "", *_concurrency(found)])


def _memory(found: Fit) -> Iterator[str]:
    plan, engine = found.setup.plan, found.scenario.engine
    deployment = found.setup.deployment
    split = f"TP {engine.tensor_parallel_size}, PP {engine.pipeline_parallel_size}"
    yield f"{deployment.model.name} on {deployment.gpu.name}, {split}, vLLM {engine.version}"
    if plan is None:
        yield f"KV blocks as given: {engine.num_gpu_blocks_override}"
        return
    outside = plan.total_bytes - plan.budget_bytes
    terms = (
        ("weights", plan.weights_bytes),
        ("activations", plan.activation_bytes),
        ("non-torch", plan.non_torch_bytes),
        ("CUDA graphs", plan.cuda_graph_bytes),
        ("KV cache", plan.kv_cache_bytes),
        ("left to others", outside),
    )
    used = plan.budget_bytes / GIB
    yield f"each GPU has {plan.total_bytes / GIB:.2f} GiB, of which {used:.2f} may be used:"
    for name, size in terms:
        yield f"  {name:<15}{size / GIB:>8.2f} GiB  {'#' * round(_BAR * size / plan.total_bytes)}".rstrip()


def _cache(found: Fit) -> Iterator[str]:
    plan, cache = found.setup.plan, found.setup.replica.kv_cache
    size = f"{cache.num_blocks:,} blocks of {cache.block_size} tokens, {found.kv_tokens:,} tokens"
    yield f"KV cache: {size}" + (f"; {plan.bytes_per_token:,} bytes a token on each GPU" if plan else "")


def _concurrency(found: Fit) -> Iterator[str]:
    low, middle, high = found.running
    config, mean = found.setup.replica.scheduler, found.mean_tokens
    yield "requests at once:"
    yield f"  {found.at_max_model_len:>8.1f}  if each had max_model_len, {config.max_model_len:,} tokens"
    yield f"  {found.at_mean_length:>8.1f}  if each had its whole length, {mean:,.0f} tokens on average"
    yield f"  {middle:>8d}  running in a full engine ({low} to {high} for 90 % of the time)"
    # whoever leaves a full engine leaves a place empty for a step: the median may be just below the limit
    if middle >= config.max_num_seqs or (high >= config.max_num_seqs and not found.num_preemptions):
        yield f"The limit is max_num_seqs = {config.max_num_seqs}, not memory."
    else:
        yield "The first is the line that engines print at start-up, a worst case. In a full engine a request"
        yield "holds blocks only for the tokens it has so far: more fit. But long ones stay longer: fewer do."
    if found.num_preemptions:
        yield f"It preempted {found.num_preemptions:,} times: not all that run can grow that long."
    if found.setup.plan is not None and found.setup.plan.margin_note:
        yield f"note: {found.setup.plan.margin_note}"
    yield from (f"note: {note}" for note in found.setup.notes)
