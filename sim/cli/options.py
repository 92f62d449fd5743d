"""Options that several commands have: each declared once, and its value read alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from sim.jobs.options import RunOptions

ScenarioName = Annotated[str, typer.Argument(help="Name of a shipped scenario, or path of a .yaml file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a field, such as workload.rate_per_s=12."),
]
Grids = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="PATH=VALUES",
        help="Vary a field: a..b doublings, a..b:step steps, or a,b,c; several grids are combined.",
    ),
]
MoreGrids = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATH=VALUES]...", help="Further grids, as if each followed a --grid."),
]
Slo = Annotated[str | None, typer.Option(help="Latency targets, such as ttft_p99=1s,tpot_p99=40ms.")]
Prices = Annotated[
    str | None,
    typer.Option(help="Money for a GPU hour: h100-sxm=4.00,…, a .toml or .yaml file, or example."),
]
Seeds = Annotated[str | None, typer.Option(help="The seeds of the replications, such as 1,2,3 or 1..10:1.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", "-j", help="Runs at once; default: the cores. 1 stays in this process."),
]
Backend = Annotated[str, typer.Option(help="loky (this machine), dask or ray (a cluster).")]
Address = Annotated[str | None, typer.Option(help="Scheduler of the cluster, such as tcp://10.0.0.1:8786.")]
AllowPlugins = Annotated[
    bool, typer.Option("--allow-plugins", help="Let scenarios name policy classes of your own.")
]
NoFigures = Annotated[bool, typer.Option("--no-figures", help="Write tables and text only, no figures.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON in place of the screen.")]


def run_options(
    workers: int | None = None,
    backend: str = "loky",
    address: str | None = None,
    *,
    allow_plugins: bool = False,
) -> RunOptions:
    """How and where runs are made, from the options that say so; raises `InputError`."""
    from sim.jobs.options import RunOptions

    return RunOptions(workers=workers, backend=backend, address=address, allow_plugins=allow_plugins)


def given(**values: object) -> dict[str, Any]:
    """The values that somebody gave; for the others the function that gets them has its own defaults."""
    return {name: value for name, value in values.items() if value is not None}


def read_share(text: str | None, option: str) -> float | None:
    """`5%` or `0.05` as 0.05; raises `InputError`."""
    from sim.errors import input_error

    if text is None:
        return None
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        return float(number) / (100.0 if percent else 1.0)
    except ValueError:
        raise input_error("must be a share such as 5% or 0.05", where=f"{option} {text}") from None


def read_seeds(text: str | None) -> list[int] | None:
    """`1,2,3` or `1..10:1` as whole numbers; raises `InputError`."""
    from sim.errors import input_error
    from sim.scenario import parse_grid

    if text is None:
        return None
    where = f"--seeds {text}"
    values = parse_grid(text, where=where)
    found = [value for value in values if type(value) is int]
    if len(found) < len(values):
        raise input_error("must be whole numbers", where=where)
    return found


def read_warm_up(text: str | None) -> float | Literal["auto"] | None:
    """`auto`, or `60s` in seconds; raises `InputError`."""
    from sim.errors import input_error

    if text is None or text == "auto":
        return "auto" if text else None
    try:
        return float(text.strip().removesuffix("s"))
    except ValueError:
        raise input_error("must be auto or a time such as 60s", where=f"--warm-up {text}") from None
