"""What came of a sizing: what candidates sustain, the fleets that were simulated, and what limits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import TypeVar

import pandas as pd

from cost_models import StepCostModel
from cost_models.step_cost import StepShape
from sim.questions.prices import Prices
from sim.questions.size.candidates import Candidate
from sim.questions.size.load import RunLength, unit
from sim.questions.size.promise import CLOSE, JOINT, MET, Judgement, Promise
from sim.questions.size.search import Capacity, Fleet
from sim.scenario import Scenario

Cells = dict[str, object]
T = TypeVar("T")

CLOSE_WORDS = f" ({CLOSE})"
ANSWER, NEAR_MISS = "answer", "near miss"
"""Roles of fleets: the smallest that keeps the promise, and one replica fewer."""

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


_NUMBERS = {
    "p99_ttft_s": ("p99_ttft_ms", 1e-3),
    "p99_tpot_ms": ("p99_tpot_ms", 1.0),
    "p99_e2e_s": ("p99_e2el_ms", 1e-3),
    "kv_usage_p95": ("kv_usage_p95", 1.0),
    "num_running_p50": ("num_running_p50", 1.0),
    "num_running_p95": ("num_running_p95", 1.0),
    "preemptions_per_request": ("preemptions_per_request", 1.0),
    "busy_share": ("busy_share", 1.0),
    "tokens_per_s_per_gpu": ("output_throughput_per_gpu", 1.0),
    "tokens_per_s_per_user": ("tokens_per_s_per_user", 1.0),
}


@dataclass(frozen=True, slots=True, repr=False)
class Results:
    """What came of a sizing.

    `found` has what each candidate that can run sustains, and `fleets` those simulated at `rate_per_s` (empty
    without a rate), both by the candidate's number. `capacity_table` and `fleet_table` say the same in rows.
    """

    base: Scenario
    promise: Promise
    candidates: tuple[Candidate, ...]
    found: Mapping[int, Capacity]
    fleets: Mapping[int, Fleet]
    rate_per_s: float | None
    num_gpus: int | None
    prices: Prices | None
    length: RunLength
    replications: int
    precision: float

    @property
    def capacity_table(self) -> pd.DataFrame:
        """A row for each candidate; see `capacity_rows`."""
        return capacity_rows(self.candidates, self.found, self.promise, self.prices)

    @property
    def fleet_table(self) -> pd.DataFrame:
        """A row for each fleet that was simulated; see `fleet_rows`."""
        return fleet_rows(self.candidates, self.fleets, self.promise, self.prices)

    @property
    def unpriced(self) -> str:
        """`no price for h100-sxm` where prices were given, but none for a candidate; else empty."""
        return "" if self.prices is None else self.prices.missing(c.gpu for c in self.candidates)

    @property
    def answers(self) -> dict[int, Fleet]:
        """Candidates with a fleet that keeps the promise, by number."""
        return {number: fleet for number, fleet in self.fleets.items() if fleet.replicas is not None}

    def by_label(self, of: Mapping[int, T]) -> list[tuple[int, T]]:
        """The items of a mapping from candidates' numbers, in the order of their labels."""
        return sorted(of.items(), key=lambda item: self._label(item[0]))

    @property
    def judgements(self) -> list[Judgement]:
        """All that was judged, candidate by candidate in the order of their labels."""
        ends = [each for _, c in self.by_label(self.found) for each in (c.kept, c.broken) if each is not None]
        return ends + [each for _, fleet in self.by_label(self.fleets) for each in fleet.tried.values()]

    @property
    def smallest(self) -> int | None:
        """The candidate with the fewest GPUs at the rate; of equals the cheaper, then the first by name."""
        return min(self.answers, key=lambda n: (self._gpus(n), self._cost(n), self._label(n)), default=None)

    @property
    def cheapest(self) -> int | None:
        """The candidate whose fleet costs least; None unless there are prices for two or more."""
        priced = [number for number in self.answers if self._cost(number) < float("inf")]
        if len(priced) < 2:
            return None
        return min(priced, key=lambda n: (self._cost(n), self._gpus(n), self._label(n)))

    @property
    def has_answer(self) -> bool:
        """Whether anything keeps the promise: some fleet at the rate, or some candidate at any rate."""
        if self.rate_per_s is not None:
            return bool(self.answers)
        return any(capacity.rate_per_s > 0.0 for capacity in self.found.values())

    def bound(self, number: int) -> str:
        """What limits a candidate's fleet, or its replica without a rate, and in which runs; a sentence."""
        candidate, capacity = self.candidates[number], self.found[number]
        fleet = self.answers.get(number)
        if fleet is not None and fleet.replicas is not None:
            less = fleet.tried.get(fleet.replicas - 1)
            broken = None if less is None or not less.numbers else less
            at = fleet.replicas if broken is None else fleet.replicas - 1
            runs = f"with {at} replica{'s' if at > 1 else ''}, {_kept_words(broken)}"
            return f"{binding(candidate, fleet.tried[fleet.replicas], broken)} ({runs})"
        judged = capacity.kept or capacity.broken
        assert judged is not None
        broken = capacity.broken if capacity.broken is not None and capacity.broken.numbers else None
        rate = capacity.rate_per_s if broken is None else capacity.above_per_s
        runs = f"at {rate:.3g} {unit(self.base)}, {_kept_words(broken)}"
        return f"{binding(candidate, judged, broken)} ({runs})"

    def _gpus(self, number: int) -> int:
        return (self.fleets[number].replicas or 0) * self.candidates[number].gpus

    def _cost(self, number: int) -> float:
        each = self.prices.per_gpu_hour if self.prices is not None else {}
        return self._gpus(number) * each.get(self.candidates[number].gpu, float("inf"))

    def _label(self, number: int) -> str:
        return self.candidates[number].label


