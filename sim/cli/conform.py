"""`dryserve conform`: replay recorded engine runs on this scheduler and compare every step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def conform(
    paths: Annotated[list[Path], typer.Argument(help="Recorded runs (*.json.gz), or folders of them.")],
    plain: Annotated[
        bool, typer.Option("--plain", help="Walk over every request in every step, without the fast way.")
    ] = False,
) -> None:
    """Replay recorded engine runs; exit 0 only if every step of every case is identical."""
    from sim.evidence.conform import conform as replay

    outcome = replay(paths, plain=plain)
    typer.echo(outcome.as_text())
    if not outcome.passed:
        raise typer.Exit(1)
