"""`dryserve report`: draw the report of a run, or of several side by side, from their folders alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from sim.cli.tail import tell_failures
    from sim.errors import input_error
    from sim.report.comparison import folder_for, write_comparison
    from sim.report.run_report import write_report
    from sim.results import run_folder

    if len(run_dirs) == 1 and out is not None:
        raise input_error("is for several runs; the page of one run goes into its folder", where="--out")
    with spinner("reading the tables"):
        runs = run_folder.load_all(run_dirs)
    with spinner("drawing the figures"):
        written = write_report(runs[0]) if len(runs) == 1 else write_comparison(runs, out or folder_for(runs))
    typer.echo(f"{written.page}\n{written.html}")
    tell_failures(written.failures)
    if written.failures:
        raise typer.Exit(1)
