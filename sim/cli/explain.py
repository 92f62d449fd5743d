"""`dryserve explain`: why a latency percentile is what it is, and what would change it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sim.questions.explain.explain import Explanation
    from sim.questions.explain.observe import Observed
    from sim.questions.explain.remedies import Remedy, Source


class Metric(StrEnum):
    """Which latency; E2E goes by both names that are in use."""

    TTFT = "ttft"
    E2EL = "e2el"
    E2E = "e2e"
    ITL = "itl"


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
    from sim.cli.progress import progress_bar
    from sim.errors import InputError, input_error
    from sim.questions.explain import folder as explain_folder
    from sim.questions.explain import screen, words
    from sim.questions.explain.explain import as_run, prompt_classes
    from sim.questions.explain.explain import explain as find
    from sim.questions.explain.figures import draw_all
    from sim.questions.explain.observe import observe
    from sim.questions.explain.remedies import ITL_PERCENTILES, by_prompt_length, effect_of
    from sim.questions.explain.tables import render_tables
    from sim.results import run_folder

    name = "e2el" if metric is Metric.E2E else metric.value
    if name == "itl" and not no_remedies and percentile not in ITL_PERCENTILES:
        raise input_error("of ITL 50, 90, 95 and 99, or any other with --no-remedies", where="--percentile")
    source, saved = _source(run, tuple(overrides or ()))
    scenario = source.load()
    try:
        with progress_bar("requests") as progress:
            observed = observe(scenario, progress=progress, allow_plugins=allow_plugins)
    except InputError as error:
        if saved is None:
            raise
        typer.echo(render_tables(run_folder.load(saved), name, percentile, str(error)))
        return
    result = observed.result
    if saved is not None:
        _tell_differences(saved, result.summary)
    else:
        saved = out / run_folder.folder_name(scenario)
        if not _is_kept(saved, result.summary):
            saved = run_folder.write(result, out)
    found = find(observed, name, percentile)
    engine, summary = result.setup.engine, result.summary
    edges, itself = prompt_classes(observed), as_run(observed)
    baseline, classes = effect_of(itself, percentile), by_prompt_length(itself, percentile, edges)
    first = screen.findings(found, scenario, engine, summary)
    if not as_json:
        typer.echo(f"{first}\n")
    folder = explain_folder.folder_for(saved, found)

    def write(remedies: list[Remedy] | None) -> tuple[str, str]:
        second = screen.consequences(found, summary, baseline, remedies, edges, classes)
        document = explain_folder.as_json(
            found, summary, baseline, remedies, edges, classes, words.cause(found, engine)
        )
        explain_folder.write(folder, observed, document, f"{first}\n\n{second}")
        return second, json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)

    second, document = write(None)
    failures = {} if no_figures else draw_all(observed, found, folder)
    if not no_remedies and (found.slow.size or found.preemption.count):
        try:
            remedies = _try(source, observed, found, edges, workers, allow_plugins=allow_plugins)
        except KeyboardInterrupt:
            told = "interrupted: the cause stands there, and remedies that were simulated are found again"
            typer.echo(f"results in {folder}; {told}", err=True)
            raise typer.Exit(130) from None
        second, document = write(remedies)
    typer.echo(document if as_json else second)
    typer.echo(f"results in {folder}", err=True)
    for figure, reason in failures.items():
        typer.echo(f"error: figure {figure} could not be drawn: {reason}", err=True)
    if failures:
        raise typer.Exit(1)


def _source(run: str, overrides: tuple[str, ...]) -> tuple[Source, Path | None]:
    """Where the scenario stands, and the run folder if one was given."""
    from sim.errors import input_error
    from sim.questions.explain.remedies import Source

    folder = Path(run)
    if not folder.is_dir():
        return Source(run, overrides), None
    scenario = folder / "scenario.resolved.yaml"
    if not scenario.is_file():
        raise input_error("is no run folder: scenario.resolved.yaml missing", where=run)
    if overrides:
        raise input_error("changes a scenario, not a run that has been made", where="--set")
    return Source(str(scenario)), folder


def _is_kept(folder: Path, summary: object) -> bool | None:
    """Whether the folder holds this very run; None if it cannot be read."""
    try:
        before = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return bool(before == json.loads(json.dumps(summary, allow_nan=False)))


def _tell_differences(folder: Path, summary: object) -> None:
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


def _try(
    source: Source,
    observed: Observed,
    found: Explanation,
    edges: list[int],
    workers: int | None,
    *,
    allow_plugins: bool,
) -> list[Remedy]:
    from sim.cli.progress import points_bar
    from sim.questions.explain.candidates import candidates
    from sim.questions.explain.explain import facts_of
    from sim.questions.explain.remedies import try_remedies

    proposals = candidates(facts_of(observed, found))
    with points_bar() as bar:
        remedies = try_remedies(
            source,
            observed.result.scenario,
            proposals,
            found.percentile,
            edges=edges,
            workers=workers,
            on_progress=bar.update,
            allow_plugins=allow_plugins,
        )
    typer.echo(f"remedies: {bar.told}", err=True)
    return remedies
