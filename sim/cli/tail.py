"""What commands that give an answer do alike: run it, print it, write it, draw it, and exit.

A command whose answer comes in one piece calls `give_answer`; others take the parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from sim.cli.progress import PointsBar
    from sim.jobs.options import RunOptions
    from sim.report.answer import Answer

    Found = TypeVar("Found", bound=Answer)

RESUMES = "the same command goes on from there"


def give_answer(
    ask: Callable[[RunOptions], Found],
    options: RunOptions,
    out: Path,
    *,
    figures: bool,
    as_json: bool = False,
    as_csv: bool = False,
) -> Found:
    """Get an answer under a progress bar, write it below `out`, print it and draw its figures.

    `ask` is given the options with the bar in them. Exits 1 if the answer or a figure failed, 130 when it is
    interrupted. Raises `InputError` if nothing can be written below `out`, before anything runs.
    """
    from sim.errors import input_error
    from sim.report.folder import check_writable

    if as_json and as_csv:
        raise input_error("leaves no choice of --json", where="--csv")
    check_writable(out)
    with watched(options) as (bar, watched_options):
        found = ask(watched_options)
    folder = found.write(out, draw=False)
    print_answer(found, as_json=as_json, as_csv=as_csv)
    typer.echo(f"{bar.told}; results in {folder}", err=True)
    finish(found, folder, figures=figures)
    return found


@contextmanager
def watched(options: RunOptions, resumes: str = RESUMES) -> Iterator[tuple[PointsBar, RunOptions]]:
    """Give a progress bar, and the options that fill it; exit 130 with a word on what was done when
    interrupted.

    Warnings of what runs meanwhile are lines on stderr. `resumes` ends the word.
    """
    from sim.cli.progress import points_bar

    with points_bar() as bar, _warnings_as_lines():
        try:
            yield bar, replace(options, on_progress=bar.update)
        except KeyboardInterrupt:
            bar.stop()
            typer.echo(f"interrupted: {bar.told}; {resumes}", err=True)
            raise typer.Exit(130) from None


def print_answer(found: Answer, *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print the answer: as text, as the contents of its JSON file, or as its first table."""
    if as_json:
        typer.echo(found.json_text(), nl=False)
    elif as_csv:
        from sim.report.answer import csv_text

        typer.echo(csv_text(next(iter(found.tables().values()))), nl=False)
    else:
        typer.echo(found.as_text())
        return
    for warning in found.warnings:
        typer.echo(f"note: {warning}", err=True)


def finish(found: Answer, folder: Path, *, figures: bool) -> None:
    """Draw the figures into the answer's folder if they are wanted; exit 1 if one or the answer failed."""
    failures = found.draw(folder) if figures else {}
    tell_failures(failures)
    if failures or found.has_failed:
        raise typer.Exit(1)


def tell_failures(failures: Mapping[str, str]) -> None:
    """Say on stderr which figures could not be drawn, and why."""
    for name, reason in failures.items():
        typer.echo(f"error: figure {name} could not be drawn: {reason}", err=True)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    def show(message: Warning | str, *_: object) -> None:
        typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show  # type: ignore[assignment]  # the rest of its arguments is not shown
        yield
