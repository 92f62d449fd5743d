"""`dryserve compare`: policies or configurations under the same arrivals, and whether they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import Address, Backend, Slo, Workers


def compare(
    scenario: Annotated[str, typer.Argument(help="Name of a shipped scenario, or path of a .yaml file.")],
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
    seeds: Annotated[str | None, typer.Option(help="The seeds, such as 1,2,3 or 1..10:1.")] = None,
    starving: Annotated[
        float, typer.Option(help="Seconds without a first step after which a class is said to starve.")
    ] = 60.0,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override a field in all variants."),
    ] = None,
    workers: Workers = None,
    backend: Backend = "loky",
    address: Address = None,
    out: Annotated[Path, typer.Option(help="Folder for results; the comparison gets its own below.")] = Path(
        "comparisons"
    ),
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Write tables only.")] = False,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Let variants name policy classes of your own.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print compare.json in place of the screen.")
    ] = False,
) -> None:
    """Run variants of a scenario under the same seeds; print paired differences with intervals.

    The first variant is the reference: the scenario itself, unless two or more variants of it are given. Runs
    are kept as they finish: a comparison that was interrupted goes on where it stopped.
    """
    from sim.cli.options import read_seeds
    from sim.cli.progress import points_bar
    from sim.questions.compare import compare as experiment
    from sim.questions.compare import folder, screen
    from sim.report.answer_folder import json_text
    from sim.report.folder import check_writable

    check_writable(out)
    with points_bar() as bar:
        try:
            found = experiment(
                scenario,
                *(variants or ()),
                vary=vary or (),
                overrides=overrides or (),
                slo=slo,
                replications=replications,
                seeds=read_seeds(seeds),
                starving_s=starving,
                backend=backend,
                address=address,
                workers=workers,
                on_progress=bar.update,
                allow_plugins=allow_plugins,
            )
        except KeyboardInterrupt:
            bar.stop()
            typer.echo(f"interrupted: {bar.told}; the same command goes on from there", err=True)
            raise typer.Exit(130) from None
    written = folder.write(found, out)
    typer.echo(json_text(folder.as_json(found)) if as_json else screen.render(found), nl=not as_json)
    typer.echo(f"{bar.told}; results in {written}", err=True)
    failures = {} if no_figures else folder.draw(found, written)
    for name, reason in failures.items():
        typer.echo(f"error: figure {name} could not be drawn: {reason}", err=True)
    if failures or found.failed:
        raise typer.Exit(1)
