"""What `dryserve explain` prints: the cause, where the time goes, the worst minute, preemption, remedies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from textwrap import wrap

from sim.questions.explain import words
from sim.questions.explain.cause import Cause
from sim.questions.explain.explain import Explanation
from sim.questions.explain.parts import LABELS
from sim.questions.explain.remedies import Effect, ranked, verdict
from sim.report.screen import footer

WIDTH = 110
_BAR = 24


def findings(of: Explanation) -> str:
    """The first half of the screen: cause, parts, worst minute, preemption; without a final newline."""
    cause, result = of.cause, of.observed.result
    scenario, engine = result.scenario, result.setup.engine
    return _joined(
        [_title(cause, scenario.name), *_wrapped(words.cause_in_words(cause, engine))],
        list(_table(cause)),
        _wrapped(words.worst_minute_in_words(cause, scenario.cluster.replicas, engine)),
        ["Preemption", *_wrapped(words.preemptions_in_words(cause, result.notes))],
    )


def consequences(of: Explanation) -> str:
    """The second half: classes of prompt length, remedies (if any were tried), and the footer."""
    return _joined(
        list(_classes(of)), list(_remedies(of)), ["-" * WIDTH, *footer(of.observed.result.summary)]
    )


def _joined(*blocks: Sequence[str]) -> str:
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _wrapped(lines: Sequence[str]) -> list[str]:
    return [
        part for line in lines for part in wrap(line, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")
    ]


def _title(cause: Cause, name: str) -> str:
    metric = words.NAMES[cause.metric]
    thin = (
        " (fewer than 10 above it: little more than the maximum)" if cause.is_thin and cause.slow.size else ""
    )
    value = words.seconds(cause.value_s)
    return f"{name}: p{cause.percentile:g} {metric} is {value}. Why?{thin}"


def _table(cause: Cause) -> Iterator[str]:
    """The parts of the slow band and of the middle one, the largest first."""
    slow, middle = cause.slow, cause.middle
    if not slow.size:
        return
    shown = [key for key in LABELS if max(slow.parts[key], middle.parts[key]) >= 0.0005 * slow.mean_s]
    shown.sort(key=lambda key: -slow.parts[key])
    tail, gap = f"p{cause.percentile:g}–p100", " " * (_BAR + 2)
    yield f"{'Where the time goes (mean)':<28}{tail:>12}{'':>6}{gap}{'p45–p55':>10}{'':>6}{'more':>12}"
    for key in shown:
        share = slow.parts[key] / slow.mean_s if slow.mean_s else 0.0
        of_middle = middle.parts[key] / middle.mean_s if middle.mean_s else 0.0
        bar = "█" * round(share * _BAR)
        label = words.name_of(key, cause.metric)
        yield (
            f"  {label:<26}{words.seconds(slow.parts[key]):>12}{share:>6.0%}  {bar:<{_BAR}}"
            f"{words.seconds(middle.parts[key]):>10}{of_middle:>6.0%}{_signed(cause.excess[key]):>12}"
        )
    total = f"  {words.NAMES[cause.metric]:<26}{words.seconds(slow.mean_s):>12}{'':>6}{'':<{_BAR + 2}}"
    yield f"{total}{words.seconds(middle.mean_s):>10}{'':>6}{_signed(slow.mean_s - middle.mean_s):>12}"
    yield f"  {'n':<26}{slow.size:>12,}{'':>6}{'':<{_BAR + 2}}{middle.size:>10,}"


def _signed(value: float) -> str:
    """A difference in s or ms."""
    if abs(value) < 5e-7:
        return "0"
    return f"{'+' if value > 0 else '−'}{words.seconds(abs(value))}"


def _classes(of: Explanation) -> Iterator[str]:
    """TTFT by length of prompt, as it is and under every remedy."""
    edges = of.class_edges
    if len(edges) < 2 or of.cause.metric != "ttft":
        return
    names = [_class_name(low, high) for low, high in zip(edges, [*edges[1:], None], strict=True)]
    yield f"TTFT by tokens of the prompt (s, p50 / p{of.cause.percentile:g})"
    yield f"{'':<42}" + "".join(f"{name:>16}" for name in names)
    yield f"{'':<42}" + "".join(f"{f'n={own.num_requests:,}':>16}" for own in of.baseline.by_prompt)
    effects = [(remedy.change.label, remedy.effect) for remedy in of.remedies or ()]
    for label, effect in [("as it is", of.baseline), *effects]:
        if effect is not None:
            cells = [
                "–" if isnan(own.median_s) else f"{own.median_s:.3g} / {own.percentile_s:.3g}"
                for own in effect.by_prompt
            ]
            yield f"  {label:<40}" + "".join(f"{cell:>16}" for cell in cells)


def _class_name(low: int, high: int | None) -> str:
    if high is None:
        return f"≥ {low:,}"
    return f"< {high:,}" if low == 0 else f"{low:,}–{high - 1:,}"


def _remedies(of: Explanation) -> Iterator[str]:
    if of.remedies is None:
        return
    cause, baseline, remedies = of.cause, of.baseline, of.remedies
    p, metric = f"p{cause.percentile:g}", cause.metric
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
            yield f"  {remedy.change.label:<40}cannot be run: {remedy.error}"
            continue
        row = _row(remedy.change.label, baseline, remedy.effect, metric)
        yield f"{row}  {verdict(remedy.effect, baseline, metric)}"
        if remedy.error:
            yield f"  {'':<40}{remedy.error.split(': ')[0]}"
    yield "  One run each: a few per cent may be chance; replications over seeds tell (dryserve sweep)."
    if any("fp8" in remedy.change.label for remedy in remedies):
        yield "  Attention over fp8 KV is a formula here that nobody has measured, and answers may change."


def _row(label: str, baseline: Effect, effect: Effect | None, metric: str) -> str:
    """A remedy's differences; of the baseline the values themselves."""
    shown = effect or baseline
    sign = (lambda value: value) if effect is None else None
    cells = []
    for name in ("ttft", "itl", "e2e"):
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
