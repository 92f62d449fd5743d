"""`dryserve explain`: why a latency percentile is what it is, and what would change it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import AllowPlugins, AsJson, NoFigures, Overrides, Workers


class Metric(StrEnum):
    """Which latency; `e2el` is vLLM's name for `e2e`."""

    TTFT = "ttft"
    E2E = "e2e"
    ITL = "itl"
    E2EL = "e2el"


def explain(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_SCENARIO", help="Run folder, name of a shipped scenario, or .yaml file."
        ),
    ],
    metric: Annotated[Metric, typer.Option(help="Which latency to explain.")] = Metric.TTFT,
    percentile: Annotated[
        float, typer.Option(min=50, max=99.99, help="The slowest beyond this percentile are explained.")
    ] = 99,
    overrides: Overrides = None,
    no_remedies: Annotated[
        bool, typer.Option("--no-remedies", help="Find the cause only; simulate no changes.")
    ] = False,
    no_figures: NoFigures = False,
    workers: Workers = None,
    out: Annotated[Path, typer.Option(help="Folder for results of a scenario.")] = Path("runs"),
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Say why p99 TTFT (or E2E, ITL) of a run is what it is, and what would change it.

    The cause is printed first, the remedies when they have been simulated. A run folder is run again from its
    scenario, which gives the same run. Pages, tables and figures go into the run's folder, below explain/.
    """
    from sim.cli.options import run_options
    from sim.cli.progress import progress_bar
    from sim.cli.tail import finish, watched
    from sim.errors import InputError
    from sim.questions.explain import Source, check_question
    from sim.questions.explain import explain as explain_run
    from sim.questions.explain.document import of_tables
    from sim.report import text
    from sim.report.document import Document
    from sim.results import run_folder

    name = "e2e" if metric is Metric.E2EL else metric.value
    check_question(name, percentile, with_remedies=not no_remedies)
    options = run_options(workers, allow_plugins=allow_plugins)
    source = Source.of(run, tuple(overrides or ()))
    scenario = source.load()
    try:
        with progress_bar("requests") as progress:
            found = explain_run(
                run,
                name,
                percentile,
                overrides=overrides or (),
                with_remedies=False,
                options=options,
                progress=progress,
            )
    except InputError as error:
        if source.run is None:
            raise
        tables = run_folder.load(source.run)
        typer.echo(text.render(of_tables(tables, name, percentile, str(error))))
        return
    result = found.observed.result
    if source.run is not None:
        _note_differences(source.run, result.summary)
    elif not _is_kept(out / run_folder.folder_name(scenario), result.summary):
        run_folder.write(result, out)
    if not as_json:
        typer.echo(text.render(Document(found.question, found.findings())), nl=False)
        typer.echo("\n")
    folder = found.write(out, draw=False)
    if not no_remedies and found.may_have_remedies:
        resumes = f"the cause stands in {folder}, and remedies that were simulated are found again"
        try:
            with watched(options, resumes) as (bar, watched_options):
                found = found.with_remedies(watched_options)
        except typer.Exit:  # interrupted: the cause shall have its figures all the same
            if not no_figures:
                found.draw(folder)
            raise
        typer.echo(f"remedies: {bar.told}", err=True)
        found.write(out, draw=False)
    if as_json:
        typer.echo(found.json_text(), nl=False)
    else:
        typer.echo("\n\n".join(text.blocks(found.consequences())))
    typer.echo(f"results in {folder}", err=True)
    finish(found, folder, figures=not no_figures)


def _is_kept(folder: Path, summary: object) -> bool | None:
    """Whether the folder holds this very run; None if it cannot be read."""
    try:
        before = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return bool(before == json.loads(json.dumps(summary, allow_nan=False)))


def _note_differences(folder: Path, summary: object) -> None:
    """Whether the run that was explained is the one in the folder: another version may run otherwise."""
    kept = _is_kept(folder, summary)
    if kept is None:
        typer.echo(f"note: {folder}/summary.json cannot be read, so it was not compared", err=True)
    elif not kept:
        typer.echo(
            f"note: the results in {folder} are not what its scenario gives now (another version, or another "
            "trace file); explained is the run as it is now",
            err=True,
        )
