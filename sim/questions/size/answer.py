"""The answer of a sizing: what each candidate sustains, the fleets, what binds, and what cannot be said.

The figures: attainment over fleet size, and what an hour's money buys (F6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite

import pandas as pd

from sim.questions.size.candidates import GPU, TENSOR
from sim.questions.size.load import has_curve, unit, warms_up
from sim.questions.size.promise import BROKEN, CLOSE, MET, NO_DATA, Judgement, Promise
from sim.questions.size.results import ANSWER, CLOSE_WORDS, Results
from sim.questions.sweep.cells import words
from sim.report.answer import ScenarioAnswer, records
from sim.report.cells import (
    NONE,
    Row,
    error_lines,
    facts_line,
    note_lines,
    number,
    rows_of,
    share,
    value,
    warm_up_words,
)
from sim.report.document import Block, Bullets, Paragraph, Plate, drawing, table_of_columns
from sim.statistics.intervals import trials_to_show, wilson_interval
from sim.values import Json, plain_json

HOW_TO_PRICE = (
    "no prices given, so no cost: --prices FILE (.toml or .yaml with a table per_gpu_hour), "
    "--prices h100-sxm=PRICE,…, or --prices example to see the form"
)
MOST_LINES = 8
"""A figure of more candidates is left out."""


@dataclass(frozen=True, slots=True, repr=False)
class Sizing(Results, ScenarioAnswer):
    """The answer of a sizing: `Results`, and how they are shown, drawn and written.

    Its folder holds `size.json`, `candidates.csv` (what each candidate sustains) and `fleets.csv` (those that
    were simulated).
    """

    kind = "size"

    @property
    def question(self) -> str:
        """How many GPUs for which rate, or which rate for them."""
        what = unit(self.base)
        if self.rate_per_s is not None:
            asked = f"GPUs for {self.rate_per_s:g} {what}"
        elif self.num_gpus is not None:
            asked = f"{what} that {self.num_gpus} GPUs sustain"
        else:
            asked = f"{what} that one replica sustains"
        return f"{self.base.name}: {asked}"

    def blocks(self) -> Iterator[Block]:
        """What candidates sustain, the fleets, what binds, and what cannot be said."""
        yield Paragraph(f"promise: {self.promise.words()}")
        yield from _capacities(self)
        if self.rate_per_s is not None:
            yield from _fleets(self)
        chosen = self.by_label(self.answers or self.found)
        bound = {n: self.bound(n) for n, _ in chosen if self.found[n].error is None}
        yield from _bullets((self.candidates[n].label, told) for n, told in bound.items())
        yield from map(Paragraph, conclusions(self))
        yield Bullets(tuple(_footnotes(self)))

    def plates(self) -> Iterator[Plate]:
        """The figures that can be drawn; none where nothing was found."""
        fleets, held = self.fleet_table, self.capacity_table
        if len(fleets) and fleets["candidate"].nunique() <= MOST_LINES:
            wanted = min(self.promise.shares.values())
            shows = "The share of requests that keep the promise, fleet by fleet."
            yield Plate("attainment_fleet", shows, drawing("fleet_attainment", fleets, target=wanted))
        if self.prices is not None and held["per_million_output"].notna().any():
            shows = "The rate that an hour's money buys."
            draw = drawing("capacity_cost", _priced(held), currency=self.prices.currency)
            yield Plate("capacity_cost", shows, draw)

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The candidates and the fleets."""
        return {"candidates.csv": self.capacity_table, "fleets.csv": self.fleet_table}

    @property
    def has_failed(self) -> bool:
        """Whether nothing keeps the promise."""
        return not self.has_answer

    @property
    def warnings(self) -> Sequence[str]:
        """Which GPUs have no price."""
        return [f"{self.unpriced}: its cost is left out"] if self.unpriced else []

    def asked(self) -> dict[str, Json]:
        """Everything that was asked beside the scenario."""
        prices = self.prices
        return {
            "rate_per_s": self.rate_per_s,
            "num_gpus": self.num_gpus,
            "promise": self.promise.words(),
            "shares": dict(self.promise.shares),
            "candidates": [candidate.label for candidate in self.candidates],
            "prices": None if prices is None else dict(prices.per_gpu_hour),
            "currency": None if prices is None else prices.currency,
            "replications": self.replications,
            "precision": self.precision,
            "requests": self.length.requests,
        }

    def as_json(self) -> dict[str, Json]:
        """The whole sizing as plain data."""

        def label(number: int | None) -> Json:
            return None if number is None else self.candidates[number].label

        return {
            **self.asked(),
            "smallest": label(self.smallest),
            "cheapest": label(self.cheapest),
            "conclusions": list(conclusions(self)),
            "capacities": records(self.capacity_table),
            "fleets": records(self.fleet_table),
            "arithmetic": {
                self.candidates[n].label: plain_json(fleet.arithmetic) for n, fleet in self.fleets.items()
            },
            "binding": {
                self.candidates[n].label: self.bound(n) for n, c in self.found.items() if c.error is None
            },
        }


