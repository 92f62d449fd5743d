"""`dryserve sweep`: a scenario under every combination of values, with intervals."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from sim.cli.options import Address, Backend, Slo, Workers


def sweep(
    scenario: Annotated[str, typer.Argument(help="Name of a shipped scenario, or path of a .yaml file.")],
    more: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH=VALUES]...", help="Further grids, as if each followed a --grid."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUES",
            help="Vary a field: a..b doublings, a..b:step steps, or a,b,c; several grids are combined.",
        ),
    ] = None,
    zipped: Annotated[
        list[str] | None,
        typer.Option("--zip", metavar="PATH=VALUES", help="Vary fields together: all --zip are one axis."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(help="Vary the rate: 1:20 (about ten steps), 1:20:2, 1..16 doublings, or 2,4,8."),
    ] = None,
    slo: Slo = None,
    prices: Annotated[
        str | None, typer.Option(help="Prices of GPUs an hour, as h100-sxm=4.00,… or a file.")
    ] = None,
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
    seeds: Annotated[
        str | None, typer.Option(help="The seeds of the replications, such as 1,2,3 or 1..10:1.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Replicate until intervals are within this share of the mean, such as 5%."),
    ] = None,
    most_replications: Annotated[int, typer.Option(help="Stop --precision here.")] = 200,
    workers: Workers = None,
    backend: Backend = "loky",
    address: Address = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override a field, such as cluster.replicas=2."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results; the sweep gets its own below.")] = Path(
        "sweeps"
    ),
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Write tables only.")] = False,
    allow_plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Let the scenario name policy classes of your own.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print sweep.json in place of the screen.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print points.csv in place of the screen.")] = False,
) -> None:
    """Run a scenario under every combination of values and seeds; print tables with intervals and the best.

    Results of runs are kept as they finish (in $DRYSERVE_CACHE, by default the user's cache): a sweep that
    was interrupted goes on where it stopped, and one that is repeated costs nothing.
    """
    from sim.cli.progress import points_bar
    from sim.errors import input_error
    from sim.questions import sweep as experiment
    from sim.questions.sweep import folder, screen

    if as_json and as_csv:
        raise input_error("leaves no choice of --json", where="--csv")
    folder.check_writable(out)
    with points_bar() as bar, _warnings_as_lines():
        try:
            found = experiment.sweep(
                scenario,
                [*(grid or ()), *(more or ())],
                zipped=zipped or (),
                rates=rate,
                overrides=overrides or (),
                slo=slo,
                prices=prices,
                requests=requests,
                warm_up=_warm_up(warm_up),
                replications=replications,
                seeds=_seeds(seeds),
                precision=_share(precision),
                most_replications=most_replications,
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
    if found.unpriced and (as_json or as_csv):
        typer.echo(f"note: {found.unpriced}: its cost is left out", err=True)
    if as_json:
        typer.echo(json.dumps(folder.as_json(found), indent=2, allow_nan=False, ensure_ascii=False))
    elif as_csv:
        typer.echo(found.summary.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        typer.echo(screen.render(found))
    typer.echo(f"{bar.told}; results in {written}", err=True)
    failures = {} if no_figures else folder.draw(found, written)
    for name, reason in failures.items():
        typer.echo(f"error: figure {name} could not be drawn: {reason}", err=True)
    if found.failed or failures:
        raise typer.Exit(1)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    def show(message: Warning | str, *_: object) -> None:
        typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = show  # type: ignore[assignment]  # the rest of its arguments is not shown
        yield


def _seeds(text: str | None) -> list[int] | None:
    from sim.errors import input_error
    from sim.scenario import parse_grid

    if text is None:
        return None
    where = f"--seeds {text}"
    values = parse_grid(text, where=where)
    if not all(type(value) is int for value in values):
        raise input_error("must be whole numbers", where=where)
    return [value for value in values if type(value) is int]


def _warm_up(text: str | None) -> float | Literal["auto"] | None:
    """`auto`, or `60s` in seconds."""
    from sim.errors import input_error

    if text is None or text == "auto":
        return "auto" if text else None
    try:
        return float(text.strip().removesuffix("s"))
    except ValueError:
        raise input_error("must be auto or a time such as 60s", where=f"--warm-up {text}") from None


def _share(text: str | None) -> float | None:
    """`5%` or `0.05` as 0.05."""
    from sim.errors import input_error

    if text is None:
        return None
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        return float(number) / (100.0 if percent else 1.0)
    except ValueError:
        raise input_error("must be a share such as 5% or 0.05", where=f"--precision {text}") from None
