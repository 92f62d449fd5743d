"""`dryserve size`: how many GPUs, of which kind, for a rate and a promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import (
    Address,
    AllowPlugins,
    AsJson,
    Backend,
    MoreGrids,
    NoFigures,
    Overrides,
    Prices,
    ScenarioName,
    Slo,
    Workers,
)


def size(
    scenario: ScenarioName,
    more: MoreGrids = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second that the fleet must take.")] = None,
    num_gpus: Annotated[
        int | None, typer.Option(help="Give every candidate so many GPUs, and find the rate they take.")
    ] = None,
    slo: Slo = None,
    attainment: Annotated[
        float | None,
        typer.Option(help="Share of requests that must keep all targets; default: each its own percentile."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(help="Candidate GPUs, such as h100-sxm,a100-sxm-80gb; default: the scenario's."),
    ] = None,
    tp: Annotated[str | None, typer.Option(help="Candidate tensor-parallel sizes, such as 1,2,4.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=VALUES", help="Candidate settings, such as max_num_seqs=64,128,256."),
    ] = None,
    overrides: Overrides = None,
    prices: Prices = None,
    requests: Annotated[
        int | None, typer.Option(help="Requests of each run; default: those of a minute, at least 500.")
    ] = None,
    replications: Annotated[int | None, typer.Option(help="Seeds that decide a rate; default 5.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="How near the rates that hold and do not hold must come; default 5%."),
    ] = None,
    workers: Workers = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Folder for results; the sizing gets its own below.")] = Path(
        "sizes"
    ),
    no_figures: NoFigures = False,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Find the highest rate each candidate sustains, and the smallest and the cheapest fleet for a rate.

    Every answer is confirmed by runs of the whole fleet. Runs are kept as they finish: a sizing that was
    interrupted goes on where it stopped, and one that is repeated costs nothing.
    """
    from sim.cli.options import given, read_share, run_options
    from sim.cli.tail import give_answer
    from sim.questions.size import size as ask

    asked = given(
        rate=rate,
        num_gpus=num_gpus,
        slo=slo,
        attainment=attainment,
        gpus=gpus.split(",") if gpus else None,
        tp=tp,
        overrides=overrides,
        prices=prices,
        requests=requests,
        replications=replications,
        precision=read_share(precision, "--precision"),
    )
    give_answer(
        lambda options: ask(scenario, grids=[*(grid or ()), *(more or ())], options=options, **asked),
        run_options(workers, backend, address, allow_plugins=allow_plugins),
        out,
        figures=not no_figures,
        as_json=as_json,
    )
