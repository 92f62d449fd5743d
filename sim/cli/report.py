"""`dryserve report`: draw the report of a run, or of several side by side, from their folders alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.report import Report


def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs: runs/quickstart-0123abcd."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the page on several runs (else one beside the first run)."
        ),
    ] = None,
) -> None:
    """Draw report.md, report.html and the figures of a run again; of several, one page that compares them.

    The HTML page is one file that opens offline. Several runs are drawn into the same figures, and
    differences are taken from the first one named.
    """
    from sim.cli.progress import spinner
    from sim.errors import input_error
    from sim.report import write_comparison, write_report
    from sim.report.comparison import folder_for
    from sim.results import run_folder

    if len(run_dirs) == 1 and out is not None:
        raise input_error("is for several runs; the page of one run goes into its folder", where="--out")
    with spinner("reading the tables"):
        runs = run_folder.load_all(run_dirs)
    try:
        with spinner("drawing the figures"):
            written = (
                write_report(runs[0]) if len(runs) == 1 else write_comparison(runs, out or folder_for(runs))
            )
    except OSError as error:
        raise input_error(f"cannot be written: {error.strerror}", where=str(error.filename)) from None
    typer.echo(f"{written.page}\n{written.html}")
    tell_failures(written)


def tell_failures(written: Report) -> None:
    """Say on stderr which figures failed, and exit 1 if any did: everything else has been written by then."""
    for name, reason in written.failures.items():
        typer.echo(f"error: figure {name} could not be drawn: {reason}", err=True)
    if written.failures:
        raise typer.Exit(1)
