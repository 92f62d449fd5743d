"""`dryserve regress`: a set of scenarios against its committed baseline."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import AllowPlugins, NoFigures


def regress(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Scenario files and their baseline.json.")
    ] = Path("tests/regress"),
    accept: Annotated[
        bool, typer.Option("--accept", help="Make what comes out now the new baseline; needs --why.")
    ] = False,
    why: Annotated[str | None, typer.Option(help="The reason, for the changelog.")] = None,
    changelog: Annotated[
        Path | None,
        typer.Option(
            help="Where --accept writes its line; if numbers moved, by default a CHANGELOG.md here."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report, figures and tables.")] = Path("runs/regress"),
    no_figures: NoFigures = False,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Run a folder of small scenarios and hold the results against the folder's baseline.json.

    Exits 1 if a number differs by more than the baseline allows, or if a layer (workload, scheduler, cost
    model, memory plan, cluster) no longer does what it did, and names number, scenario and layer. Differences
    are shown against the error that validation found. The folder for results gets report.md and
    .html, figures, regress.json, and baseline.json as it would be.
    """
    from sim.cli.tail import print_answer, tell_failures
    from sim.errors import InputError, input_error
    from sim.evidence import regress as evidence

    if accept and not (why and why.strip()):
        raise input_error('needs --why "…": the changelog says why numbers moved', where="--accept")
    if (why is not None or changelog is not None) and not accept:
        raise input_error("goes with --accept", where="--why" if why is not None else "--changelog")
    if changelog is not None:
        evidence.check_changelog(changelog)
    if accept:
        assert why is not None
        try:
            is_first, unreadable = evidence.read_baseline(folder) is None, None
        except InputError as error:
            is_first, unreadable = True, error
        if is_first:
            _accept_first(folder, why, changelog, allow_plugins=allow_plugins)
            if unreadable is not None:
                typer.echo(f"the old baseline could not be read and is replaced: {unreadable}", err=True)
            return
    found = evidence.regress(folder, on_done=_say_done, allow_plugins=allow_plugins)
    found.write(out, draw=False)
    print_answer(found)
    typer.echo(f"report in {out / 'report.md'}", err=True)
    failures = {} if no_figures else found.draw(out)
    tell_failures(failures)
    if accept and found.failed:
        assert why is not None
        line = evidence.changelog_line(found.failed, why)
        log = changelog or Path("CHANGELOG.md")
        recorded = changelog is not None or log.exists()
        with evidence.enter(log, line) if recorded else nullcontext():
            evidence.write_baseline(folder, found.now, found.before)
        typer.echo(
            f"\naccepted; {log} says:\n{line}" if recorded else f"\naccepted; for your changelog:\n{line}"
        )
    elif accept:
        typer.echo("nothing to accept: the baseline stays")
    elif found.failed:
        typer.echo(f'If this is meant: dryserve regress {folder} --accept --why "…"', err=True)
    if failures or (found.failed and not accept):
        raise typer.Exit(1)


def _accept_first(folder: Path, why: str, changelog: Path | None, *, allow_plugins: bool) -> None:
    """Make what comes out now the first baseline."""
    from sim.evidence import regress as evidence

    files = evidence.scenario_files(folder)
    now = evidence.observe(files, {}, _say_done, allow_plugins=allow_plugins)
    line = evidence.first_line(sorted(now), folder, why)
    with nullcontext() if changelog is None else evidence.enter(changelog, line):
        evidence.write_baseline(folder, now, None)
    typer.echo(f"{len(now)} scenarios of {folder} are the baseline: {folder / 'baseline.json'}")
    if changelog is not None:
        typer.echo(f"{changelog} says:\n{line}")


def _say_done(name: str) -> None:
    typer.echo(f"done: {name}", err=True)
