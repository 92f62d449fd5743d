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
    serving: Annotated[
        Path | None,
        typer.Option(
            metavar="RUNS", help="Fit what kernels do inside a running engine to this table of measured runs."
        ),
    ] = None,
    free: Annotated[
        str, typer.Option(help="With --serving: constants to fit, by commas; the others stay as shipped.")
    ] = "weight_stream_gain",
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --serving: only the first requests of each run.")
    ] = 300,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="With --serving: processes.")] = 1,
) -> None:
    """Fit the cost model of a GPU to measured kernel times, or check a fit.

    A folder may hold tables of matrix products, attention, mixture-of-experts blocks, collectives and small
    kernels; each is known by its columns. One shape in five is held out of every fit; the errors shown are
    of those. `dryserve calibrate --check DIR` judges the calibrations of every GPU that DIR has rows of.
    `dryserve calibrate --serving RUNS.csv --gpu GPU` fits constants of `serving.toml` by simulating the runs
    of that GPU again and again: some minutes to an hour.
    """
    from cost_models import CostModelError

    try:
        if serving is not None:
            _fit_serving(serving, gpu, free, limit, jobs, out)
        elif check is not None:
            _check(check, using, held_out)
        elif tables is None:
            typer.echo("error: give a folder of operator tables, --check DIR or --serving RUNS", err=True)
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


def _fit_serving(
    runs: Path, gpu_name: str | None, free: str, limit: int | None, jobs: int, out: Path | None
) -> None:
    from sim.cli.options import run_options
    from sim.evidence.validate import Selection, read_measured_runs
    from sim.evidence.validate.serving_fit import fit_serving
    from sim.report import text

    if gpu_name is None:
        typer.echo("error: --serving fits one GPU part: name it with --gpu", err=True)
        raise typer.Exit(2)

    def tell(trial: int, error: float) -> None:
        typer.echo(f"trial {trial}: mean error {100 * error:.2f} %", err=True)

    measured, _ = read_measured_runs(runs, Selection(generations=["V1"]))
    names = [name.strip() for name in free.split(",") if name.strip()]
    found = fit_serving(
        measured, gpu_name, names, limit_requests=limit, options=run_options(jobs), on_trial=tell
    )
    typer.echo(text.render(found.document()))
    if out is not None:
        out.write_text("\n".join(found.toml()) + "\n", encoding="utf-8")
        typer.echo(f"written: {out}", err=True)


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
