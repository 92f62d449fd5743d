"""Scenarios in, results out: the SimPy world in which the real scheduler meets the cost models.

The public names, for notebooks and scripts:

    from sim import load_scenario, simulate
    result = simulate("quickstart", ["workload.rate_per_s=12"])
    result.summary, result.requests, result.steps, result.plot.latency_cdf()
    run = load_run("runs/quickstart-0123abcd")
    sweep("chat-a100", {"engine.max_num_seqs": "16..256"}, rates="5:60").plot()

They load on first use, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cost_models
    from sim import figures
    from sim.errors import Fault, InputError
    from sim.evidence.conform.conform import conform
    from sim.evidence.recorded.answer import find_rules
    from sim.evidence.recorded.conform import conform_recordings
    from sim.evidence.regress.regress import regress
    from sim.evidence.releases.answer import compare_releases
    from sim.evidence.validate.answer import validate
    from sim.evidence.validate.replay import Selection, read_measured_runs, replay_all
    from sim.exports.trace import write_trace
    from sim.jobs.options import RunOptions
    from sim.questions.compare.compare import compare
    from sim.questions.explain.explain import explain
    from sim.questions.fit import fit
    from sim.questions.size.size import size
    from sim.questions.sweep.sweep import sweep
    from sim.recordings.reader import load_recording
    from sim.results.error_bands import error_band
    from sim.results.run_folder import SavedRun, load_run
    from sim.scenario import Scenario, load_scenario, scenario_text
    from sim.simulation import RunResult, simulate
    from sim.statistics import paired_difference

__all__ = [
    "Fault",
    "InputError",
    "RunOptions",
    "RunResult",
    "SavedRun",
    "Scenario",
    "Selection",
    "compare",
    "compare_releases",
    "conform",
    "conform_recordings",
    "cost_models",
    "error_band",
    "explain",
    "figures",
    "find_rules",
    "fit",
    "load_recording",
    "load_run",
    "load_scenario",
    "paired_difference",
    "read_measured_runs",
    "regress",
    "replay_all",
    "scenario_text",
    "simulate",
    "size",
    "sweep",
    "validate",
    "write_trace",
]

_HOMES = {
    "Fault": ".errors",
    "InputError": ".errors",
    "RunOptions": ".jobs.options",
    "RunResult": ".simulation",
    "SavedRun": ".results.run_folder",
    "Scenario": ".scenario",
    "Selection": ".evidence.validate",
    "compare": ".questions.compare",
    "compare_releases": ".evidence.releases",
    "conform": ".evidence.conform",
    "conform_recordings": ".evidence.recorded",
    "error_band": ".results.error_bands",
    "explain": ".questions.explain",
    "find_rules": ".evidence.recorded",
    "fit": ".questions.fit",
    "load_recording": ".recordings",
    "load_run": ".results.run_folder",
    "load_scenario": ".scenario",
    "paired_difference": ".statistics",
    "read_measured_runs": ".evidence.validate",
    "regress": ".evidence.regress",
    "replay_all": ".evidence.validate",
    "scenario_text": ".scenario",
    "simulate": ".simulation",
    "size": ".questions.size",
    "sweep": ".questions.sweep",
    "validate": ".evidence.validate",
    "write_trace": ".exports.trace",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name == "cost_models":
        import cost_models

        return cost_models
    if name == "__version__":
        return import_module(".version", __name__).dryserve_version()
    if name == "figures":
        return import_module(".figures", __name__)
    if name not in _HOMES:
        raise AttributeError(f"{__name__} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name], __name__), name)
