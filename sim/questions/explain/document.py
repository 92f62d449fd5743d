"""An explanation as the blocks of a document: the cause, where the time goes, what went on, the remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan

import numpy as np

from sim.errors import input_error
from sim.questions.explain import words
from sim.questions.explain.cause import Cause
from sim.questions.explain.observe import Observed
from sim.questions.explain.parts import LABELS
from sim.questions.explain.remedies import Effect, Effects, ranked, verdict
from sim.questions.explain.words import METRIC_NAMES, name_of, seconds
from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Table
from sim.report.screen import footer
from sim.results.run_folder import SavedRun
from sim.values import Json

AS_IT_IS = "as it is"
_BAR = 24


def title(observed: Observed, cause: Cause) -> str:
    """The question, with the value that is to be explained."""
    is_thin = cause.is_thin and cause.slow.size
    thin = " (fewer than 10 above it: little more than the maximum)" if is_thin else ""
    name, value = observed.result.scenario.name, seconds(cause.value_s)
    return f"{name}: p{cause.percentile:g} {METRIC_NAMES[cause.metric]} is {value}. Why?{thin}"


def findings(observed: Observed, cause: Cause) -> Iterator[Block]:
    """What was found in the run itself: the cause, the parts, the worst minute, preemption."""
    result = observed.result
    engine = result.setup.engine
    yield Bullets(tuple(words.cause_in_words(cause, engine)))
    if cause.slow.size:
        yield _parts(cause)
    if cause.window is not None:
        replicas = result.scenario.cluster.replicas
        yield Bullets(tuple(words.worst_minute_in_words(cause, cause.window, replicas, engine)))
    yield Heading(2, "Preemption")
    yield Bullets(tuple(words.preemptions_in_words(cause, result.notes)))


def consequences(cause: Cause, effects: Effects, summary: Mapping[str, Json]) -> Iterator[Block]:
    """What changes come to: classes of prompt length, remedies if any were tried; and the footnotes."""
    if len(effects.class_edges) > 1 and cause.metric == "ttft":
        yield _prompt_classes(cause.percentile, effects)
    if effects.remedies is not None:
        metric = METRIC_NAMES[cause.metric]
        yield Heading(2, "Remedies")
        yield Paragraph(
            f"Each simulated with the same requests and seed; best p{cause.percentile:g} {metric} first."
        )
        yield _remedies(cause, effects)
        notes = ["One run each: a few per cent may be chance; replications over seeds tell (dryserve sweep)."]
        if any("fp8" in remedy.change.label for remedy in effects.remedies):
            notes.append(
                "Attention over fp8 KV is a formula here that nobody has measured, and answers may change."
            )
        yield Bullets(tuple(notes))
    yield Bullets(tuple(footer(summary)))


def _parts(cause: Cause) -> Table:
    """The parts of the slow band and of the middle one, the largest first."""
    slow, middle = cause.slow, cause.middle
    shown = [key for key in LABELS if max(slow.parts[key], middle.parts[key]) >= 0.0005 * slow.mean_s]
    shown.sort(key=lambda key: -slow.parts[key])
    rows = []
    for key in shown:
        share = slow.parts[key] / slow.mean_s if slow.mean_s else 0.0
        of_middle = middle.parts[key] / middle.mean_s if middle.mean_s else 0.0
        rows.append(
            (
                name_of(key, cause.metric),
                seconds(slow.parts[key]),
                f"{share:.0%}",
                "█" * round(share * _BAR),
                seconds(middle.parts[key]),
                f"{of_middle:.0%}",
                _signed(cause.excess[key]),
            )
        )
    more = _signed(slow.mean_s - middle.mean_s)
    rows.append((METRIC_NAMES[cause.metric], seconds(slow.mean_s), "", "", seconds(middle.mean_s), "", more))
    rows.append(("n", f"{slow.size:,}", "", "", f"{middle.size:,}", "", ""))
    header = ("Where the time goes (mean)", slow.label, "", "", middle.label, "", "more")
    return Table(header, tuple(rows), (False, True, True, False, True, True, True))


def _signed(value_s: float) -> str:
    """A difference of times."""
    if abs(value_s) < 5e-7:
        return "0"
    return f"{'+' if value_s > 0 else '−'}{seconds(abs(value_s))}"


def _prompt_classes(percentile: float, effects: Effects) -> Table:
    """TTFT by length of prompt, as it is and under every remedy."""
    edges = effects.class_edges
    names = [_class_name(low, high) for low, high in zip(edges, [*edges[1:], None], strict=True)]
    rows = [("", *(f"n={own.num_requests:,}" for own in effects.as_it_is.by_prompt))]
    changed = [(remedy.change.label, remedy.effect) for remedy in effects.remedies or ()]
    for label, effect in [(AS_IT_IS, effects.as_it_is), *changed]:
        if effect is not None:
            cells = (
                "–" if isnan(own.median_s) else f"{own.median_s:.3g} / {own.percentile_s:.3g}"
                for own in effect.by_prompt
            )
            rows.append((label, *cells))
    header = (f"TTFT by tokens of the prompt (s, p50 / p{percentile:g})", *names)
    return Table(header, tuple(rows), (False, *(True for _ in names)))


def _class_name(low: int, high: int | None) -> str:
    if high is None:
        return f"≥ {low:,}"
    return f"< {high:,}" if low == 0 else f"{low:,}–{high - 1:,}"


def _remedies(cause: Cause, effects: Effects) -> Table:
    """The values as they are, and the differences that each change makes."""
    p, metric, baseline = f"p{cause.percentile:g}", cause.metric, effects.as_it_is
    rate = "thrput" if baseline.goodput_per_s is None else "goodput"
    rows: list[tuple[str, ...]] = [(AS_IT_IS, *_values(baseline), "")]
    for remedy in ranked(effects.remedies or (), metric):
        effect = remedy.effect
        if effect is None:
            rows.append((remedy.change.label, *[""] * 6, f"cannot be run: {remedy.error}"))
            continue
        judged = verdict(effect, baseline, metric)
        ended = f"; {remedy.error.split(': ')[0]}" if remedy.error else ""
        rows.append((remedy.change.label, *_differences(effect, baseline), f"{judged}{ended}"))
    header = ("", "Δ preempt", f"Δ {p} TTFT", f"Δ {p} ITL", f"Δ {p} E2E", f"Δ {rate}", "Δ GPUs", "")
    return Table(header, tuple(rows), (False, True, True, True, True, True, True, False))


def _values(effect: Effect) -> Iterator[str]:
    yield f"{effect.num_preemptions:,}"
    yield from (seconds(effect.latency_s[name]) for name in ("ttft", "itl", "e2e"))
    yield f"{_rate_per_s(effect, effect):.2f}/s"
    yield f"{effect.num_gpus}"


def _differences(effect: Effect, baseline: Effect) -> Iterator[str]:
    yield _count(effect.num_preemptions - baseline.num_preemptions)
    for name in ("ttft", "itl", "e2e"):
        now, before = effect.latency_s[name], baseline.latency_s[name]
        yield "–" if now is None or before is None else _signed(now - before)
    rate = _rate_per_s(effect, baseline) - _rate_per_s(baseline, baseline)
    yield f"{rate:+.2f}".replace("-", "−") if abs(rate) >= 0.005 else "0"
    yield _count(effect.num_gpus - baseline.num_gpus)


def _rate_per_s(effect: Effect, baseline: Effect) -> float:
    """Goodput if there are SLOs, else throughput, of requests."""
    return effect.throughput_per_s if baseline.goodput_per_s is None else effect.goodput_per_s or 0.0


def _count(difference: int) -> str:
    return f"{difference:+,}".replace("-", "−") if difference else "0"


def of_tables(saved: SavedRun, metric: str, percent: float, reason: str) -> Document:
    """What the folder of a run tells by itself, where its scenario cannot be simulated again: few parts, no
    reasons. Raises `InputError` for ITL, which needs more.
    """
    from sim.figures import latency_parts

    if metric == "itl":
        raise input_error(
            f"the gaps between tokens are not in the tables, and the scenario cannot be run again: {reason}",
            where=str(saved.folder),
        )
    note = f"note: the scenario cannot be run again ({reason}); this is what the run's tables tell"
    requests = saved.requests
    measured = requests[requests["arrival_s"] >= saved.scenario.warmup_s]
    parts = latency_parts(measured, metric)
    if not len(parts):
        return Document(note, [Paragraph(words.NOTHING_FINISHED)])
    latency_s = parts.sum(axis=1).to_numpy()
    value = seconds(float(np.percentile(latency_s, percent)))
    order = np.argsort(latency_s, kind="stable")
    slow = order[min(round(percent / 100.0 * len(order)), len(order) - 1) :]
    middle = order[int(0.45 * len(order)) : max(int(np.ceil(0.55 * len(order))), 1)]
    rows = []
    for part in parts.columns:
        values_s = parts[part].to_numpy()
        rows.append((str(part), *(seconds(float(values_s[chosen].mean())) for chosen in (slow, middle))))
    rows.append(("n", f"{len(slow):,}", f"{len(middle):,}"))
    header = ("Where the time goes (mean)", f"p{percent:g}–p100", "p45–p55")
    blocks: Sequence[Block] = [
        Paragraph(f"{saved.scenario.name}: p{percent:g} {METRIC_NAMES[metric]} is {value}."),
        Table(header, tuple(rows), (False, True, True)),
    ]
    count, share = saved.summary.get("num_preemptions"), saved.summary.get("recomputed_token_share")
    if isinstance(count, int) and isinstance(share, float):
        preempted = f"{count:,} preemptions; {share:.1%} of all tokens computed were recomputed."
        blocks = [*blocks, Paragraph(preempted)]
    return Document(note, blocks)
