"""From a measured run to the requests that its client sent: when, how long, which prompts repeat.

Warm-up requests become rows of their own before the measured ones: each distinct prompt once, one output
token, far enough apart that each has ended before the next comes. What they leave behind is a warm prefix
cache, which is all that a warm-up leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sim.evidence.validate.lengths import FromFile, LengthSpec, Mean
from sim.evidence.validate.requests_file import RequestRows, read_requests
from sim.evidence.validate.run_table import MeasuredRun

__all__ = ["CannotRunError", "Traffic", "build_traffic"]

#: "prompt" or "output" and a name to (percentiles 0..100, tokens at each); KeyError for an unknown name.
SidedQuantileTable = Callable[[str, str], tuple[Sequence[float], Sequence[float]]]


class CannotRunError(ValueError):
    """A measured run that lacks what it takes to simulate it; the message is the reason."""


@dataclass(frozen=True)
class Traffic:
    """The requests of a run, warm-up first, sorted by arrival.

    `prompt_index[i]` names the prompt: equal numbers are equal prompts. `group_index[i]` names the shared
    prefix, of `shared_prefix_tokens` tokens. At most `max_concurrency` are in flight (None: no cap): a
    request above it waits in the client, and that wait is in no latency.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    prompt_index: np.ndarray
    group_index: np.ndarray
    shared_prefix_tokens: int
    max_concurrency: int | None
    num_warmup: int
    assumptions: tuple[str, ...]
    measured_rows: RequestRows | None = None

    @property
    def num_measured(self) -> int:
        """Requests after the warm-up."""
        return len(self.arrival_s) - self.num_warmup


def build_traffic(
    run: MeasuredRun,
    folder: Path,
    rng: np.random.Generator,
    table: SidedQuantileTable,
    limit: int | None = None,
    rows: RequestRows | None = None,
) -> Traffic:
    """The requests of `run`, with its requests file from `folder`. CannotRunError says what is missing.

    `limit` cuts the measured part to its first requests, for a quick look. `rows` are the requests of a run
    that lists them itself, in place of a file.
    """
    assumptions: list[str] = []
    rows = rows or _rows(run, folder)
    count = _count(run, rows, assumptions)
    prompt_tokens = _lengths("prompt", run.prompt, rows.prompt_tokens if rows else None, count, rng, table)
    output_tokens = _lengths("output", run.output, rows.output_tokens if rows else None, count, rng, table)
    if run.load == "closed" and isinstance(run.output, Mean) and not run.ignore_eos:
        # Answers that end by themselves differ in length; equal ones would march in step for ever.
        spread = rng.uniform(1.0 - SPREAD, 1.0 + SPREAD, count)
        output_tokens = np.maximum(1, np.rint(output_tokens * spread)).astype(np.int64)
        assumptions.append(f"output lengths uniform within {SPREAD:.0%} of their mean")
    arrival_s = _arrivals(run, rows, count, rng)
    if limit is not None:
        count = min(count, limit)
        arrival_s, prompt_tokens, output_tokens = (
            arrival_s[:count],
            prompt_tokens[:count],
            output_tokens[:count],
        )

    distinct = min(run.distinct_prompts or count, count)
    prompt_index = np.arange(count, dtype=np.int64) % distinct
    # A prompt that comes again is the same prompt: it has the length that it had the first time.
    prompt_tokens = prompt_tokens[prompt_index]
    group_index = prompt_index % run.prefix_groups

    num_warmup = min(run.warmup_requests, distinct)
    gaps_s = 1.0 + prompt_tokens[:num_warmup] / _WARMUP_TOKENS_PER_S
    warm_arrival_s = np.concatenate([[0.0], np.cumsum(gaps_s)])
    return Traffic(
        arrival_s=np.concatenate([warm_arrival_s[:num_warmup], warm_arrival_s[-1] + arrival_s]),
        prompt_tokens=np.concatenate([prompt_tokens[:num_warmup], prompt_tokens]),
        output_tokens=np.concatenate([np.ones(num_warmup, dtype=np.int64), output_tokens]),
        prompt_index=np.concatenate([prompt_index[:num_warmup], prompt_index]),
        group_index=np.concatenate([group_index[:num_warmup], group_index]),
        shared_prefix_tokens=run.shared_prefix_tokens,
        max_concurrency=run.max_concurrency,
        num_warmup=num_warmup,
        assumptions=tuple(assumptions),
        measured_rows=rows,
    )


