"""The answer of a comparison: differences by metric, a table by class, how far to trust them, and figures.

The figures: paired differences, latency CDFs (F1), preemption tax (F12), fairness (F16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

import pandas as pd

from sim.questions.compare.results import (
    EXACT,
    NOT_SHOWN,
    SHOWN,
    SHOWN_ALONE,
    TOO_FEW,
    UNKNOWN,
    Results,
    jain,
    strict_level,
)
from sim.questions.sweep.measures import thin_percentiles
from sim.report.answer import ScenarioAnswer, records
from sim.report.cells import (
    NONE,
    THIN,
    Row,
    error_lines,
    facts_line,
    note_lines,
    number,
    plus_minus,
    rows_of,
    three_digits,
    value,
    warm_up_words,
)
from sim.report.document import Block, Bullets, Paragraph, Plate, drawing, table_of_columns
from sim.results.metrics import is_thin
from sim.statistics.intervals import LEVEL, replication_interval
from sim.statistics.paired import LEAST_DISTINCT, PairedDifferences, pairs_to_show
from sim.values import Json, plain_json

ACROSS = 3
"""Variants beside one another; more go below."""
ALONE = "~"
MOST_LINES = 8
"""Figures with more lines than this are left out."""
LONG_LEGEND = 30


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Results, ScenarioAnswer):
    """The answer of a comparison: `Results`, and how they are shown, drawn and written.

    Its folder holds `compare.json`, `differences.csv` (a row for each metric and variant) and, where requests
    have classes, `classes.csv`.
    """

    kind = "compare"
    root = "comparisons"

    @property
    def question(self) -> str:
        """How many variants of what, and how often each was run."""
        return (
            f"{self.base.name}: {len(self.variants)} variants, {len(self.seeds)} replications each, "
            f"seeds from {self.seeds[0]}, the same arrivals and lengths for all"
        )

    def blocks(self) -> Iterator[Block]:
        """Differences, classes, what is shown, and what to know of it."""
        names = self.names
        if list(names.values()) == self.labels:
            yield Paragraph(f"reference: {self.labels[0]}")
        else:
            yield Bullets(tuple(f"{name}: {label}" for label, name in names.items()))
            yield Paragraph("reference: A")
        yield from _differences(self)
        yield from _classes(self)
        yield from map(Paragraph, _verdict(self))
        if self.failed:
            yield Bullets(tuple(f"failed: {label}: {error}" for label, error in self.failed))
            yield Paragraph("seeds with a failed run are left out of all variants")
        if self.summaries:
            yield Bullets(tuple(_footnotes(self)))

    def plates(self) -> Iterator[Plate]:
        """The figures that fit."""
        if "verdict" in self.table and len(self.labels) <= MOST_LINES:
            if self.table["low"].notna().any() or EXACT in self.verdicts:
                changes = self.table.assign(variant=self.table["variant"].map(_legends(self)))
                shows = "By how much each variant moves each metric; hollow where no difference is shown."
                yield Plate("differences", shows, drawing("paired_differences", changes))
            requests = _requests(self)
            slo = {} if self.base.slo is None else dict(self.base.slo.root)
            for metric in ("ttft", "tpot", "e2e"):
                shows = f"{metric.upper()} of the requests of all seeds, variant by variant."
                yield Plate(f"{metric}_cdf", shows, drawing("latency_cdf", requests, metric=metric, slo=slo))
            if len(self.classes):
                yield Plate("fairness", "How each class of requests fares.", drawing("fairness", requests))
            if any(table["num_preemptions"].any() for table in requests.values()):
                draw = drawing("preemption_tax", requests, function="plot_preemptions_per_request")
                yield Plate("preemptions_per_request", "How often requests were preempted.", draw)
        taxes = _taxes(self)
        if len(set(taxes["kv_tokens"])) > 1:
            shows = "The share of tokens that were computed again, over the size of the KV cache."
            yield Plate("preemption_tax", shows, drawing("preemption_tax", taxes))

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The differences, and the classes if there are any."""
        return {"differences.csv": self.table} | ({"classes.csv": self.classes} if len(self.classes) else {})

    @property
    def has_failed(self) -> bool:
        """Whether a run failed."""
        return bool(self.failed)

    def asked(self) -> dict[str, Json]:
        """The seeds and every variant in full."""
        variants = {variant.label: variant.scenario.dump_resolved() for variant in self.variants}
        return {"seeds": list(self.seeds), "variants": variants}

    def as_json(self) -> dict[str, Json]:
        """The whole comparison but its single runs, as plain data."""
        indices = {label: replication_interval(jain(run)) for label, run in self.labelled_runs}
        return {
            "reference": self.labels[0],
            "variants": list(self.labels),
            "seeds": list(self.seeds),
            "comparisons": len(self.verdicts),
            "nothing_shown": self.nothing_shown,
            "identical": list[Json](self.identical),
            "differences": records(self.table),
            "classes": records(self.classes),
            "jain_index": {
                label: plain_json({"estimate": found.estimate, "low": found.low, "high": found.high})
                for label, found in indices.items()
            },
            "failed": dict(self.failed),
        }


