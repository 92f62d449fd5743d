"""`dryserve size`: how many GPUs, of which kind, for a rate and a promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import Address, Backend, Slo, Workers


def size(
    scenario: Annotated[str, typer.Argument(help="Name of a shipped scenario, or path of a .yaml file.")],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH=VALUES]...", help="Further grids, as if each followed a --grid."),
    ] = None,
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
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override a field, such as engine.version=0.33.0."),
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(help="Money for a GPU hour: a .toml or .yaml file, h100-sxm=4.00,…, or example."),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(help="Requests of each run; default: those of a minute, at least 500.")
    ] = None,
    replications: Annotated[int, typer.Option(help="Seeds that decide a rate.")] = 5,
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
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Write tables only.")] = False,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Let the scenario name policy classes of your own.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print size.json in place of the screen.")] = False,
) -> None:
    """Find the highest rate each candidate sustains, and the smallest and the cheapest fleet for a rate.

    Every answer is confirmed by runs of the whole fleet. Runs are kept as they finish: a sizing that was
    interrupted goes on where it stopped, and one that is repeated costs nothing.
    """
    from sim.cli.options import given, read_share
    from sim.cli.progress import points_bar
    from sim.questions.size import folder, screen
    from sim.questions.size import size as experiment
    from sim.report.answer_folder import json_text
    from sim.report.folder import check_writable

    check_writable(out)
    with points_bar() as bar:
        try:
            found = experiment(
                scenario,
                rate=rate,
                num_gpus=num_gpus,
                slo=slo,
                attainment=attainment,
                gpus=gpus.split(",") if gpus else (),
                tp=tp,
                grids=[*(grid or ()), *(more or ())],
                overrides=overrides or (),
                prices=prices,
                requests=requests,
                replications=replications,
                **given(precision=read_share(precision, "--precision")),
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
    if found.unpriced and as_json:
        typer.echo(f"note: {found.unpriced}: its cost is left out", err=True)
    typer.echo(f"results in {written}", err=True)
    failures = {} if no_figures else folder.draw(found, written)
    for name, reason in failures.items():
        typer.echo(f"error: figure {name} could not be drawn: {reason}", err=True)
    if failures or not found.has_answer:
        raise typer.Exit(1)