#: How far the lengths of answers that end by themselves are spread around a known mean in a closed loop.
SPREAD = 0.2
#: Slower than any engine computes a prompt: a warm-up request has ended before the next one comes.
_WARMUP_TOKENS_PER_S = 1_000.0


def _rows(run: MeasuredRun, folder: Path) -> RequestRows | None:
    needs = run.load == "trace" or isinstance(run.prompt, FromFile) or isinstance(run.output, FromFile)
    if run.requests_file is None:
        if needs:
            raise CannotRunError("load or lengths come from a file, and requests_file is blank")
        return None
    path = folder / run.requests_file
    if not path.is_file():
        if needs:
            raise CannotRunError(f"requests_file {run.requests_file} does not stand beside the run table")
        return None
    try:
        return read_requests(path, run.requests_filter)
    except ValueError as error:
        raise CannotRunError(str(error)) from None


def _count(run: MeasuredRun, rows: RequestRows | None, assumptions: list[str]) -> int:
    if run.load == "trace" and rows is not None:
        if run.num_requests is not None and run.num_requests != rows.count:
            assumptions.append(f"num_requests {rows.count} as in its file, not {run.num_requests}")
        return rows.count
    if run.num_requests is not None:
        count = run.num_requests
    elif run.duration_s is not None and run.rate_per_s is not None:
        count = max(1, round(run.duration_s * run.rate_per_s))
        assumptions.append(f"num_requests {count} = rate × duration")
    elif rows is not None:
        count = rows.count
    elif run.load == "closed" and run.max_concurrency is not None:
        count = 10 * run.max_concurrency
        assumptions.append(f"num_requests {count} = 10 × max_concurrency")
    else:
        raise CannotRunError("num_requests is unknown, and so is duration_s or rate_per_s")
    if rows is not None and FromFile() in (run.prompt, run.output) and rows.count < count:
        raise CannotRunError(f"num_requests {count}, but its file selects only {rows.count} rows")
    return count


def _lengths(
    name: str,
    spec: LengthSpec | None,
    from_file: np.ndarray | None,
    count: int,
    rng: np.random.Generator,
    table: SidedQuantileTable,
) -> np.ndarray:
    if spec is None:
        raise CannotRunError(f"{name} lengths are unknown")
    if isinstance(spec, FromFile):
        if from_file is None:
            raise CannotRunError(f"its requests file has no column of {name} lengths")
        return from_file[:count]
    try:
        return spec.draw(rng, count, partial(table, name))
    except KeyError as error:
        raise CannotRunError(f"{name} lengths: no length quantiles named {error.args[0]!r}") from None


def _arrivals(run: MeasuredRun, rows: RequestRows | None, count: int, rng: np.random.Generator) -> np.ndarray:
    match run.load:
        case "trace":
            if rows is None or rows.arrival_s is None:
                raise CannotRunError("load is a trace, and its requests file has no column of arrivals")
            return rows.arrival_s[:count]
        case "burst":
            return np.zeros(count)
        case "closed":
            if run.max_concurrency is None:
                raise CannotRunError("load is closed, and max_concurrency is unknown")
            return np.zeros(count)
        case "poisson" | "poisson_exact":
            if run.rate_per_s is None:
                raise CannotRunError(f"load is {run.load}, and rate_per_s is unknown")
            arrival_s = np.cumsum(rng.exponential(1.0 / run.rate_per_s, size=count))
            if run.load == "poisson_exact":
                arrival_s *= count / run.rate_per_s / arrival_s[-1]
            return arrival_s
    raise CannotRunError("load is unknown")
