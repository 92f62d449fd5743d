"""`dryserve report`: draw the report of a run again, from its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.report import Report


def report(
    run_dir: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/quickstart-0123abcd.")],
) -> None:
    """Draw report.md and the figures of a run again."""
    from sim import run_folder
    from sim.report import write_report

    saved = run_folder.load(run_dir)
    notes = saved.summary.get("notes")
    assert isinstance(notes, list)
    written = write_report(
        saved.folder,
        saved.requests,
        saved.steps,
        saved.summary,
        saved.scenario,
        [str(note) for note in notes],
    )
    typer.echo(str(written.page))
    tell_failures(written)


def tell_failures(written: Report) -> None:
    """Say on stderr which figures failed, and exit 1 if any did: everything else has been written by then."""
    for name, reason in written.failures.items():
        typer.echo(f"error: figure {name} could not be drawn: {reason}", err=True)
    if written.failures:
        raise typer.Exit(1)