def _differences(found: Comparison) -> Iterator[Block]:
    if not len(found.table):
        yield Paragraph("no run ended well: there is nothing to compare")
        return
    names, others = found.names, found.labels[1:]
    rows = {(str(row["metric"]), str(row["variant"])): row for row in rows_of(found.table)}
    keys = {metric: str(row["column"]) for (metric, _), row in rows.items()}
    thin = thin_percentiles(found.summaries)
    marked = [f"{metric}{THIN}" if key in thin else metric for metric, key in keys.items()]

    def means(label: str) -> tuple[str, list[str]]:
        return names[label], [three_digits(value(rows[metric, label], "mean")) for metric in keys]

    for start in range(0, len(others), ACROSS):
        columns = [("", marked), means(found.labels[0])]
        for label in others[start : start + ACROSS]:
            columns.append(means(label))
            columns.append(("change (95% CI)", [_change(rows[metric, label]) for metric in keys]))
        yield table_of_columns(columns, left=("",))
    if marked != list(keys):
        yield Paragraph(f"{THIN} fewer than 10 samples above in some replication")


def _change(row: Row) -> str:
    """The difference in per cent of the reference, with its interval; in its own unit where that is 0."""
    verdict = row["verdict"]
    if verdict == NOT_SHOWN:
        return NOT_SHOWN
    is_relative = isfinite(value(row, "relative"))
    change = value(row, "relative" if is_relative else "difference")
    if not isfinite(change) or (verdict == UNKNOWN and not is_relative):
        return NONE
    form = _percents if is_relative else "{:+.3g}".format
    low, high = (value(row, f"relative_{end}" if is_relative else end) for end in ("low", "high"))
    ends = f"{form(low)} to {form(high)}" if isfinite(low) else row["evidence"]
    return f"{ALONE if verdict == SHOWN_ALONE else ''}{form(change)} ({ends})"


def _percents(share: float) -> str:
    """A change in per cent; what would be rounded to nothing has its first digit."""
    return f"{share:+.1%}" if abs(share) >= 0.0005 or share == 0.0 else f"{100.0 * share:+.1g}%"


def _classes(found: Comparison) -> Iterator[Block]:
    if not len(found.classes):
        return
    rows, names = rows_of(found.classes), found.names
    yield Paragraph("By class of request:")
    columns = {
        "variant": [names[str(row["variant"])] for row in rows],
        "class": [str(row["class"]) for row in rows],
        "requests": [number(row, "requests", ".0f") for row in rows],
        "p50 TTFT s": [plus_minus(row, "median_ttft_s") for row in rows],
        "p99 TTFT s": [_tail(row, "p99_ttft_s") for row in rows],
        "p99 TPOT ms": [_tail(row, "p99_tpot_ms") for row in rows],
        "attainment": [number(row, "attainment", ".1%") for row in rows],
        "longest wait s": [plus_minus(row, "max_wait_s") for row in rows],
        "preemptions": [three_digits(value(row, "preemptions")) for row in rows],
        "tokens": [number(row, "token_share", ".1%") for row in rows],
        "": ["STARVES" if row["starves"] else "" for row in rows],
    }
    yield table_of_columns(columns.items(), left=("variant", "class", ""))
    if any(_is_thin(row) for row in rows):
        yield Paragraph(f"{THIN} fewer than 10 samples above in each replication")
    if any(row["starves"] for row in rows):
        yield Paragraph(
            f"STARVES: the longest wait for a first step exceeds {found.starving_s:g} s, mean of the seeds"
        )
    yield from map(Paragraph, _jain(found))


def _tail(row: Row, column: str) -> str:
    """A p99, marked where a run has few samples above it."""
    return plus_minus(row, column) + (THIN if _is_thin(row) else "")


def _is_thin(row: Row) -> bool:
    return is_thin(int(value(row, "requests")), 99.0)


