"""Dry-run an LLM serving cluster: the public names, for notebooks and scripts.

    import dryserve as ds
    result = ds.simulate("quickstart", ["workload.rate_per_s=12"])
    result.summary, result.requests, result.steps, result.plot.latency_cdf()
    run = ds.load_run("runs/quickstart-0123abcd")
    ds.sweep("chat-a100", {"engine.max_num_seqs": "16..256"}, rates="5:60").plot()

They load on first use, so that the command line starts quickly, and so that `dryserve.recording`, which runs
inside vLLM, loads nothing of the simulator.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim import *  # noqa: F403

if "__path__" not in globals():  # in a checkout; a wheel holds it beside this file
    __path__ = [str(Path(__file__).with_name("sim") / "recordings" / "inside_vllm")]


def main() -> None:
    """Entry point of the `dryserve` command."""
    from sim.cli import main as command

    command()


def __getattr__(name: str) -> object:
    if name.startswith("__") and name not in ("__all__", "__version__"):
        raise AttributeError(f"{__name__} has no attribute {name!r}")
    import sim

    return getattr(sim, name)


def __dir__() -> list[str]:
    import sim

    return sorted(sim.__all__)


if __name__ == "__main__":
    main()
