"""`dryserve trace`: a run as a file for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import Overrides

if TYPE_CHECKING:
    from sim.results.plots import Run


def trace(
    run: Annotated[
        str, typer.Argument(metavar="RUN|SCENARIO", help="Folder of a run, or a scenario, which is then run.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write, gzipped if it ends in .gz [RUN/trace.json.gz]."),
    ] = None,
    from_s: Annotated[float | None, typer.Option(help="Begin of the window (s).")] = None,
    to_s: Annotated[float | None, typer.Option(help="End of the window (s).")] = None,
    max_events: Annotated[
        int, typer.Option(help="The window ends earlier where it would hold more events.")
    ] = 500_000,
    overrides: Overrides = None,
) -> None:
    """Write a run as Chrome trace JSON: steps, requests with their phases, counters, preemptions.

    Open the file at ui.perfetto.dev (it stays in your browser) or in chrome://tracing.
    """
    from sim.cli.progress import spinner
    from sim.exports.trace import write_trace

    found, path = _find(run, overrides or [], out)
    with spinner("writing the trace"):
        written = write_trace(found, path, from_s=from_s, to_s=to_s, max_events=max_events)
    typer.echo(str(path))
    typer.echo(
        f"{written.from_s:,.1f}–{written.to_s:,.1f} s: {written.num_steps:,} steps, "
        f"{written.num_requests:,} requests, {written.num_events:,} events",
        err=True,
    )
    if written.cut:
        from sim.figures import worst_minute

        start_s, end_s = worst_minute(found.steps, found.scenario.warmup_s)
        typer.echo(
            f"the window was cut to hold at most {max_events:,} events; the minute with the most trouble is "
            f"--from-s {start_s:.0f} --to-s {end_s:.0f}",
            err=True,
        )


def _find(name: str, overrides: list[str], out: Path | None) -> tuple[Run, Path]:
    """The run, read or simulated, and where its trace goes."""
    from sim.cli.progress import progress_bar
    from sim.errors import input_error
    from sim.results import run_folder
    from sim.scenario import load_scenario
    from sim.simulation import simulate

    if Path(name).is_dir():
        if overrides:
            raise input_error("is for scenarios; this is the folder of a run that is over", where="--set")
        return run_folder.load(name), out or Path(name) / "trace.json.gz"
    scenario = load_scenario(name, overrides)
    with progress_bar("requests") as progress:
        result = simulate(scenario, progress=progress)
    return result, out or Path(f"{scenario.name}.trace.json.gz")
