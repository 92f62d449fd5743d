"""Reading result files of other tools without trusting them: what is absent or of another kind is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sim.evidence.validate.requests_file import RequestRows

Json = Mapping[str, object]


def latency_statistics(rows: RequestRows) -> dict[str, float]:
    """TTFT, TPOT and E2E statistics of listed requests, under the run table's names (ms)."""
    found: dict[str, float] = {}
    if rows.ttft_s is not None:
        found |= statistics("ttft", rows.ttft_s)
    if rows.e2e_s is not None:
        found |= statistics("e2e", rows.e2e_s)
    if rows.ttft_s is not None and rows.e2e_s is not None and rows.output_tokens is not None:
        several = rows.output_tokens > 1
        found |= statistics("tpot", (rows.e2e_s - rows.ttft_s)[several] / (rows.output_tokens[several] - 1))
    return found


def statistics(metric: str, seconds: np.ndarray) -> dict[str, float]:
    """Mean and percentiles under the run table's names, in ms; NaN are left out."""
    seconds = seconds[np.isfinite(seconds)]
    if not len(seconds):
        return {}
    found = {f"{metric}_mean_ms": float(seconds.mean()) * 1e3}
    return found | {f"{metric}_p{p}_ms": float(np.percentile(seconds, p)) * 1e3 for p in (50, 90, 95, 99)}


def number(data: Json, key: str) -> float | None:
    """The number under `key`."""
    value = data.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def text(data: Json, key: str) -> str | None:
    """The text under `key`, unless empty."""
    value = data.get(key)
    return value if isinstance(value, str) and value else None


def table(data: Json, key: str) -> Json:
    """The table under `key`, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def tables(data: Json, key: str) -> Sequence[Json]:
    """The list under `key`, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, list) else []


def array(data: Json, key: str) -> np.ndarray | None:
    """The list of numbers under `key`, null as NaN; None if absent or empty."""
    value = data.get(key)
    if not isinstance(value, list) or not value:
        return None
    return np.array([np.nan if each is None else float(each) for each in value])


def find_table(data: Json, key: str) -> Json | None:
    """The first table under `key`, however deep."""
    for name, value in data.items():
        if isinstance(value, dict):
            found = value if name == key else find_table(value, key)
            if found is not None:
                return found
    return None


def find_text(data: Json, key: str) -> str | None:
    """The first text under `key`, however deep, but not among the requests."""
    if text(data, key):
        return text(data, key)
    for name, value in data.items():
        if isinstance(value, dict) and name != "requests" and (found := find_text(value, key)):
            return found
    return None
