"""`dryserve compare-releases`: one workload under two releases, and which rule moved what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import AllowPlugins, AsJson, Overrides, ScenarioName, run_options


def compare_releases(
    scenario: ScenarioName,
    older: Annotated[str, typer.Option("--from", help="The older release.")] = "0.16.0",
    newer: Annotated[str, typer.Option("--to", help="The newer release.")] = "0.33.0",
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for results; this gets its own below.")] = Path("runs"),
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Run a scenario under two releases of vLLM and find which of their differences moved what.

    Both get the same requests. Then each rule, default and fact of the cost models in which they differ is
    undone alone in the newer release.
    """
    from sim.cli.tail import give_answer
    from sim.evidence.releases import compare_releases

    give_answer(
        lambda options: compare_releases(
            scenario, overrides or (), older=older, newer=newer, options=options
        ),
        run_options(jobs, allow_plugins=allow_plugins),
        out,
        figures=False,
        as_json=as_json,
    )
