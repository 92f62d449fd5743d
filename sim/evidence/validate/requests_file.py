"""The per-request files that stand beside a run table: exact arrivals and lengths, and sometimes latencies.

A run names its file and the conditions that select its rows. What can be found is read; what a column is
called differs from tool to tool, so each quantity has a list of names and the first that exists counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from sim.results.metrics import tpot_s
from sim.values import Floats, Ints

__all__ = ["RequestRows", "parse_filter", "read_requests", "statistics"]

ARRIVAL_COLUMNS = ("arrival_s", "queued_s")
PROMPT_COLUMNS = ("in_tok_server", "in_tok", "prompt_tokens")
OUTPUT_COLUMNS = ("out_tok_forced", "out_tok", "output_tokens")


@dataclass(frozen=True, eq=False)
class RequestRows:
    """The selected rows sorted by arrival; None where the file lacks the quantity. Latencies in seconds."""

    count: int
    arrival_s: Floats | None
    prompt_tokens: Ints | None
    output_tokens: Ints | None
    ttft_s: Floats | None
    e2e_s: Floats | None

    def statistics(self) -> dict[str, float]:
        """TTFT, TPOT and E2E as a run table has them (ms), as far as they follow from the rows."""
        metrics = {"ttft": self.ttft_s, "e2e": self.e2e_s, "tpot": self.tpot_s}
        known = [statistics(name, seconds) for name, seconds in metrics.items() if seconds is not None]
        return {column: value for columns in known for column, value in columns.items()}

    @property
    def tpot_s(self) -> Floats | None:
        """Time per output token after the first, NaN with fewer than two; None where it does not follow."""
        if self.ttft_s is None or self.e2e_s is None or self.output_tokens is None:
            return None
        return tpot_s(self.e2e_s - self.ttft_s, self.output_tokens)


def statistics(metric: str, seconds: Floats) -> dict[str, float]:
    """Mean and percentiles under the run table's column names, in ms; NaN are left out."""
    seconds = seconds[np.isfinite(seconds)]
    if not len(seconds):
        return {}
    found = {f"{metric}_mean_ms": float(seconds.mean()) * 1e3}
    return found | {f"{metric}_p{p}_ms": float(np.percentile(seconds, p)) * 1e3 for p in (50, 90, 95, 99)}


def parse_filter(text: str) -> tuple[tuple[str, str | tuple[int, int]], ...]:
    """The conditions of a `requests_filter`: `column=value`, `column=LO..HI` (both ends in)."""
    conditions: list[tuple[str, str | tuple[int, int]]] = []
    for part in text.split(";"):
        column, equals, value = part.strip().partition("=")
        if not equals or not column or not value:
            raise ValueError(f"{part.strip()!r} is not column=value or column=LO..HI")
        low, dots, high = value.partition("..")
        if dots and low.isdigit() and high.isdigit():
            conditions.append((column, (int(low), int(high))))
        else:
            conditions.append((column, value))
    return tuple(conditions)


def read_requests(path: Path, conditions: str | None) -> RequestRows:
    """The rows of `path` (.csv or .csv.gz) that meet the conditions of a `requests_filter`.

    Arrivals are counted from the first selected one. ValueError says what the file lacks; OSError if it
    cannot be opened.
    """
    table = _whole_file(str(path))
    keep = np.ones(len(table), dtype=bool)
    for column, wanted in parse_filter(conditions) if conditions else ():
        if column not in table.columns:
            raise ValueError(f"{path.name} has no column {column!r} to select by")
        cells = table[column]
        if isinstance(wanted, tuple):
            keep &= pd.to_numeric(cells, errors="coerce").between(*wanted).to_numpy()
        else:
            keep &= (cells.astype(str) == wanted).to_numpy()
    rows = table[keep]
    if rows.empty:
        raise ValueError(f"{path.name} has no row with {conditions}")
    arrival = _first_of(rows, ARRIVAL_COLUMNS)
    if arrival is not None:
        order = np.argsort(arrival, kind="stable")
        rows, arrival = rows.iloc[order], arrival[order] - arrival.min()
    return RequestRows(
        count=len(rows),
        arrival_s=arrival,
        prompt_tokens=_tokens(rows, PROMPT_COLUMNS),
        output_tokens=_tokens(rows, OUTPUT_COLUMNS),
        ttft_s=_latency(rows, "ttft_ms", "first_token_s"),
        e2e_s=_latency(rows, "e2e_ms", "last_token_s"),
    )


@lru_cache(maxsize=4)
def _whole_file(path: str) -> pd.DataFrame:
    return pd.read_csv(path)


def _first_of(rows: pd.DataFrame, names: tuple[str, ...]) -> Floats | None:
    for name in names:
        if name in rows.columns:
            return rows[name].to_numpy(dtype=float)
    return None


def _tokens(rows: pd.DataFrame, names: tuple[str, ...]) -> Ints | None:
    found = _first_of(rows, names)
    if found is None:
        return None
    if not np.isfinite(found).all() or found.min() < 1:
        raise ValueError(f"a token count of {' or '.join(names)} is missing or below 1")
    return found.astype(np.int64)


def _latency(rows: pd.DataFrame, duration_ms: str, moment_s: str) -> Floats | None:
    """A latency from arrival, whether the file states it or the moment at which it ended."""
    if duration_ms in rows.columns:
        return rows[duration_ms].to_numpy(dtype=float) / 1e3
    arrival = _first_of(rows, ARRIVAL_COLUMNS)
    if moment_s in rows.columns and arrival is not None:
        return np.asarray(rows[moment_s].to_numpy(dtype=float) - arrival)
    return None
