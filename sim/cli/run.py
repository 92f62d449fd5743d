"""`dryserve run`: one scenario, one screen, one folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import AllowPlugins, AsJson, Overrides, ScenarioName

if TYPE_CHECKING:
    from sim.simulation import RunResult


def run(
    scenario: ScenarioName,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder for results; the run gets its own below.")] = Path("runs"),
    check: Annotated[bool, typer.Option("--check", help="Verify the laws while it runs (slow).")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Walk over every request in every step: slower, same results.")
    ] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write tables only, no figures.")] = False,
    allow_plugins: AllowPlugins = False,
    export: Annotated[
        str,
        typer.Option(metavar="FORMAT,...", help="Also write vllm (bench result), parquet, openmetrics."),
    ] = "",
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also record the steps: FILE.jsonl.gz, of several replicas FILE-0.jsonl.gz, …",
        ),
    ] = None,
    kv_events: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also write the engines' KV events as JSON lines (.gz packs them)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario and print what came of it."""
    from sim.cli.progress import progress_bar
    from sim.exports import check_formats, write_exports
    from sim.report import screen
    from sim.results import run_folder
    from sim.scenario import load_scenario
    from sim.simulation import simulate

    formats = [name.strip() for name in export.split(",") if name.strip()]
    check_formats(formats)
    chosen = load_scenario(scenario, overrides or ())
    started = time.perf_counter()
    with progress_bar("requests") as progress:
        result = simulate(
            chosen,
            check=check,
            progress=progress,
            plain=plain,
            allow_plugins=allow_plugins,
            record=record,
            kv_events=kv_events,
        )
    took_s = time.perf_counter() - started
    folder = run_folder.write(result, out)
    exported = write_exports(result, folder, formats)
    text = json.dumps(result.summary, indent=2, allow_nan=False) if as_json else screen.render(result.summary)
    typer.echo(text)
    laws = "; all laws hold" if check else ""
    typer.echo(f"simulated {result.clock_s:,.1f} s in {took_s:.1f} s{laws}; results in {folder}", err=True)
    for path in exported:
        typer.echo(f"exported {path}", err=True)
    if record is not None:
        from sim.cluster.recorded import recording_path

        replicas = chosen.cluster.replicas
        paths = [recording_path(record, index, replicas) for index in range(replicas)]
        typer.echo(f"recorded {paths[0]}" + (f" … {paths[-1]}" if replicas > 1 else ""), err=True)
    if kv_events is not None:
        typer.echo(f"KV events in {kv_events}", err=True)
        if not result.setup.engine.enable_prefix_caching:
            typer.echo("note: there are none, for prefix caching is off", err=True)
    if not no_report:
        _report(result, folder)
    if result.stuck is not None:
        typer.echo(f"error: the run was ended by a {result.stuck}", err=True)
        raise typer.Exit(1)


def _report(result: RunResult, folder: Path) -> None:
    """Draw the figures. By now all numbers are printed and written, so a failure costs the report alone."""
    from sim.cli.progress import spinner
    from sim.cli.tail import tell_failures
    from sim.errors import InputError
    from sim.report.run_report import write_report
    from sim.results import run_folder

    try:
        with spinner("drawing the figures"):
            written = write_report(run_folder.saved(result, folder))
    except (ImportError, InputError) as error:
        typer.echo(f"error: the report could not be written: {error}", err=True)
        raise typer.Exit(1) from None
    tell_failures(written.failures)
    if written.failures:
        raise typer.Exit(1)
