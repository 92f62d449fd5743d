"""`dryserve calibrate`: fit a GPU's cost model to measured operators, or check the fits that are there."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    tables: Annotated[
        Path | None, typer.Argument(help="Folder of operator tables (CSV), or one of them, to fit to.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU whose rows to fit, such as h100-sxm.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: calibration-<gpu>.json.")] = None,
    source: Annotated[str, typer.Option(help="Where the rows come from; kept in the file.")] = "",
    check: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Fit nothing: judge calibrations by the tables of this folder."),
    ] = None,
    using: Annotated[
        Path | None, typer.Option(help="With --check: judge this calibration file in place of shipped ones.")
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="With --check: only shapes that no fit of ours has seen.")
    ] = False,
) -> None:
    """Fit the cost model of a GPU to measured kernel times, or check a fit.

    A folder may hold tables of matrix products, attention, mixture-of-experts blocks, collectives and small
    kernels; each is known by its columns. One shape in five is held out of every fit; the errors shown are
    of those. `dryserve calibrate --check DIR` judges the calibrations of every GPU that DIR has rows of.
    """
    from cost_models import CostModelError

    try:
        if check is not None:
            _check(check, using, held_out)
        elif tables is None:
            typer.echo("error: give a folder of operator tables, or --check DIR", err=True)
            raise typer.Exit(2)
        else:
            _fit(tables, gpu, out, source)
    except CostModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _check(folder: Path, using: Path | None, held_out: bool) -> None:
    from cost_models import load_calibration
    from cost_models.fit import check_calibration

    fitted = load_calibration(using) if using is not None else None
    typer.echo(check_calibration(folder, held_out_only=held_out, fitted=fitted).render())


def _fit(tables: Path, gpu_name: str | None, out: Path | None, source: str) -> None:
    from cost_models import gpu
    from cost_models.fit import calibrate as fit
    from cost_models.fit import read_tables, save_calibration

    names = sorted({table.gpu for table in read_tables(tables, gpu_name)})
    if gpu_name is None and len(names) > 1:
        typer.echo(f"error: {tables} has rows of {', '.join(names)}; choose one with --gpu", err=True)
        raise typer.Exit(2)
    part = gpu(gpu_name or names[0])
    typer.echo(f"fitting {part.name}; a full set of tables takes some minutes", err=True)
    report = fit(tables, part.name, date=date.today().isoformat(), description=source or str(tables))
    path = save_calibration(report, out or Path(f"calibration-{part.name}.json"))
    typer.echo(report.render())
    typer.echo(f"written: {path}", err=True)