def _bullets(told: Iterable[tuple[str, str]]) -> Iterator[Block]:
    """What is told of each candidate, by its label; no block if nothing is."""
    items = tuple(f"{label}: {what}" for label, what in told)
    if items:
        yield Bullets(items)


def _capacities(sizing: Sizing) -> Iterator[Block]:
    whole = f"{sizing.num_gpus} GPUs" if sizing.num_gpus is not None else "One replica"
    yield Paragraph(f"{whole} at the highest rate that keeps it:")
    table = sizing.capacity_table
    rows = rows_of(table[table["rate_per_s"].notna()])
    if rows:
        yield table_of_columns(_capacity_columns(sizing, rows).items(), left=("GPU", "breaks next"))
    else:
        yield Paragraph("none: no candidate ran")
    unable = rows_of(table[table["error"].notna()])
    if unable:
        yield Bullets(tuple(f"cannot run: {row['candidate']}: {row['error']}" for row in unable))


def _capacity_columns(sizing: Sizing, rows: Sequence[Row]) -> dict[str, list[str]]:
    columns = _setting_columns(sizing, rows)
    if sizing.num_gpus is not None:
        columns["replicas"] = [number(row, "replicas", ".0f") for row in rows]
    columns[unit(sizing.base)] = [_rate(row) for row in rows]
    columns["per GPU"] = [
        number(row, "rate_per_s_per_gpu", ".3g") if value(row, "rate_per_s") else NONE for row in rows
    ]
    columns |= _judged_columns(rows)
    columns["KV tokens/GPU"] = [number(row, "kv_tokens_per_gpu", ",.0f") for row in rows]
    if any(value(row, "gpus_per_replica") > 1 for row in rows):
        columns["all-reduce"] = [number(row, "comm_share", ".0%") for row in rows]
    if sizing.prices is not None:
        per_million = [number(row, "per_million_output", ".3g") for row in rows]
        columns[f"{sizing.prices.currency}/1M out"] = per_million
    columns["breaks next"] = [_breaks(row) for row in rows]
    return columns


def _rate(row: Row) -> str:
    """The highest rate that held; a rate above all that were tried is marked."""
    held, above = value(row, "rate_per_s"), value(row, "above_per_s")
    if held == 0.0 and _is_close(row):
        return f"? (at {above:.3g})"
    if held == 0.0:
        return f"< {above:.3g}" if isfinite(above) else NONE
    return f"{held:.3g} (not {above:.3g})" if isfinite(above) else f">= {held:.3g}"


def _breaks(row: Row) -> str:
    told = row.get("breaks")
    if not isinstance(told, str):
        return str(told or "")
    return told if _is_close(row) and value(row, "rate_per_s") == 0.0 else told.removesuffix(CLOSE_WORDS)


def _is_close(row: Row) -> bool:
    """Whether the lowest rate that is not shown to hold is not shown to break either."""
    return str(row.get("breaks")).endswith(CLOSE_WORDS)


def _fleets(sizing: Sizing) -> Iterator[Block]:
    yield Paragraph(
        f"Fleets at {sizing.rate_per_s:g} {unit(sizing.base)}, each simulated whole behind one router:"
    )
    rows = [row for row in rows_of(sizing.fleet_table) if row["seeds"] != 1 or sizing.replications == 1]
    answered = {row["candidate"] for row in rows if row["role"] == ANSWER}
    rows = [row for row in rows if row["role"] or row["candidate"] not in answered]
    if not rows:
        nothing = all(capacity.error for capacity in sizing.found.values())
        ran = "ran" if nothing else "is shown to keep the promise at any rate"
        yield Paragraph(f"none: no candidate {ran}")
        return
    columns = _setting_columns(sizing, rows)
    columns["replicas"] = [number(row, "replicas", ".0f") for row in rows]
    columns["GPUs"] = [number(row, "gpus", ".0f") for row in rows]
    columns |= _judged_columns(rows)
    if sizing.prices is not None:
        money = sizing.prices.currency
        columns[f"{money}/h"] = [number(row, "cost_per_h", ",.2f") for row in rows]
        columns[f"{money}/1M out"] = [
            number(row, "per_million_output", ".3g") if row["verdict"] == MET else NONE for row in rows
        ]
    columns[""] = [_mark(sizing, row) for row in rows]
    yield table_of_columns(columns.items(), left=("GPU", ""))
    yield from _bullets(_confirmations(sizing))


