"""`dryserve calibrate`: fit a machine's constants to recordings of its engine, or a GPU's cost model to
measured operators, or check the fits that are there.
"""

from __future__ import annotations

from datetime import date
from itertools import chain, count
from pathlib import Path
from typing import Annotated

import typer

from sim.cli.options import AsJson, NoFigures, Overrides


def calibrate(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RECORDING...|TABLES]",
            help="Recordings of an engine (.jsonl.gz), or a folder of operator tables, or one such (CSV).",
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU, such as h100-sxm; of a recording, where it does not say.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of a recording, where it does not say, or says a path.")
    ] = None,
    weight_dtype: Annotated[
        str | None, typer.Option(help="Type of the weights, such as fp8, where the recording does not say.")
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Scenario that has what a recording does not say of its engine.")
    ] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: calibration-<gpu>.json.")] = None,
    folder: Annotated[
        Path, typer.Option(help="Of a recording: the report, tables and figure go below.")
    ] = Path("runs/calibrate"),
    no_figures: NoFigures = False,
    as_json: AsJson = False,
    source: Annotated[str, typer.Option(help="Where the rows come from; kept in the file.")] = "",
    check: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Fit nothing: judge calibrations by the tables of this folder."),
    ] = None,
    using: Annotated[
        Path | None,
        typer.Option(
            help="Of a recording: take the operators of this calibration file. With --check: judge it, and "
            "not those shipped."
        ),
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
    """Fit the constants of a machine to recordings, a GPU's cost model to kernel times, or check a fit.

    A recording is what `dryserve.recording` writes of a running engine. Measured step times are held against
    predicted ones by kind of step, and the constants that the recording shows (host time, speed of memory, of
    arithmetic, of all-reduces) are fitted to every other minute (of a short
    recording, every other sixth); the errors shown are of the stretches between.
    The file written is named by a scenario's `calibration`.

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
        elif not sources:
            told = "give recordings, a folder of operator tables, --check DIR or --serving RUNS"
            typer.echo(f"error: {told}", err=True)
            raise typer.Exit(2)
        elif _are_recordings(sources):
            named = scenario, overrides, model, gpu, weight_dtype, using
            _fit_machine(sources, named, out, folder, figures=not no_figures, as_json=as_json)
        elif len(sources) > 1:
            typer.echo("error: give one folder of operator tables, or recordings alone", err=True)
            raise typer.Exit(2)
        else:
            _fit(sources[0], gpu, out, source)
    except CostModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


_Named = tuple[str | None, list[str] | None, str | None, str | None, str | None, Path | None]
"""What is named beside a recording: scenario, overrides, model, GPU, weight dtype, calibration file."""


def _are_recordings(paths: list[Path]) -> bool:
    """Whether the files are recordings; one that cannot be read is a recording if it is called like one."""
    from sim.recordings import SUFFIX, is_recording

    return all(path.name.endswith(SUFFIX) or is_recording(path) for path in paths)


def _fit_machine(
    paths: list[Path], named: _Named, out: Path | None, folder: Path, *, figures: bool, as_json: bool
) -> None:
    from sim.cli.tail import finish, print_answer
    from sim.evidence.own_machine import fit_machine, recorded_engine
    from sim.evidence.own_machine.document import write_calibration
    from sim.recordings import load_recording
    from sim.report.folder import check_writable
    from sim.scenario import load_scenario

    scenario, overrides, model, gpu, weight_dtype, using = named
    recordings = [load_recording(path) for path in {path.resolve(): path for path in paths}.values()]
    engine = recorded_engine(
        recordings,
        scenario=load_scenario(scenario) if scenario is not None else None,
        model=model,
        gpu=gpu,
        weight_dtype=weight_dtype,
        calibration=str(using) if using is not None else None,
        overrides=overrides or (),
    )
    check_writable(folder)
    found = fit_machine(recordings, engine, date=date.today().isoformat())
    written = found.write(folder, draw=False)
    print_answer(found, as_json=as_json)
    if found.fitted:
        path = out or _free_name(f"calibration-{found.base.gpu}")
        write_calibration(found.calibration(), path)
        typer.echo(f"written: {path}; a scenario names it with calibration: {path}", err=True)
    typer.echo(f"results in {written}", err=True)
    finish(found, written, figures=figures)


def _free_name(stem: str) -> Path:
    """A file that is not there yet: another machine's constants are not written over."""
    names = (Path(f"{stem}{number}.json") for number in chain(("",), (f"-{n}" for n in count(2))))
    return next(path for path in names if not path.exists())


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
