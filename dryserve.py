"""Dry-run an LLM serving cluster: the public names, for notebooks and scripts.

    import dryserve as ds
    result = ds.simulate("quickstart", ["workload.rate_per_s=12"])
    result.summary, result.requests, result.steps, result.plot.latency_cdf()
    run = ds.load_run("runs/quickstart-0123abcd")
    ds.sweep("chat-a100", {"engine.max_num_seqs": "16..256"}, rates="5:60").plot()

They load on first use, so that the command line starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sim

if TYPE_CHECKING:
    from sim import *  # noqa: F403

__all__ = sim.__all__


def main() -> None:
    """Entry point of the `dryserve` command."""
    from sim.cli import main as command

    command()


def __getattr__(name: str) -> object:
    return getattr(sim, name)


def __dir__() -> list[str]:
    return sorted(sim.__all__)


if __name__ == "__main__":
    main()