def _jain(found: Comparison) -> Iterator[str]:
    said, names = [], found.names
    first, is_exact = jain(found.pairs[0]), EXACT in found.verdicts
    for (label, run), pairs in zip(found.labelled_runs, found.pairs, strict=True):
        mean, own = replication_interval(jain(run)), jain(pairs)
        if isfinite(mean.estimate):
            ends = f" ({mean.low:.3f}-{mean.high:.3f})" if isfinite(mean.low) else ""
            differs = own != first if is_exact else PairedDifferences.of(first, own).shows()
            said.append(f"{names[label]} {mean.estimate:.3f}{ends}{' differs' if differs else ''}")
    if said:
        yield f"Jain's index of the classes' speeds (1: all alike): {'; '.join(said)}"


def _verdict(found: Comparison) -> Iterator[str]:
    if not len(found.table):
        return
    if found.identical:
        same = ", ".join(found.names[label] for label in found.identical)
        yield (
            f"Identical to {found.names[found.labels[0]]}, every number and every request, under "
            f"{len(found.pairs[0])} seeds: {same}."
        )
    verdicts = found.verdicts
    count, seeds = len(verdicts), len(found.pairs[0])
    is_same = found.table["difference"].dropna().eq(0.0).all()
    if seeds < LEAST_DISTINCT and EXACT not in verdicts and not (seeds > 1 and is_same):
        yield (
            f"{'One run' if seeds == 1 else 'Two runs'} each: differences have no intervals, so nothing is "
            f"shown. It takes --replications {LEAST_DISTINCT} or more."
        )
        return
    if verdicts.count(NOT_SHOWN) == count:
        yield f"No difference shown in any of {count} comparisons."
        return
    if EXACT in verdicts:
        yield (
            f"All seeds gave the same, so there are no intervals: nothing here is left to chance. "
            f"{verdicts.count(EXACT)} of {count} comparisons differ."
        )
        return
    shown, alone, few = (verdicts.count(each) for each in (SHOWN, SHOWN_ALONE, TOO_FEW))
    chance = (1.0 - LEVEL) * count
    yield (
        f"{count} comparisons, each at 95 %: about {chance:.1f} would seem to differ by chance alone. "
        f"{shown} differ also with all {count} taken together (Bonferroni)"
        + (f"; {alone}, marked {ALONE}, only by themselves." if alone else ".")
    )
    if few:
        yield (
            f"{few} with fewer than {LEAST_DISTINCT} different values have no interval: "
            f"{pairs_to_show()} seeds that agree show such a difference by itself, "
            f"{pairs_to_show(strict_level(count))} with all {count} taken together."
        )


def _footnotes(found: Comparison) -> Iterator[str]:
    seeds = f"{len(found.seeds)} seeds, paired | 95% intervals"
    yield facts_line(found.summaries, seeds, warm_up_words(found.base.warmup_s))
    yield from error_lines(found.summaries)
    yield from note_lines(found.summaries)


def _requests(found: Comparison) -> dict[str, pd.DataFrame]:
    """The requests of all seeds of each variant."""
    legends = _legends(found)
    return {
        legends[label]: pd.concat(
            [pd.DataFrame(dict(o.samples)) for o in run if o.samples], ignore_index=True
        )
        for label, run in found.labelled_runs
        if any(o.samples for o in run)
    }


def _legends(found: Comparison) -> dict[str, str]:
    """Labels short enough for a legend: long ones are cut, and end in their letter of the tables."""
    return {
        label: label if len(label) <= LONG_LEGEND else f"{label[: LONG_LEGEND - 4]}… ({name})"
        for label, name in found.names.items()
    }


def _taxes(found: Comparison) -> pd.DataFrame:
    """The recomputed share of each variant over its KV capacity; one line for each policy of victims."""
    rows = []
    for variant, run in zip(found.variants, found.runs, strict=True):
        good = [o.summary for o in run if o.summary is not None]
        if good:
            shares = replication_interval([float(str(s["recomputed_token_share"])) for s in good])
            engine = variant.scenario.engine
            victim = "fcfs_tail" if engine.victim_policy is None else engine.victim_policy.kind
            block_tokens = variant.scenario.resolved.engine.block_size
            assert block_tokens is not None
            tokens = int(str(good[0]["num_gpu_blocks"])) * block_tokens
            rows.append((victim, tokens, shares.estimate, shares.low, shares.high))
    columns = ["label", "kv_tokens", "recomputed_token_share", "share_low", "share_high"]
    return pd.DataFrame(rows, columns=columns)
