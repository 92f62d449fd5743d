"""`dryserve explain`: why a latency percentile is what it is, and what would change it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


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
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override a field, such as workload.rate_per_s=12."),
    ] = None,
    no_remedies: Annotated[
        bool, typer.Option("--no-remedies", help="Find the cause only; simulate no changes.")
    ] = False,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Draw nothing.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", "-j", min=1, help="Processes for remedies; default: all cores.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results of a scenario.")] = Path("runs"),
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Let the scenario name policy classes of your own.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print explain.json in place of the screen.")
    ] = False,
) -> None:
    """Say why p99 TTFT (or E2E, ITL) of a run is what it is, and what would change it.

    The cause is printed first, the remedies when they have been simulated. A run folder is run again from its
    scenario, which gives the same run. Screen, tables and figures go into the run's folder, below explain/.
    """
    from sim.cli.progress import points_bar, progress_bar
    from sim.errors import InputError
    from sim.questions.explain import check_question, screen
    from sim.questions.explain import explain as explain_run
    from sim.questions.explain.explain import write
    from sim.questions.explain.figures import draw_all
    from sim.questions.explain.remedies import Source
    from sim.questions.explain.tables import render_tables
    from sim.results import run_folder

    name = "e2e" if metric is Metric.E2EL else metric.value
    check_question(name, percentile, with_remedies=not no_remedies)
    source = Source.of(run, tuple(overrides or ()))
    scenario = source.load()
    try:
        with progress_bar("requests") as progress:
            answer = explain_run(
                source,
                name,
                percentile,
                with_remedies=False,
                progress=progress,
                allow_plugins=allow_plugins,
            )
    except InputError as error:
        if source.run is None:
            raise
        typer.echo(render_tables(run_folder.load(source.run), name, percentile, str(error)))
        return
    result = answer.observed.result
    if source.run is not None:
        _note_differences(source.run, result.summary)
        kept = source.run
    else:
        kept = out / run_folder.folder_name(scenario)
        if not _is_kept(kept, result.summary):
            kept = run_folder.write(result, out)
    folder = answer.folder(kept)
    first, second = screen.findings(answer), screen.consequences(answer)
    if not as_json:
        typer.echo(f"{first}\n")
    write(answer, folder, f"{first}\n\n{second}")
    failures = {} if no_figures else draw_all(answer.observed, answer.cause, folder)
    if not no_remedies and answer.may_have_remedies:
        try:
            with points_bar() as bar:
                answer = answer.with_remedies(
                    workers=workers, on_progress=bar.update, allow_plugins=allow_plugins
                )
        except KeyboardInterrupt:
            message = "interrupted: the cause stands there, and remedies that were simulated are found again"
            typer.echo(f"results in {folder}; {message}", err=True)
            raise typer.Exit(130) from None
        typer.echo(f"remedies: {bar.told}", err=True)
        second = screen.consequences(answer)
        write(answer, folder, f"{first}\n\n{second}")
    if as_json:
        typer.echo(json.dumps(answer.as_json(), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        typer.echo(second)
    typer.echo(f"results in {folder}", err=True)
    for figure, reason in failures.items():
        typer.echo(f"error: figure {figure} could not be drawn: {reason}", err=True)
    if failures:
        raise typer.Exit(1)


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
