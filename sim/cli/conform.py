"""`dryserve conform`: replay recorded engine runs on this scheduler and compare every step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def conform(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Recordings of engines (*.jsonl.gz), recorded cases (*.json.gz), or folders of them."
        ),
    ],
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Walk over every request of a case in every step, without the fast way."
        ),
    ] = False,
) -> None:
    """Replay recorded engine runs; exit 0 only if every step of every run is identical.

    Of a recording that differs it tells the first step that does, and the rule that most likely is another.
    """
    from sim.cli.progress import spinner
    from sim.evidence.conform import conform as replay
    from sim.evidence.recorded import conform_recordings, find_recordings

    recordings, cases = find_recordings(paths)
    passed = True
    if cases:
        outcome = replay(cases, plain=plain)
        typer.echo(outcome.as_text())
        passed = outcome.passed
    if recordings:
        with spinner("replaying recordings"):
            report = conform_recordings(recordings)
        typer.echo(report.as_text())
        if report.refused:
            raise typer.Exit(2)
        passed = passed and report.passed
    if not passed:
        raise typer.Exit(1)
