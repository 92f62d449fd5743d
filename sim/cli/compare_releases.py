"""`dryserve compare-releases`: one workload under two releases, and which rule moved what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare_releases(
    scenario: Annotated[str, typer.Argument(help="Name of a shipped scenario, or path of a .yaml file.")],
    older: Annotated[str, typer.Option("--from", help="The older release.")] = "0.16.0",
    newer: Annotated[str, typer.Option("--to", help="The newer release.")] = "0.33.0",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override a field, such as workload.rate_per_s=12."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for results; this gets its own below.")] = Path("runs"),
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Import policy classes of your own that it names.")
    ] = False,
) -> None:
    """Run a scenario under two releases of vLLM and find which of their differences moved what.

    Both get the same requests. Then each rule, default and fact of the cost models in which they differ is
    undone alone in the newer release.
    """
    from sim.evidence.releases import compare_releases, render, write

    found = compare_releases(
        scenario,
        overrides or (),
        older=older,
        newer=newer,
        jobs=jobs,
        on_done=lambda name: typer.echo(f"done: {name}", err=True),
        allow_plugins=allow_plugins,
    )
    folder = write(found, out)
    typer.echo(render(found))
    typer.echo(f"results in {folder}", err=True)