def _mark(sizing: Sizing, row: Row) -> str:
    if row["role"] != ANSWER:
        return f"fails: {row['fails']}" if row["fails"] else ""
    labels = (("smallest", sizing.smallest), ("cheapest", sizing.cheapest))
    said = [n for n, at in labels if at is not None and sizing.candidates[at].label == row["candidate"]]
    return f"<- {' and '.join(said)}" if said else ""


def _confirmations(sizing: Sizing) -> Iterator[tuple[str, str]]:
    """Where the runs of whole fleets and the capacity of one replica disagree, by candidate."""
    for at, fleet in sizing.by_label(sizing.fleets):
        label, said = sizing.candidates[at].label, f"the capacity of one replica says {fleet.arithmetic}"
        if fleet.replicas is None:
            last = max(fleet.tried)
            close = fleet.tried[last].verdict == CLOSE
            failed = f"of {last} it is too close to say" if close else f"not even {last} keep the promise"
            yield label, f"{said}; {fleet.tried[last].error or failed}"
        elif fleet.replicas > fleet.arithmetic:
            close = fleet.tried[fleet.arithmetic].verdict == CLOSE
            what = "runs of that fleet are too close to say" if close else "the run of that fleet failed"
            yield label, f"{said}; {what}, so {fleet.replicas - fleet.arithmetic} more"
        elif fleet.replicas < fleet.arithmetic:
            yield label, f"{said}; {fleet.replicas} together behind the router keep it too"


def _setting_columns(sizing: Sizing, rows: Sequence[Row]) -> dict[str, list[str]]:
    names = {GPU: "GPU", TENSOR: "TP"}
    return {
        names.get(path, path.rpartition(".")[2]): [words(row[path]) for row in rows]
        for path in sizing.candidates[0].setting
    }


def _judged_columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    return {
        "attainment (95% CI)": [share(row, "attainment", 2) for row in rows],
        "p99 TTFT": [number(row, "p99_ttft_s", ".3g", " s") for row in rows],
        "p99 TPOT": [number(row, "p99_tpot_ms", ".3g", " ms") for row in rows],
        "p99 E2E": [number(row, "p99_e2e_s", ".3g", " s") for row in rows],
        "KV p95": [number(row, "kv_usage_p95", ".0%") for row in rows],
        "preempt/req": [number(row, "preemptions_per_request", ".2f") for row in rows],
    }


def _footnotes(sizing: Sizing) -> Iterator[str]:
    if sizing.prices is None:
        yield HOW_TO_PRICE
    else:
        yield f"prices: {sizing.prices.source}"
        if sizing.unpriced:
            yield f"{sizing.unpriced}: its cost is left out"
    judged = sizing.judgements
    summaries = [summary for each in judged for summary in each.summaries]
    if not summaries:
        return
    counts = sorted({int(str(summary["num_prompts"])) for summary in summaries})
    sent = f"{counts[0]:,} to {counts[-1]:,}" if counts[0] < counts[-1] else f"{counts[0]:,}"
    most = max(each.seeds for each in judged)
    seeds = f"up to {most} seeds" if most > 1 else "1 seed"
    same = ", the same for all" if len(sizing.found) > 1 else ""
    yield facts_line(
        summaries,
        f"{seeds} from {sizing.base.seed}{same}, {sent} requests each | "
        f"rates to {100.0 * sizing.precision:.3g} %",
        _warm_up(sizing),
    )
    yield from error_lines(summaries)
    yield from note_lines(summaries, _left_to_chance(sizing, judged))


def _warm_up(sizing: Sizing) -> str:
    is_cut = not sizing.base.warmup_s and warms_up(sizing.base)
    return "first tenth removed as warm-up" if is_cut else warm_up_words(sizing.base.warmup_s)