def _kept_words(broken: Judgement | None) -> str:
    if broken is None:
        return "where the promise is kept"
    return CLOSE if broken.verdict == CLOSE else "where the promise breaks"


def capacity_rows(
    candidates: Sequence[Candidate], found: Mapping[int, Capacity], promise: Promise, prices: Prices | None
) -> pd.DataFrame:
    """One row a candidate, most requests for the money first (for each GPU, without prices).

    `rate_per_s` is the highest rate of `replicas` that kept the promise in every replication's interval,
    `above_per_s` the lowest that did not; numbers are means of the runs at the first.
    """
    rows: list[Cells] = []
    for number, candidate in enumerate(candidates):
        row: Cells = {
            "candidate": candidate.label,
            **candidate.setting,
            "gpus_per_replica": candidate.gpus,
        }
        capacity = found.get(number)
        row["kv_tokens_per_gpu"] = candidate.kv_tokens_per_gpu
        row["error"] = candidate.fault if capacity is None else capacity.error
        if capacity is not None and capacity.error is None:
            gpus = candidate.gpus * capacity.replicas
            row |= {"replicas": capacity.replicas, "gpus": gpus, "rate_per_s": capacity.rate_per_s}
            row |= {"above_per_s": capacity.above_per_s, "rate_per_s_per_gpu": capacity.rate_per_s / gpus}
            if capacity.broken is not None:
                row["breaks"] = failing(capacity.broken, promise.targets)
            if capacity.kept is not None:
                row |= _judged(capacity.kept, promise)
                row["comm_share"] = comm_share(candidate, capacity.kept)
                row |= _money(candidate, prices, gpus, capacity.rate_per_s, capacity.kept)
        rows.append(row)
    table = pd.DataFrame(rows)
    for column in ("rate_per_s", "rate_per_s_per_gpu", "per_million_output"):
        if column not in table:
            table[column] = nan
    best = ["per_million_output", "rate_per_s_per_gpu", "candidate"]
    return table.sort_values(best, ascending=[True, False, True], kind="stable", ignore_index=True)


