"""`dryserve sweep`: a scenario under every combination of values, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import (
    Address,
    AllowPlugins,
    AsJson,
    Backend,
    Grids,
    MoreGrids,
    NoFigures,
    Overrides,
    Prices,
    ScenarioName,
    Seeds,
    Slo,
    Workers,
)


def sweep(
    scenario: ScenarioName,
    more: MoreGrids = None,
    grid: Grids = None,
    zipped: Annotated[
        list[str] | None,
        typer.Option("--zip", metavar="PATH=VALUES", help="Vary fields together: all --zip are one axis."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Vary the rate: 1:20 (about ten steps), 1:20:2, 1..16 doublings, or 2,4,8."),
    ] = None,
    slo: Slo = None,
    prices: Prices = None,
    requests: Annotated[
        int | None, typer.Option(help="Requests of each run, in place of the scenario's duration.")
    ] = None,
    warm_up: Annotated[
        str | None,
        typer.Option(help="Leave out what arrives before this, such as 60s; auto finds it (MSER-5)."),
    ] = None,
    replications: Annotated[
        int | None, typer.Option(help="Runs of each point, with different seeds; default 5.")
    ] = None,
    seeds: Seeds = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Replicate until intervals are within this share of the mean, such as 5%."),
    ] = None,
    most_replications: Annotated[int | None, typer.Option(help="Stop --precision here; default 200.")] = None,
    workers: Workers = None,
    backend: Backend = "loky",
    address: Address = None,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder for results; the sweep gets its own below.")] = Path(
        "sweeps"
    ),
    no_figures: NoFigures = False,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print points.csv in place of the screen.")] = False,
) -> None:
    """Run a scenario under every combination of values and seeds; print tables with intervals and the best.

    Results of runs are kept as they finish (in $DRYSERVE_CACHE, by default the user's cache): a sweep that
    was interrupted goes on where it stopped, and one that is repeated costs nothing.
    """
    from sim.cli.options import given, read_seeds, read_share, read_warm_up, run_options
    from sim.cli.tail import give_answer
    from sim.questions.sweep import sweep as ask

    asked = given(
        rates=rate,
        slo=slo,
        prices=prices,
        requests=requests,
        warm_up=read_warm_up(warm_up),
        replications=replications,
        seeds=read_seeds(seeds),
        precision=read_share(precision, "--precision"),
        most_replications=most_replications,
    )
    grids = [*(grid or ()), *(more or ())]
    give_answer(
        lambda options: ask(
            scenario, grids, zipped=zipped or (), overrides=overrides or (), options=options, **asked
        ),
        run_options(workers, backend, address, allow_plugins=allow_plugins),
        out,
        figures=not no_figures,
        as_json=as_json,
        as_csv=as_csv,
    )