def _left_to_chance(sizing: Sizing, judged: Sequence[Judgement]) -> Iterator[str]:
    several = [each for each in judged if each.seeds > 1]
    if sizing.replications == 1:
        yield "one seed gives no interval over seeds: how much is left to chance is not known"
    elif several and all(len({s["mean_e2el_ms"] for s in each.summaries}) <= 1 for each in several):
        yield "all seeds gave the same, so there are no intervals: nothing here is left to chance"


def conclusions(sizing: Sizing) -> Iterator[str]:
    """Sentences about candidates without an answer; a no only where runs show it.

    That there is no rate or no fleet, or that too little was run to say.
    """
    ran = {at: each for at, each in sizing.found.items() if each.error is None}
    left_open: dict[int, tuple[str, Judgement]] = {}
    for at, capacity in ran.items():
        broken = capacity.broken
        if not capacity.rate_per_s and broken is not None and is_open(broken, sizing.promise):
            left_open[at] = f", even at {capacity.above_per_s:.3g} {unit(sizing.base)}", broken
    for at, fleet in sizing.fleets.items():
        most = fleet.tried[max(fleet.tried)]
        if fleet.replicas is None and is_open(most, sizing.promise):
            left_open[at] = f" of {max(fleet.tried)} replicas", most
    for at, (what, judged) in sizing.by_label(left_open):
        yield f"{sizing.candidates[at].label}: {_too_close(sizing, what, judged)}"
    if left_open:
        return
    if not ran:
        yield "No candidate can run."
    elif not any(capacity.rate_per_s for capacity in ran.values()):
        yield "No candidate keeps the promise, not even with next to no load: more replicas would not help."
    elif sizing.rate_per_s is not None and not sizing.answers and not _without_result(sizing):
        yield "No candidate keeps the promise at this rate."


def is_open(judged: Judgement, promise: Promise) -> bool:
    """Whether runs that do not show the promise kept do not show it broken either.

    One run alone is judged by its estimate; here its requests have a say, taken as independent.
    """
    if judged.seeds != 1 or judged.error is not None:
        return judged.verdict == CLOSE
    size = _judged_requests(judged)
    return not judged.is_met and all(
        size == 0 or wilson_interval(round(judged.shares[name].estimate * size), size).high >= wanted
        for name, wanted in promise.shares.items()
    )


def _without_result(sizing: Sizing) -> bool:
    """Whether some fleet had to be given up because a run told nothing."""
    return any(each.verdict in (BROKEN, NO_DATA) for f in sizing.fleets.values() for each in f.tried.values())


def _too_close(sizing: Sizing, what: str, judged: Judgement) -> str:
    """Why nothing can be said, and how many requests or seeds it takes."""
    wanted = max(sizing.promise.shares[name] for name in judged.failing)
    needed, size = trials_to_show(wanted), _judged_requests(judged)
    sent = max(int(str(summary["num_prompts"])) for summary in judged.summaries)
    if size >= needed:
        name = min(judged.failing, key=lambda n: judged.shares[n].low - sizing.promise.shares[n])
        found, promised = judged.shares[name], sizing.promise.shares[name]
        ends = f" ({found.low:.2%} to {found.high:.2%})" if judged.seeds > 1 else ""
        return (
            f"too close to say{what}: {found.estimate:.2%}{ends} of requests keep it, {promised:.2%} should; "
            "more --requests or --replications narrow the interval."
        )
    missing = needed / max(1, size)
    ways = [] if has_curve(sizing.base) else [f"--requests {_rounded_up(1.1 * sent * missing)}"]
    ways.append(f"--replications {ceil(1.1 * judged.seeds * missing)}")
    seeds = f"{judged.seeds} seed{'s' if judged.seeds > 1 else ''}"
    return (
        f"too few requests to say{what}: {seeds} of {sent:,} leave {size:,} to judge, and it takes "
        f"{needed:,} to show {100.0 * wanted:g} % even if all of them keep it; try {' or '.join(ways)}."
    )


def _judged_requests(judged: Judgement) -> int:
    return sum(int(str(summary["slo_judged_requests"] or 0)) for summary in judged.summaries)


def _rounded_up(count: float) -> int:
    """To the next ten."""
    return 10 * ceil(count / 10.0)


def _priced(held: pd.DataFrame) -> pd.DataFrame:
    """The candidates with a price, in the columns of the figure."""
    columns = {"label": held["candidate"], "capacity_per_s": held["rate_per_s"]}
    return held[held["cost_per_h"].notna()].assign(**columns)