def fleet_rows(
    candidates: Sequence[Candidate], found: Mapping[int, Fleet], promise: Promise, prices: Prices | None
) -> pd.DataFrame:
    """One row for each fleet that was simulated: those that keep the promise first, the fewest GPUs first.

    `role` is `answer` for the smallest that does of each candidate, `near miss` for one replica fewer.
    """
    rows: list[Cells] = []
    for number, fleet in found.items():
        candidate = candidates[number]
        for replicas, judged in fleet.tried.items():
            gpus = replicas * candidate.gpus
            role = {fleet.replicas: ANSWER, (fleet.replicas or 0) - 1: NEAR_MISS}.get(replicas, "")
            row: Cells = {
                "candidate": candidate.label,
                **candidate.setting,
                "replicas": replicas,
                "gpus": gpus,
            }
            row |= {"role": role, "verdict": judged.verdict, "fails": failing(judged, promise.targets)}
            row |= {"seeds": judged.seeds, **_judged(judged, promise)}
            row |= _money(candidate, prices, gpus, fleet.rate_per_s, judged)
            rows.append(row)
    table = pd.DataFrame(rows)
    if len(table):
        order = ["verdict", "gpus", "candidate", "replicas"]
        table = table.sort_values(order, key=_met_first, kind="stable", ignore_index=True)
    return table


def _met_first(column: pd.Series) -> pd.Series:
    return column.ne(MET) if column.name == "verdict" else column


def _judged(judged: Judgement, promise: Promise) -> Cells:
    row: Cells = {"attainment": judged.attainment.estimate}
    row |= {"attainment_low": judged.attainment.low, "attainment_high": judged.attainment.high}
    for key in promise.targets:
        share = judged.shares.get(f"attainment_{key}")
        row[f"attainment_{key}"] = nan if share is None else share.estimate
    for name, (column, factor) in _NUMBERS.items():
        row[name] = judged.numbers.get(column, nan) * factor
    return row


def _money(
    candidate: Candidate, prices: Prices | None, gpus: int, rate_per_s: float, judged: Judgement
) -> Cells:
    """What the GPUs cost in an hour, and a million output tokens at that rate."""
    if prices is None or candidate.gpu not in prices.per_gpu_hour:
        return {}
    cost_per_h = gpus * prices.per_gpu_hour[candidate.gpu]
    row: Cells = {"cost_per_h": cost_per_h}
    tokens = [(float(str(s["total_output_tokens"])), float(str(s["completed"]))) for s in judged.summaries]
    output, done = (sum(column) for column in zip(*tokens, strict=True)) if tokens else (0.0, 0.0)
    tokens_per_h = 3600.0 * rate_per_s * output / done if done else nan
    row["per_million_output"] = 1e6 * cost_per_h / tokens_per_h if isfinite(tokens_per_h) else nan
    return row


def binding(candidate: Candidate, held: Judgement, broken: Judgement | None) -> str:
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
    if limit is not None and numbers["num_running_p95"] >= limit:
        usual, most = numbers["num_running_p50"], numbers["num_running_p95"]
        return f"max_num_seqs binds: {usual:.0f} of {limit} run at p50, {most:.0f} at p95; {time}; {state}"
    if isfinite(busy) and busy < _IDLE:
        return f"no resource binds: the GPUs are busy {busy:.0%} of the time; {time}"
    return f"{_short(name)} binds: {time}, GPUs busy {busy:.0%}; {state}"


def _short(name: str) -> str:
    words = _WORK[name].partition(" (")[0].removeprefix("the ")
    return words[0].upper() + words[1:]


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


def comm_share(candidate: Candidate, of: Judgement) -> float:
    """Share of a typical decode step that the GPUs of a replica spend on exchanging activations.

    Typical: as many requests as run at p50 over time, half way through answers of mean length.
    """
    if candidate.setup is None or not of.summaries or not of.numbers:
        return nan
    batch = max(1, round(of.numbers["num_running_p50"]))
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
