"""`size`: from a scenario, a promise and candidates to a `Sizing` with tables, an answer and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sim.errors import Fault, InputError
from sim.jobs.options import RunOptions
from sim.jobs.points import run_points
from sim.questions.asked import read_base
from sim.questions.prices import Prices, read_prices
from sim.questions.size.answer import Sizing
from sim.questions.size.candidates import Candidate, make_candidates
from sim.questions.size.load import load_faults, peak, run_length
from sim.questions.size.promise import make_promise
from sim.questions.size.search import Capacity, Fleet, Rounds, find_capacity, find_fleet
from sim.questions.sweep.axes import Values
from sim.scenario import Scenario

REPLICATIONS = 5
MOST_REPLICATIONS = 10
PRECISION = 0.05


def size(
    scenario: Scenario | str | Path,
    *,
    rate: float | None = None,
    num_gpus: int | None = None,
    slo: str | None = None,
    attainment: float | None = None,
    gpus: Sequence[str] = (),
    tp: str | Sequence[int] | None = None,
    grids: Sequence[str] | Mapping[str, Values] = (),
    overrides: Sequence[str] = (),
    prices: Prices | str | None = None,
    requests: int | None = None,
    replications: int = REPLICATIONS,
    precision: float = PRECISION,
    options: RunOptions | None = None,
) -> Sizing:
    """Find the highest rate that each candidate sustains, and with `rate` the smallest fleet that takes it.

        found = size("quickstart", rate=50, gpus=["h100-sxm", "a100-sxm-80gb"], prices="prices.toml")
        found.fleet_table, found.candidates[found.smallest].label

    One replica as the scenario has it, coarsely, in this process and without a store:

    >>> coarse = {"requests": 60, "replications": 2, "precision": 0.5}
    >>> here = RunOptions(workers=1, store=None)
    >>> found = size("kv-starved", slo="ttft_p95=1s", **coarse, options=here)
    >>> kept = found.found[0]
    >>> 0 < kept.rate_per_s < kept.above_per_s
    True

    A rate is sustained if the lower ends of 95 % intervals over `replications` seeds, the same for all
    candidates, reach what the SLO promises: each target for its percentile, or all at once for a share
    `attainment` of requests. The search ends when the rates that hold and do not are within `precision` of
    each other. Every fleet is simulated whole. With `num_gpus` in place of `rate` every candidate gets that
    many GPUs, and the rate of the whole is found. `requests` is the length of each run, by default as many as
    a minute or more takes; prices are read by `sim.questions.prices.read_prices`. `options` say how and where
    runs are made. Raises `InputError` with all mistakes before anything runs.
    """
    options = options or RunOptions()
    faults: list[Fault] = []
    base = read_base(scenario, overrides, slo, faults)
    faults += _option_faults(rate, num_gpus, attainment, replications, precision)
    faults += load_faults(base, requests)
    promise = make_promise(base, attainment)
    if promise is None:
        faults.append(
            Fault("--slo", None, "is needed, such as ttft_p99=1s,tpot_p99=40ms: the scenario has none")
        )
    candidates: list[Candidate] = []
    try:
        candidates = make_candidates(base, gpus, tp, grids, allow_plugins=options.allow_plugins)
    except InputError as error:
        faults += error.faults
    try:
        with_prices = read_prices(prices) if isinstance(prices, str) else prices
    except InputError as error:
        faults += error.faults
    if faults or promise is None:
        raise InputError(faults)
    candidates = [_with_whole_replicas(candidate, num_gpus) for candidate in candidates]
    length = run_length(base, tuple(promise.targets.values()), requests)
    rounds = Rounds(promise, length, partial(run_points, options=options.over_many_calls()))
    found, fleets = _search(candidates, rounds, rate, num_gpus, replications, precision)
    return Sizing(
        base,
        promise,
        tuple(candidates),
        found,
        fleets,
        rate,
        num_gpus,
        with_prices,
        length,
        replications,
        precision,
    )


def _search(
    candidates: Sequence[Candidate],
    rounds: Rounds,
    rate: float | None,
    num_gpus: int | None,
    replications: int,
    precision: float,
) -> tuple[dict[int, Capacity], dict[int, Fleet]]:
    able = {n: c.scenario for n, c in enumerate(candidates) if c.fault is None and c.scenario is not None}
    replicas = {n: 1 if num_gpus is None else num_gpus // candidates[n].gpus for n in able}
    found = rounds.run(
        able, {n: find_capacity(replicas[n], replications, precision, peak(able[n])) for n in able}
    )
    if rate is None:
        return found, {}
    holding = {n: capacity for n, capacity in found.items() if capacity.rate_per_s > 0.0}
    most = max(replications, MOST_REPLICATIONS) if replications > 1 else replications
    return found, rounds.run(able, {n: find_fleet(c, rate, replications, most) for n, c in holding.items()})


def _with_whole_replicas(candidate: Candidate, num_gpus: int | None) -> Candidate:
    if num_gpus is None or candidate.fault is not None or num_gpus % candidate.gpus == 0:
        return candidate
    fault = f"{num_gpus} GPUs are no whole number of replicas of {candidate.gpus}"
    return replace(candidate, fault=fault)


def _option_faults(
    rate: float | None, num_gpus: int | None, attainment: float | None, replications: int, precision: float
) -> list[Fault]:
    faults = []
    if rate is not None and not 0.0 < rate <= 1e6:
        faults.append(Fault(f"--rate {rate:g}", None, "must be above 0 and at most 1e6"))
    if num_gpus is not None and not 1 <= num_gpus <= 10_000:
        faults.append(Fault(f"--num-gpus {num_gpus}", None, "must be from 1 to 10,000"))
    if rate is not None and num_gpus is not None:
        faults.append(Fault("--num-gpus", None, "leaves no choice of --rate: it asks which rate they take"))
    if attainment is not None and not 0.0 < attainment < 1.0:
        faults.append(
            Fault(f"--attainment {attainment:g}", None, "must be a share between 0 and 1, such as 0.99")
        )
    if not 1 <= replications <= 1000:
        faults.append(Fault(f"--replications {replications}", None, "must be from 1 to 1,000"))
    if not 0.001 <= precision <= 0.5:
        faults.append(Fault(f"--precision {precision:g}", None, "must be from 0.1% to 50%"))
    return faults
