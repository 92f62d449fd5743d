"""From a measured run to the requests that its client sent: when, how long, and which prompts repeat.

Warm-up requests come before the measured ones: each distinct prompt once, one output token, far enough apart
that each has ended before the next comes. What they leave behind is a warm prefix cache, which is all that a
warm-up leaves.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass

import numpy as np

from sim.evidence.validate.requests_file import RequestRows, read_requests
from sim.evidence.validate.run_table import MeasuredLengths, MeasuredRun
from sim.scenario.distributions import Fixed, Marginal, Quantiles, Uniform
from sim.scenario.quantile_grids import grid, grid_names
from sim.values import Floats, Ints
from sim.workload import RequestTable, Workload
from sim.workload.prompts import SessionPrompts

__all__ = ["CannotRunError", "SentRequests", "sent_requests"]

#: How far the lengths of answers that end by themselves are spread around a known mean in a closed loop.
SPREAD = 0.2
#: Slower than any engine computes a prompt: a warm-up request has ended before the next one comes.
_WARMUP_TOKENS_PER_S = 1_000.0


class CannotRunError(ValueError):
    """A measured run that lacks what it takes to simulate it; the message is the reason."""


@dataclass(frozen=True)
class SentRequests:
    """The requests of a run, warm-up first, by arrival (s).

    Requests with one number in `prompt` have the same prompt, and those with one number in `prefix` share its
    first tokens. `rows` are those that were measured one by one; `assumptions` says what the run left open.
    """

    run: MeasuredRun
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    prompt: Ints
    num_warmup: int
    rows: RequestRows | None
    assumptions: tuple[str, ...]

    @property
    def prefix(self) -> Ints:
        """The number of the shared prefix, by request."""
        return self.prompt % self.run.prefix_groups

    @property
    def num_measured(self) -> int:
        """Requests after the warm-up."""
        return len(self.arrival_s) - self.num_warmup

    @property
    def warmup_s(self) -> float:
        """When the first request after the warm-up arrives."""
        return float(self.arrival_s[self.num_warmup]) if self.num_warmup else 0.0

    @property
    def offer_s(self) -> float:
        """From the first request after the warm-up to the last one, s."""
        return float(self.arrival_s[-1] - self.arrival_s[self.num_warmup])

    @property
    def condition(self) -> str:
        """Equal for runs that offered the very same requests to the same engine: repeats of one condition."""
        run = self.run
        if run.load != "trace":
            return run.run_id
        digest = hashlib.sha256(f"{run.source} {run.gpu} {run.model} {run.tp} {run.pp}".encode())
        for column in (self.arrival_s.round(3), self.prompt_tokens, self.output_tokens):
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()[:12]

    def workload(self, max_model_len: int) -> Workload:
        """The requests as the simulator takes them; output lengths are forced, as measured or stated.

        Requests longer than `max_model_len` are refused on arrival, as a server does.
        """
        run, prefix = self.run, self.prefix
        measured_s = self.arrival_s[self.num_warmup :]
        closed = run.max_concurrency is not None and bool((measured_s == measured_s[0]).all())
        return Workload(
            table=RequestTable.of(
                self.arrival_s,
                self.prompt_tokens,
                self.output_tokens,
                rejected=self.prompt_tokens + self.output_tokens > max_model_len,
                prompts=SessionPrompts(
                    text=self.prompt,
                    groups=int(prefix.max(initial=0)) + 1,
                    group=prefix.astype(np.int32),
                    shared_tokens=np.minimum(run.shared_prefix_tokens, self.prompt_tokens),
                ),
            ),
            loop="closed" if closed else "open",
            max_concurrency=run.max_concurrency,
            ignore_eos=True,
        )


def sent_requests(run: MeasuredRun, limit_requests: int | None = None) -> SentRequests:
    """The requests of a measured run, the measured part cut to its first ones if there is a limit.

    What the row draws at random is drawn from the run's own name, so that it is the same in whatever company
    the run is simulated. CannotRunError says what is missing.
    """
    assumptions: list[str] = []
    rows = run.rows or _rows(run)
    rng = np.random.default_rng(zlib.crc32(run.run_id.encode()))
    count = _count(run, rows, assumptions)
    prompt_tokens = _lengths("prompt", run.prompt, rows.prompt_tokens if rows else None, count, rng)
    output_tokens = _lengths("output", run.output, rows.output_tokens if rows else None, count, rng)
    if run.load == "closed" and run.output is not None and run.output.only_mean and not run.ignore_eos:
        # Answers that end by themselves differ in length; equal ones would march in step for ever.
        spread = rng.uniform(1.0 - SPREAD, 1.0 + SPREAD, count)
        output_tokens = np.maximum(1, np.rint(output_tokens * spread)).astype(np.int64)
        assumptions.append(f"output lengths uniform within {SPREAD:.0%} of their mean")
    arrival_s = _arrivals(run, rows, count, rng)
    count = count if limit_requests is None else min(count, limit_requests)

    distinct = min(run.distinct_prompts or count, count)
    prompt = np.arange(count, dtype=np.int64) % distinct
    # A prompt that comes again is the same prompt: it has the length that it had the first time.
    prompt_tokens = prompt_tokens[prompt]
    num_warmup = min(run.warmup_requests, distinct)
    gaps_s = 1.0 + prompt_tokens[:num_warmup] / _WARMUP_TOKENS_PER_S
    warm_s = np.concatenate([[0.0], np.cumsum(gaps_s)])
    return SentRequests(
        run=run,
        arrival_s=np.concatenate([warm_s[:num_warmup], warm_s[-1] + arrival_s[:count]]),
        prompt_tokens=np.concatenate([prompt_tokens[:num_warmup], prompt_tokens]),
        output_tokens=np.concatenate([np.ones(num_warmup, dtype=np.int64), output_tokens[:count]]),
        prompt=np.concatenate([prompt[:num_warmup], prompt]),
        num_warmup=num_warmup,
        rows=rows,
        assumptions=tuple(assumptions),
    )


def _rows(run: MeasuredRun) -> RequestRows | None:
    """The requests in the file beside the run table."""
    needs = run.load == "trace" or any(known and known.from_file for known in (run.prompt, run.output))
    if run.requests_file is None:
        if needs:
            raise CannotRunError("load or lengths come from a file, and requests_file is blank")
        return None
    path = run.file.parent / run.requests_file
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
    from_file = any(known and known.from_file for known in (run.prompt, run.output))
    if rows is not None and from_file and rows.count < count:
        raise CannotRunError(f"num_requests {count}, but its file selects only {rows.count} rows")
    return count


def _lengths(
    side: str, known: MeasuredLengths | None, listed: Ints | None, count: int, rng: np.random.Generator
) -> Ints:
    """The prompt or output lengths (`side`) of so many requests."""
    if known is None:
        raise CannotRunError(f"{side} lengths are unknown")
    if known.from_file:
        if listed is None:
            raise CannotRunError(f"its requests file has no column of {side} lengths")
        return listed[:count]
    if len(known.parts) == 1:
        return _draw(known.parts[0], side, count, rng)
    weights = np.asarray(known.weights) / sum(known.weights)
    part = rng.choice(len(known.parts), size=count, p=weights)
    drawn = np.stack([_draw(each, side, count, rng) for each in known.parts])
    return np.asarray(drawn[part, np.arange(count)], dtype=np.int64)


def _draw(lengths: Marginal, side: str, count: int, rng: np.random.Generator) -> Ints:
    match lengths:
        case Fixed():
            return np.full(count, lengths.tokens, dtype=np.int64)
        case Uniform():
            return rng.integers(*lengths.tokens, size=count, endpoint=True)
        case Quantiles() if lengths.grid in grid_names():
            measured = grid(lengths.grid)
            tokens = measured.prompt if side == "prompt" else measured.output
            drawn = np.interp(rng.uniform(0.0, 100.0, size=count), 100.0 * measured.probabilities, tokens)
            return np.maximum(1, np.rint(drawn)).astype(np.int64)
        case Quantiles():
            raise CannotRunError(f"{side} lengths: no length quantiles named {lengths.grid!r}")
    raise TypeError(f"a run table has no lengths of kind {lengths.kind}")


def _arrivals(run: MeasuredRun, rows: RequestRows | None, count: int, rng: np.random.Generator) -> Floats:
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
