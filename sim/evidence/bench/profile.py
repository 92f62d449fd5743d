"""Where the time of a benchmark goes, by phase of a simulation."""

from __future__ import annotations

import cProfile
import pstats

from sim.evidence.bench.bench import Work, time_work

_PHASES = (
    ("/simpy/", "clock (SimPy)"),
    ("/scheduler/kv_cache/", "KV blocks and prefix cache"),
    ("/scheduler/cohort.py", "cohort"),
    ("/scheduler/", "scheduler"),
    ("/cost_models/", "step cost"),
    ("/sim/cluster/plan", "plans"),
    ("/sim/cluster/", "replicas and router"),
    ("/sim/recorder.py", "records"),
    ("/sim/step_log.py", "records"),
    ("/sim/summary.py", "summary"),
    ("/sim/metrics.py", "summary"),
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
