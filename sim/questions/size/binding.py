"""What limits a fleet, in one sentence: the room that is full, or what its steps spend their time on."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan

from cost_models import StepCostModel
from cost_models.step_cost import StepShape
from sim.questions.size.candidates import Candidate
from sim.questions.size.promise import CLOSE, JOINT, Judgement

CLOSE_WORDS = f" ({CLOSE})"

_FULL = 0.95
_OFTEN = 0.02
_IDLE = 0.5
_WORK = {
    "compute": "compute (large batches of prompt tokens)",
    "weights": "memory bandwidth (reading the weights for every decode step)",
    "kv": "memory bandwidth (reading the KV cache)",
    "comm": "communication between the GPUs of a replica",
    "latency": "kernel launches and gaps between steps",
    "host": "the CPU that prepares the steps",
}


def binding(candidate: Candidate, held: Judgement, broken: Judgement | None, replicas: int) -> str:
    """The resource that binds, from runs that broke the promise if there are some, else from the others."""
    told = broken if broken is not None and broken.numbers else held
    numbers = told.numbers
    shares = bound_shares(told)
    if not shares:
        return "nothing was run"
    name = max(shares, key=lambda key: shares[key])
    kv, often = numbers["kv_usage_p95"], numbers["preemptions_per_request"]
    busy = numbers["busy_share"]
    state = f"KV cache {kv:.0%} full at p95" + (f", {often:.2g} preemptions a request" if often else "")
    time = f"{shares[name]:.0%} of step time is bound by {_WORK[name]}"
    limit = None if candidate.setup is None else candidate.setup.engine.max_num_seqs
    if kv >= _FULL or often >= _OFTEN:
        return f"KV cache binds: {state}; {time}"
    if limit is not None and _running(numbers, replicas) >= _FULL * limit:
        return f"max_num_seqs binds: about {_running(numbers, replicas):.0f} of {limit} run; {time}; {state}"
    if isfinite(busy) and busy < _IDLE:
        return f"no resource binds: the GPUs are busy {busy:.0%} of the time; {time}"
    return f"{_short(name)} binds: {time}, GPUs busy {busy:.0%}; {state}"


def _short(name: str) -> str:
    words = _WORK[name].partition(" (")[0].removeprefix("the ")
    return words[0].upper() + words[1:]


def _running(numbers: Mapping[str, float], replicas: int) -> float:
    """Requests that decode at once on a replica, by Little's law."""
    tpot_s, tokens_per_s = numbers["mean_tpot_ms"] / 1000.0, numbers["output_throughput"]
    return tokens_per_s * tpot_s / replicas if isfinite(tpot_s) else 0.0


def bound_shares(of: Judgement) -> dict[str, float]:
    """Share of step time by what bounds the step, the mean of the runs."""
    found: dict[str, float] = {}
    for summary in of.summaries:
        shares = summary["time_share_by_bound"]
        assert isinstance(shares, Mapping)
        for name, share in shares.items():
            found[name] = found.get(name, 0.0) + share / len(of.summaries)
    return found


def failing(of: Judgement, targets: Mapping[str, object]) -> str:
    """What breaks the promise: `TTFT`, `TTFT, TPOT`; empty if nothing does."""
    if of.is_met:
        return ""
    if of.error is not None:
        return of.error
    names = [column.removeprefix("attainment_") for column in of.failing if column != JOINT]
    if not names:
        lowest = sorted((of.shares[f"attainment_{key}"].estimate, key) for key in targets)
        names = [lowest[0][1]] if lowest and lowest[0][0] < 1.0 else ["the SLO"]
    close = CLOSE_WORDS if of.verdict == CLOSE else ""
    return ", ".join(name.partition("_")[0].upper() if "_" in name else name for name in names) + close


def comm_share(candidate: Candidate, of: Judgement, replicas: int) -> float:
    """Share of a typical decode step that the GPUs of a replica spend on exchanging activations.

    Typical: as many requests as decode at once by Little's law, half way through answers of mean length.
    """
    if candidate.setup is None or not of.summaries or not of.numbers:
        return nan
    batch = max(1, round(_running(of.numbers, replicas)))
    timer = candidate.setup.replica.timer
    assert isinstance(timer, StepCostModel)
    totals = [
        [float(str(summary[key])) for key in ("completed", "total_input_tokens", "total_output_tokens")]
        for summary in of.summaries
    ]
    done, prompt, output = (sum(column) for column in zip(*totals, strict=True))
    context = round((prompt + output / 2.0) / max(1.0, done))
    windows = tuple(batch * min(context, window) for window in candidate.setup.replica.windows)
    shape = StepShape(batch, batch, batch * context, context, windows, num_sampled=batch, num_requests=batch)
    terms = timer.terms(shape)
    return terms["comm"] / sum(seconds for name, seconds in terms.items() if name != "host")
