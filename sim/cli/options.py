"""Values of options that several commands read alike."""

from __future__ import annotations


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
