"""`dryserve compare`: policies or configurations under the same arrivals, and whether they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import (
    Address,
    AllowPlugins,
    AsJson,
    Backend,
    NoFigures,
    Overrides,
    ScenarioName,
    Seeds,
    Slo,
    Workers,
)


def compare(
    scenario: ScenarioName,
    variants: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VARIANT]...",
            help="A policy (least_computed, fair, priority, …), field=value[,field=value], or a scenario.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=VALUES", help="One variant for each value, such as watermark=0,0.05."),
    ] = None,
    slo: Slo = None,
    replications: Annotated[
        int | None, typer.Option(help="Runs of each variant, with different seeds; default 10.")
    ] = None,
    seeds: Seeds = None,
    starving: Annotated[
        float, typer.Option(help="Seconds without a first step after which a class is said to starve.")
    ] = 60.0,
    overrides: Overrides = None,
    workers: Workers = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Folder for results; the comparison gets its own below.")] = Path(
        "comparisons"
    ),
    no_figures: NoFigures = False,
    allow_plugins: AllowPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Run variants of a scenario under the same seeds; print paired differences with intervals.

    The first variant is the reference: the scenario itself, unless two or more variants of it are given. Runs
    are kept as they finish: a comparison that was interrupted goes on where it stopped.
    """
    from sim.cli.options import given, read_seeds, run_options
    from sim.cli.tail import give_answer
    from sim.questions.compare import compare as ask

    asked = given(
        vary=vary,
        overrides=overrides,
        slo=slo,
        replications=replications,
        seeds=read_seeds(seeds),
        starving_s=starving,
    )
    give_answer(
        lambda options: ask(scenario, *(variants or ()), options=options, **asked),
        run_options(workers, backend, address, allow_plugins=allow_plugins),
        out,
        figures=not no_figures,
        as_json=as_json,
    )
