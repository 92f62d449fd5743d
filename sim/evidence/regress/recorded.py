"""The requests of a run as JSON and back: what they ask for, when they come, and which tokens they share.

A column in which all rows are equal is kept as that one value. Times are kept to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np

from sim.workload.prompts import Ranges
from sim.workload.table import Client, RequestTable, Workload

COLUMNS: Mapping[str, str] = {
    "arrival_s": "float64",
    "prompt_tokens": "int32",
    "output_tokens": "int32",
    "class_index": "int16",
    "session": "int64",
    "priority": "int32",
    "rejected": "bool",
    "expected_output_tokens": "float64",
    "turn_after": "int64",
    "think_s": "float64",
    "first_token_timeout_s": "float64",
    "timeout_s": "float64",
    "adapter": "int32",
    "grammar": "int64",
}
"""The columns of a `RequestTable` and their types; some are None in some workloads."""

_DIGITS = 9
_SAME_RELATIVE, _SAME_S = 1e-9, 2e-9


class Requests(TypedDict):
    """The requests of a workload as JSON has them; `columns` by name, one value where all rows are equal."""

    loop: Literal["open", "closed", "mixed"]
    max_concurrency: int | None
    ignore_eos: bool
    num_requests: int
    class_names: list[str]
    adapter_names: list[str]
    columns: dict[str, Any]
    prompts: list[list[int]]
    output_start: list[int]
    clients: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RecordedPrompts:
    """Prompts as they were: each request's ranges, and where its answer's tokens begin."""

    all_ranges: Sequence[Ranges]
    starts: Sequence[int]

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """The prompt of request `index`."""
        return self.all_ranges[index]

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """The id of the first token that request `index` generates."""
        return self.starts[index]


def requests_as_json(workload: Workload) -> Requests:
    """The requests as plain data."""
    table = workload.table
    columns = {name: getattr(table, name) for name in COLUMNS}
    return {
        "loop": workload.loop,
        "max_concurrency": workload.max_concurrency,
        "ignore_eos": workload.ignore_eos,
        "num_requests": len(table),
        "class_names": list(table.class_names),
        "adapter_names": list(table.adapter_names),
        "columns": {name: _compact(column) for name, column in columns.items() if column is not None},
        "prompts": [
            [number for part in table.prompt_ranges(i) for number in part] for i in range(len(table))
        ],
        "output_start": [table.output_start(i) for i in range(len(table))],
        "clients": [
            {"rows": client.rows.tolist(), "max_concurrency": client.max_concurrency, "leaves": client.leaves}
            for client in workload.parts
        ],
    }


def workload_from_json(data: Requests) -> Workload:
    """The workload that `requests_as_json` was given.

    Raises KeyError, TypeError or ValueError for other data.
    """
    size = int(data["num_requests"])
    columns: dict[str, Any] = {
        name: _expanded(data["columns"].get(name), size, dtype) for name, dtype in COLUMNS.items()
    }
    prompts = [tuple(zip(row[::2], row[1::2], strict=True)) for row in data["prompts"]]
    table = RequestTable(
        class_names=tuple(data["class_names"]),
        adapter_names=tuple(data["adapter_names"]),
        prompts=RecordedPrompts(prompts, data["output_start"]),
        **columns,
    )
    parts = tuple(
        Client(np.array(client["rows"], dtype=np.int64), client["max_concurrency"], client["leaves"])
        for client in data["clients"]
    )
    return Workload(table, data["loop"], data["max_concurrency"], data["ignore_eos"], [], parts)


def moved(base: Requests, now: Requests) -> Iterator[str]:
    """In words, how the requests of two workloads differ; nothing if they are the same."""
    for name in ("loop", "max_concurrency", "ignore_eos", "class_names", "adapter_names", "clients"):
        if base[name] != now[name]:
            yield f"{name} {base[name]} → {now[name]}" if name != "clients" else "who sends what"
    sizes = base["num_requests"], now["num_requests"]
    if sizes[0] != sizes[1]:
        yield f"{sizes[0]:,} → {sizes[1]:,} requests"
    size = min(sizes)
    for name, dtype in COLUMNS.items():
        one, other = (
            _expanded(side["columns"].get(name), n, dtype) for side, n in zip((base, now), sizes, strict=True)
        )
        if one is None or other is None:
            if one is not other:
                yield f"{name} {'appeared' if one is None else 'is gone'}"
            continue
        differ = ~np.isclose(
            one[:size].astype(float), other[:size].astype(float), rtol=_SAME_RELATIVE, atol=_SAME_S
        )
        if count := int(differ.sum()):
            means = " → ".join(f"{float(np.mean(column)):.5g}" for column in (one, other))
            yield f"{name} of {count:,} of {size:,} requests (mean {means})"
    lengths_differ = any(
        base["columns"].get(name) != now["columns"].get(name) for name in ("prompt_tokens", "output_tokens")
    )
    if not lengths_differ and any(
        base[name][:size] != now[name][:size] for name in ("prompts", "output_start")
    ):
        yield "which prompts share tokens"


def _compact(column: np.ndarray[Any, Any]) -> Any:
    values = (column.round(_DIGITS) if column.dtype.kind == "f" else column).tolist()
    plain = [str(value) if isinstance(value, float) and not np.isfinite(value) else value for value in values]
    return plain[0] if plain and all(value == plain[0] for value in plain) else plain


def _expanded(values: Any, size: int, dtype: str) -> np.ndarray[Any, Any] | None:
    if values is None:
        return None
    column = np.array(values, dtype=dtype)
    return np.full(size, column) if column.ndim == 0 else column
