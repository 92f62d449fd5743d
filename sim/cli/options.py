"""Options that several commands have: each declared once, and its value read alike."""

from __future__ import annotations

from typing import Annotated

import typer

Slo = Annotated[str | None, typer.Option(help="Latency targets, such as ttft_p99=1s,tpot_p99=40ms.")]
Workers = Annotated[
    int | None, typer.Option(help="Runs at once; default: the cores. 1 stays in this process.")
]
Backend = Annotated[str, typer.Option(help="loky (this machine), dask or ray (a cluster).")]
Address = Annotated[str | None, typer.Option(help="Scheduler of the cluster, such as tcp://10.0.0.1:8786.")]


def read_share(text: str, option: str) -> float:
    """`5%` or `0.05` as 0.05; raises `InputError`."""
    from sim.errors import input_error

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
