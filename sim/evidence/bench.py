"""How fast dryserve is: the standard work, in CPU seconds, with counts to divide them by, and by phase.

The work: Poisson arrivals, lognormal prompts (mean 550, sigma 1.0, at least 4 tokens) and outputs (mean 265,
sigma 0.8, 2 to 1,500 tokens), together at most 4,000, on Llama-3-8B and A100s with 26,312 KV blocks of 16
each, at most 256 sequences and 2,048 tokens a step, prefix caching and chunked prefill on. Writes nothing.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from sim.errors import input_error
from sim.random_streams import streams
from sim.scenario import Scenario, scenario_from_data
from sim.scenario.yaml_text import Data
from sim.setup import engine_setup
from sim.simulation import RunResult, simulate
from sim.workload import Limits, RequestTable, build_workload

GROWTH = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True, slots=True)
class Work:
    """What to run. `trace`: its requests in place of the synthetic ones; `plain`: step by step, no cohort."""

    requests: int = 10_000
    rate_per_s: float = 8.0
    replicas: int = 1
    asynchronous: bool = False
    plain: bool = False
    trace: Path | None = None

    def scenario(self) -> Scenario:
        """The work as a scenario; raises `InputError` for a number that makes no sense."""
        lengths: Data = {
            "kind": "lognormal",
            "prompt": {"mean": 550.0, "sigma": 1.0, "min": 4},
            "output": {"mean": 265.0, "sigma": 0.8, "min": 2, "max": 1500},
        }
        synthetic: Data = {
            "kind": "poisson",
            "rate_per_s": self.rate_per_s,
            "num_requests": self.requests,
            "over_length": "clip",
            "lengths": lengths,
        }
        engine: dict[str, Data] = {
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2048,
            "max_model_len": 4000,
            "num_gpu_blocks_override": 26_312,
            "async_scheduling": self.asynchronous,
        }
        workload = synthetic
        if self.trace is not None:
            engine["max_model_len"] = 1 << 18
            workload = {"kind": "trace", "path": str(self.trace), "over_length": "clip"}
        return scenario_from_data(
            {
                "name": "bench",
                "model": "meta-llama/Meta-Llama-3-8B",
                "gpu": "a100-sxm-80gb",
                "cluster": {"replicas": self.replicas},
                "engine": engine,
                "workload": workload,
            }
        )


@dataclass(frozen=True, slots=True)
class Timing:
    """What a run took and did. `changes`: arrivals, admissions (again after a preemption too) and ends."""

    work: Work
    cpu_s: float
    simulated_s: float
    num_requests: int
    num_steps: int
    num_tokens: int
    num_changes: int
    num_preemptions: int
    peak_memory_mib: float

    def per(self, count: int) -> float:
        """Microseconds of CPU time for each of `count`."""
        return self.cpu_s / max(count, 1) * 1e6


def time_work(work: Work) -> Timing:
    """Run the work once in this process, from the scenario to the summary."""
    scenario = work.scenario()
    started_s = time.process_time()
    result = simulate(scenario, plain=work.plain)
    summary = result.summary
    cpu_s = time.process_time() - started_s
    num_finished, num_preemptions = int(str(summary["num_finished"])), int(str(summary["num_preemptions"]))
    return Timing(
        work,
        cpu_s,
        result.clock_s,
        int(str(summary["num_requests"])),
        int(str(summary["num_steps"])),
        _num_tokens(result),
        3 * num_finished + num_preemptions,
        num_preemptions,
        peak_memory_mib(),
    )


def _num_tokens(result: RunResult) -> int:
    return int(result.summary["total_input_tokens"]) + int(result.summary["total_output_tokens"])  # type: ignore[arg-type]


def is_compiled() -> bool:
    """Whether this installation has the compiled step loop (`make compiled`)."""
    from sim.cluster import replica

    return not replica.__file__.endswith(".py")


def peak_memory_mib() -> float:
    """Most memory this process has had so far, MiB; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def grown(work: Work, requests: int) -> Work:
    """The same work with another number of requests."""
    return replace(work, requests=requests)


_PHASES = (
    ("/simpy/", "clock (SimPy)"),
    ("/scheduler/kv_cache/", "KV blocks and prefix cache"),
    ("/scheduler/cohort.py", "cohort"),
    ("/scheduler/", "scheduler"),
    ("/cost_models/", "step cost"),
    ("/sim/cluster/plan", "plans"),
    ("/sim/cluster/recorder.py", "records"),
    ("/sim/cluster/recorder.py", "records"),
    ("/sim/cluster/", "replicas and router"),
    ("/sim/results/", "summary"),
    ("/sim/", "scenario and workload"),
)
"""Phases by parts of file names; the first that fits counts."""


def profile(work: Work) -> list[tuple[str, float, int]]:
    """Run the work under the profiler: phases with their own seconds and calls, the longest first."""
    time_work(work)  # so that imports and caches do not count
    profiler = cProfile.Profile(builtins=False)
    profiler.runcall(time_work, work)
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for (file, _, _), (_, num_calls, own_s, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        name = file.replace("\\", "/")
        phase = next((phase for part, phase in _PHASES if part in name), "libraries")
        seconds[phase] = seconds.get(phase, 0.0) + own_s
        calls[phase] = calls.get(phase, 0) + num_calls
    return sorted(((phase, s, calls[phase]) for phase, s in seconds.items()), key=lambda row: -row[1])


_HASH_BLOCK_TOKENS = 512
_DAY = datetime(2023, 11, 16)


def write_trace(scenario: Scenario, path: Path) -> int:
    """Write the scenario's requests to `path`, all or nothing (.csv: Azure, .jsonl: Mooncake); returns their
    number.

    Mooncake's hash ids are all distinct: prompts that share nothing stay so.
    """
    forms = {".csv": _azure, ".jsonl": _mooncake}
    form = forms.get(path.suffix.lower())
    if form is None:
        raise input_error(f"{path}: the name must end in .csv (Azure) or .jsonl (Mooncake)")
    limits = Limits(engine_setup(scenario).replica.scheduler.max_model_len)
    table = build_workload(scenario, streams(scenario.seed), limits).table
    draft = path.with_name(f".{path.name}.part")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in form(table))
        draft.replace(path)
    except OSError as error:
        raise input_error(f"{path}: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return len(table)


def _rows(table: RequestTable) -> Iterator[tuple[float, int, int]]:
    columns = (table.arrival_s.tolist(), table.prompt_tokens.tolist(), table.output_tokens.tolist())
    return zip(*columns, strict=True)


def _azure(table: RequestTable) -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for arrival_s, prompt, output in _rows(table):
        yield f"{_DAY + timedelta(seconds=arrival_s):%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}"


def _mooncake(table: RequestTable) -> Iterator[str]:
    first = 0
    for arrival_s, prompt, output in _rows(table):
        num_blocks = -(-prompt // _HASH_BLOCK_TOKENS)
        yield json.dumps(
            {
                "timestamp": arrival_s * 1000.0,
                "input_length": prompt,
                "output_length": output,
                "hash_ids": list(range(first, first + num_blocks)),
            }
        )
        first += num_blocks
