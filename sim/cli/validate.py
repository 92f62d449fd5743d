"""`dryserve validate`: simulate measured runs and say how far off each metric was."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import AsJson, run_options

if TYPE_CHECKING:
    from sim.evidence.validate import Selection, Validation
    from sim.jobs.options import RunOptions


class Part(StrEnum):
    """Which part of the runs."""

    ALL = "all"
    FITTED = "fitted"
    HELD_OUT = "held-out"


def validate(
    file: Annotated[
        Path,
        typer.Argument(help="run table (.csv), or result of vllm bench serve or GuideLLM (.json)"),
    ],
    quality: Annotated[str, typer.Option(help="qualities of rows to run; empty = all")] = "A,B",
    source: Annotated[list[str] | None, typer.Option(help="only sources like this (`*` allowed)")] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="only GPUs like this")] = None,
    engine_gen: Annotated[list[str] | None, typer.Option(help="only this generation: V0, V1")] = None,
    run_id: Annotated[list[str] | None, typer.Option(help="only runs like this")] = None,
    part: Annotated[Part, typer.Option(help="rows that constants were fitted to, or held out")] = Part.ALL,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="column=value for every run, such as gpu=h100-sxm or max_num_seqs=256"),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first requests of each run")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="processes")] = 1,
    out: Annotated[Path, typer.Option(help="folder of tables, pages and figures")] = Path("runs/validate"),
    bands: Annotated[
        Path | None,
        typer.Option(help="also write the errors by kind of run here: the bands shown with predictions"),
    ] = None,
    figures: Annotated[bool, typer.Option(help="draw measured and simulated latencies")] = True,
    ablate: Annotated[
        bool,
        typer.Option(
            "--ablate",
            help="say what each term of the cost model buys: simulate all anew without each of them",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate measured runs of real engines and report the errors.

    Each row of the table becomes an engine and the requests that its client sent. Printed are, by source, GPU
    and metric: rows, median and p90 of the absolute error, bias and the worst rows; then what had to be
    assumed and what could not be simulated. A result file does not say what it ran on: give it with --set.
    With --ablate the table is another one: the errors with one term of the cost model off at a time, and
    those of the uncalibrated roofline. It takes ten times as long; --limit and --source keep it to minutes.
    """
    from sim.cli.tail import give_answer
    from sim.evidence.validate import Selection, read_measured_runs
    from sim.evidence.validate import validate as experiment
    from sim.evidence.validate.ablations import ablate as leave_out
    from sim.evidence.validate.answer import write_bands

    columns = {name: value for name, _, value in (each.partition("=") for each in assign or ())}
    selection = Selection(
        qualities=[each for each in quality.split(",") if each],
        sources=source or (),
        gpus=gpu or (),
        generations=engine_gen or (),
        run_ids=run_id or (),
        part=part.value,
    )
    if ablate:
        runs, _ = read_measured_runs(file, selection, columns)
        give_answer(
            lambda options: leave_out(runs, limit_requests=limit, options=options),
            run_options(jobs),
            out,
            figures=False,
            as_json=as_json,
        )
        return

    def replay(options: RunOptions) -> Validation:
        found = experiment(file, selection, columns, limit_requests=limit, options=options)
        if bands is not None:
            write_bands(bands, found.replayed, _command(file, quality, selection, columns, limit))
        return found

    give_answer(replay, run_options(jobs), out, figures=figures, as_json=as_json)


def _command(
    file: Path, quality: str, selection: Selection, columns: dict[str, str], limit: int | None
) -> str:
    """The command that makes the same errors again: what chose and changed the runs, not where they went."""
    words = ["dryserve", "validate", file.name, "--quality", quality or "''"]
    for option, values in (
        ("--source", selection.sources),
        ("--gpu", selection.gpus),
        ("--engine-gen", selection.generations),
        ("--run-id", selection.run_ids),
        ("--set", [f"{name}={value}" for name, value in columns.items()]),
    ):
        words += [word for value in values for word in (option, value)]
    if selection.part != "all":
        words += ["--part", selection.part]
    if limit is not None:
        words += ["--limit", str(limit)]
    return " ".join(words)
