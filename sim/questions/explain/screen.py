"""What `dryserve explain` prints: the cause, where the time goes, the worst minute, preemption, remedies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from textwrap import wrap

from sim.questions.explain import words
from sim.questions.explain.explain import Explanation
from sim.questions.explain.parts import LABELS
from sim.questions.explain.remedies import NO_EFFECT, Effect, Remedy
from sim.report.screen import footer
from sim.scenario import Scenario
from sim.scenario.engine import EngineSection
from sim.values import Json

WIDTH = 110
_BAR = 24


def findings(
    found: Explanation, scenario: Scenario, engine: EngineSection, summary: Mapping[str, Json]
) -> str:
    """The first half of the screen: cause, parts, worst minute, preemption; without a final newline."""
    notes = summary["notes"]
    assert isinstance(notes, list)
    return _joined(
        [_title(found, scenario), *_wrapped(words.cause(found, engine))],
        list(_table(found)),
        _wrapped(words.minute(found, scenario.cluster.replicas, engine)),
        ["Preemption", *_wrapped(words.preemptions(found, notes))],
    )


def consequences(
    found: Explanation,
    summary: Mapping[str, Json],
    baseline: Effect,
    remedies: Sequence[Remedy] | None,
    class_edges: Sequence[int] = (),
    baseline_classes: Sequence[tuple[float, float, int]] = (),
) -> str:
    """The second half: classes of prompt length, remedies (None: none were tried), and the footer."""
    return _joined(
        list(_classes(found, class_edges, baseline_classes, remedies or ())),
        list(_remedies(found, baseline, remedies)),
        ["-" * WIDTH, *footer(summary)],
    )


def _joined(*blocks: Sequence[str]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _wrapped(lines: Sequence[str]) -> list[str]:
    return [
        part for line in lines for part in wrap(line, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")
    ]


def _title(found: Explanation, scenario: Scenario) -> str:
    name = words.NAMES[found.metric]
    thin = (
        " (fewer than 10 above it: little more than the maximum)" if found.is_thin and found.slow.size else ""
    )
    value = words.seconds(found.value_s)
    return f"{scenario.name}: p{found.percentile:g} {name} is {value}. Why?{thin}"


def _table(found: Explanation) -> Iterator[str]:
    """The parts of the slow band and of the middle one, the largest first."""
    slow, middle = found.slow, found.middle
    if not slow.size:
        return
    shown = [key for key in LABELS if max(slow.parts[key], middle.parts[key]) >= 0.0005 * slow.mean_s]
    shown.sort(key=lambda key: -slow.parts[key])
    tail, gap = f"p{found.percentile:g}–p100", " " * (_BAR + 2)
    yield f"{'Where the time goes (mean)':<28}{tail:>12}{'':>6}{gap}{'p45–p55':>10}{'':>6}{'more':>12}"
    for key in shown:
        share = slow.parts[key] / slow.mean_s if slow.mean_s else 0.0
        of_middle = middle.parts[key] / middle.mean_s if middle.mean_s else 0.0
        bar = "█" * round(share * _BAR)
        label = words.name_of(key, found.metric)
        yield (
            f"  {label:<26}{words.seconds(slow.parts[key]):>12}{share:>6.0%}  {bar:<{_BAR}}"
            f"{words.seconds(middle.parts[key]):>10}{of_middle:>6.0%}{_signed(found.excess[key]):>12}"
        )
    total = f"  {words.NAMES[found.metric]:<26}{words.seconds(slow.mean_s):>12}{'':>6}{'':<{_BAR + 2}}"
    yield f"{total}{words.seconds(middle.mean_s):>10}{'':>6}{_signed(slow.mean_s - middle.mean_s):>12}"
    yield f"  {'n':<26}{slow.size:>12,}{'':>6}{'':<{_BAR + 2}}{middle.size:>10,}"


def _signed(value: float) -> str:
    """A difference in s or ms."""
    if abs(value) < 5e-7:
        return "0"
    return f"{'+' if value > 0 else '−'}{words.seconds(abs(value))}"


def _classes(
    found: Explanation,
    edges: Sequence[int],
    baseline: Sequence[tuple[float, float, int]],
    remedies: Sequence[Remedy],
) -> Iterator[str]:
    """TTFT by length of prompt, as it is and under every remedy."""
    if len(edges) < 2 or found.metric != "ttft":
        return
    names = [_class_name(low, high) for low, high in zip(edges, [*edges[1:], None], strict=True)]
    yield f"TTFT by tokens of the prompt (s, p50 / p{found.percentile:g})"
    yield f"{'':<42}" + "".join(f"{name:>16}" for name in names)
    yield f"{'':<42}" + "".join(f"{f'n={n:,}':>16}" for _, _, n in baseline)
    for label, rows in [("as it is", baseline), *((r.label, r.classes) for r in remedies if r.classes)]:
        cells = ["–" if isnan(middle) else f"{middle:.3g} / {high:.3g}" for middle, high, _ in rows]
        yield f"  {label:<40}" + "".join(f"{cell:>16}" for cell in cells)


def _class_name(low: int, high: int | None) -> str:
    if high is None:
        return f"≥ {low:,}"
    return f"< {high:,}" if low == 0 else f"{low:,}–{high - 1:,}"


def _remedies(found: Explanation, baseline: Effect, remedies: Sequence[Remedy] | None) -> Iterator[str]:
    if remedies is None:
        return
    p, metric = f"p{found.percentile:g}", found.metric
    yield f"Remedies, each simulated with the same requests and seed; best {p} {words.NAMES[metric]} first"
    has_slo = baseline.goodput_per_s is not None
    rate = "goodput" if has_slo else "thrput"
    yield (
        f"{'':<42}{'Δ preempt':>10}{f'Δ {p} TTFT':>13}{f'Δ {p} ITL':>13}{f'Δ {p} E2E':>13}"
        f"{f'Δ {rate}':>11}{'Δ GPUs':>8}"
    )
    yield _row("as it is", baseline, None, metric)
    for remedy in ranked(remedies, metric):
        if remedy.effect is None:
            yield f"  {remedy.label:<40}cannot be run: {remedy.error}"
            continue
        row = _row(remedy.label, baseline, remedy.effect, metric)
        yield f"{row}  {verdict(remedy.effect, baseline, metric)}"
        if remedy.error:
            yield f"  {'':<40}{remedy.error.split(': ')[0]}"
    yield "  One run each: a few per cent may be chance; replications over seeds tell (dryserve sweep)."
    if any("fp8" in remedy.label for remedy in remedies):
        yield "  Attention over fp8 KV is a formula here that nobody has measured, and answers may change."


def ranked(remedies: Sequence[Remedy], metric: str) -> list[Remedy]:
    """The best first; those that could not be run last."""

    def key(remedy: Remedy) -> tuple[bool, float]:
        value = None if remedy.effect is None else remedy.effect.latency_s[metric]
        return value is None or bool(remedy.error), value or 0.0

    return sorted(remedies, key=key)


def verdict(effect: Effect, baseline: Effect, metric: str) -> str:
    """One word on what a remedy does to the metric in question."""
    now, before = effect.latency_s[metric], baseline.latency_s[metric]
    if now is None or before is None or effect.num_finished < baseline.num_finished:
        same = effect.num_finished == baseline.num_finished
        return "nobody finishes" if same else f"{effect.num_finished:,} finish, not {baseline.num_finished:,}"
    change = now / before - 1.0 if before else 0.0
    if abs(change) < NO_EFFECT:
        same = all(
            _close(effect.latency_s[name], baseline.latency_s[name]) for name in baseline.latency_s
        ) and _close(effect.num_preemptions, baseline.num_preemptions)
        return "no effect" if same else "no effect here"
    digits = 1 if change < -0.985 else 0
    return f"{abs(change):.{digits}%} {'better' if change < 0 else 'WORSE'}"


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= NO_EFFECT * abs(other)


def _row(label: str, baseline: Effect, effect: Effect | None, metric: str) -> str:
    """A remedy's differences; of the baseline the values themselves."""
    shown = effect or baseline
    sign = (lambda value: value) if effect is None else None
    cells = []
    for name in ("ttft", "itl", "e2el"):
        now, before = shown.latency_s[name], baseline.latency_s[name]
        if now is None or before is None:
            cells.append("–")
        else:
            cells.append(words.seconds(now) if sign else _signed(now - before))
    has_slo = baseline.goodput_per_s is not None
    rate = shown.goodput_per_s if has_slo else shown.throughput_per_s
    rate_before = baseline.goodput_per_s if has_slo else baseline.throughput_per_s
    rate, rate_before = rate or 0.0, rate_before or 0.0
    preempt = (
        f"{shown.num_preemptions:,}" if sign else _count(shown.num_preemptions - baseline.num_preemptions)
    )
    goodput = f"{rate:.2f}/s" if sign else _difference(rate - rate_before)
    gpus = str(shown.num_gpus) if sign else _count(shown.num_gpus - baseline.num_gpus)
    return f"  {label:<40}{preempt:>10}{cells[0]:>13}{cells[1]:>13}{cells[2]:>13}{goodput:>11}{gpus:>8}"


def _count(difference: int) -> str:
    return f"{difference:+,}".replace("-", "−") if difference else "0"


def _difference(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−") if abs(value) >= 0.005 else "0"
