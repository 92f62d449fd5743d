"""`dryserve regress`: a set of scenarios against its committed baseline."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer


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
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Write tables only.")] = False,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Import policy classes of your own that scenarios name.")
    ] = False,
) -> None:
    """Run a folder of small scenarios and hold the results against the folder's baseline.json.

    Exits 1 if a number differs by more than the baseline allows, or if a layer (workload, scheduler, cost
    model, memory plan, cluster) no longer does what it did, and names number, scenario and layer. Differences
    are shown against the error that validation found. The folder for results gets report.md, figures,
    regress.json, and baseline.json as it would be.
    """
    from sim.errors import InputError, input_error
    from sim.evidence import regress as experiment
    from sim.evidence.regress import pages

    if accept and not (why and why.strip()):
        raise input_error('needs --why "…": the changelog says why numbers moved', where="--accept")
    if (why is not None or changelog is not None) and not accept:
        raise input_error("goes with --accept", where="--why" if why is not None else "--changelog")
    files = experiment.scenario_files(folder)
    if changelog is not None:
        experiment.check_changelog(changelog)
    unreadable: InputError | None = None
    try:
        before = experiment.read_baseline(folder)
    except InputError as error:
        if not accept:
            raise
        before, unreadable = None, error
    if before is None and not accept:
        message = (
            f'has no baseline.json; dryserve regress {folder} --accept --why "first baseline" writes one'
        )
        raise input_error(message, where=str(folder))
    scenarios = before.scenarios if before else {}
    now = experiment.observe(
        files,
        scenarios,
        lambda name: typer.echo(f"done: {name}", err=True),
        allow_plugins=allow_plugins,
    )
    if before is None:
        assert why is not None
        line = experiment.first_line(sorted(now), folder, why)
        with nullcontext() if changelog is None else experiment.enter(changelog, line):
            experiment.write_baseline(folder, now, None)
        if unreadable is not None:
            typer.echo(f"the old baseline could not be read and is replaced: {unreadable}", err=True)
        typer.echo(f"{len(now)} scenarios of {folder} are the baseline: {folder / 'baseline.json'}")
        if changelog is not None:
            typer.echo(f"{changelog} says:\n{line}")
        return
    found = experiment.compare(before, now)
    failures = pages.write(found, out, figures=not no_figures)
    typer.echo(experiment.render(found, str(folder)))
    typer.echo(f"report in {out / 'report.md'}", err=True)
    for name, reason in failures.items():
        typer.echo(f"error: figure {name} could not be drawn: {reason}", err=True)
    if accept and found.failed:
        assert why is not None
        line = experiment.changelog_line(found, why)
        log = changelog or Path("CHANGELOG.md")
        recorded = changelog is not None or log.exists()
        with experiment.enter(log, line) if recorded else nullcontext():
            experiment.write_baseline(folder, now, before)
        typer.echo(
            f"\naccepted; {log} says:\n{line}" if recorded else f"\naccepted; for your changelog:\n{line}"
        )
    elif accept:
        typer.echo("nothing to accept: the baseline stays")
    elif found.failed:
        typer.echo(f'If this is meant: dryserve regress {folder} --accept --why "…"', err=True)
    if failures or (found.failed and not accept):
        raise typer.Exit(1)
