"""What was found, in sentences: the top cause with its evidence, the worst minute, the preemptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sim.questions.explain.cause import Cause, Window
from sim.questions.explain.parts import LABELS
from sim.results.accounts import USUAL_PREEMPTIONS
from sim.scenario.engine import EngineSection

METRIC_NAMES = {"ttft": "TTFT", "e2e": "E2E latency", "itl": "ITL"}
NOTHING_FINISHED = "Nothing to explain: no request that counts has finished."


def seconds(value: float | None) -> str:
    """Three digits, in ms below one second and µs below one ms."""
    if value is None:
        return "–"
    if abs(value) < 0.9995e-3:
        return f"{value * 1e6:.3g} µs" if abs(value) >= 1e-7 else "0 ms"
    if abs(value) < 0.9995:
        return f"{value * 1000.0:.3g} ms"
    return f"{value:.3g} s" if abs(value) < 999.5 else f"{value:,.0f} s"


def cause_in_words(cause: Cause, engine: EngineSection) -> list[str]:
    """The top cause, and what backs it."""
    top = cause.top
    if top is None:
        return [_nothing(cause), *_uncounted(cause)]
    of = "gaps" if cause.metric == "itl" else "requests"
    slow, middle = cause.slow, cause.middle
    lines = [_headline(cause, top, of)]
    if not cause.stands_out:
        lines.append(
            f"The slowest are little slower than the middle ({seconds(slow.mean_s)} against "
            f"{seconds(middle.mean_s)}): there is no tail to explain, only what every one of the {of} takes."
        )
    lines += _evidence(cause, top, engine)
    second = _second(cause, top)
    lines += [second] if second else []
    client_s, in_middle_s = cause.client_queue_s
    if client_s > 0.0:
        lines.append(
            f"Before they were sent they had waited {seconds(client_s)} in the client (those in the middle "
            f"{seconds(in_middle_s)}), which no latency counts."
        )
    return [*lines, *_uncounted(cause)]


def _uncounted(cause: Cause) -> list[str]:
    """Who is not in the numbers, however long they waited."""
    if not cause.uncounted:
        return []
    ends = {"rejected": "were rejected", "aborted": "hung up", "in_flight": "were still in flight at the end"}
    counts = ", ".join(f"{count:,} {ends[end]}" for end, count in cause.uncounted.items())
    return [f"Not in these numbers, however long they waited: {counts}."]


def _nothing(cause: Cause) -> str:
    """Why there is nothing to explain."""
    if cause.metric == "itl":
        return "Nothing to explain: no finished request has two tokens, so there is no gap between tokens."
    return NOTHING_FINISHED


def _headline(cause: Cause, top: str, of: str) -> str:
    slow, middle = cause.slow, cause.middle
    share = slow.parts[top] / slow.mean_s if slow.mean_s else 0.0
    label = name_of(top, cause.metric)
    return (
        f"{label[0].upper()}{label[1:]}: {share:.0%} of what the slowest {slow.size:,} {of} take in the mean "
        f"({seconds(slow.parts[top])} of {seconds(slow.mean_s)}); in the middle it is "
        f"{seconds(middle.parts[top])} of {seconds(middle.mean_s)}."
    )


def name_of(part: str, metric: str) -> str:
    """The part's label; of a gap's decoding, which is that of the whole batch, without `own`."""
    return "decode" if metric == "itl" and part == "decode" else LABELS[part]


_MEANING = {
    "front_end": "It is the front end's time for each request; the engine itself is idle.",
    "under_way": "They came, or were planned, while steps were under way that had to end first.",
    "kv_blocks": "The KV cache had too few free blocks for the request at the head of the waiting line.",
    "held_back": "They waited for something of their own: an adapter, a grammar, KV from outside, a pause.",
    "prefill": "It is the time of their own prompts.",
    "decode": "It is their own decoding, as if alone on the GPU.",
    "by_prefills": "Prompt chunks of others ran in the same steps and made them longer.",
    "by_decodes": "Decodes of others ran in the same steps and made them longer.",
    "recompute": "They lost their KV blocks to others and had to compute them again.",
    "preempted": "They lost their KV blocks to others and waited to be admitted again.",
    "host": "The GPU waits for the CPU between steps, or for KV that is being copied.",
}


def _evidence(cause: Cause, top: str, engine: EngineSection) -> Iterator[str]:
    """What the cause means, with the numbers that show it."""
    slow, middle = cause.slow_chunk_tokens if cause.metric == "itl" else cause.slow_prompt_tokens
    if top == "seq_slots":
        yield f"max_num_seqs = {engine.max_num_seqs:,} requests were running: one of them had to end first."
    elif top == "token_budget":
        yield (
            f"The {engine.max_num_batched_tokens:,} tokens of a step (max_num_batched_tokens) went to "
            "requests that were running or stood before them."
        )
    elif top == "decode" and cause.metric == "itl":
        yield "It is the decode step itself: so many requests with such contexts decode together."
    else:
        yield _MEANING[top]
    if top == "kv_blocks" and cause.behind_share >= 0.005:
        yield f"{cause.behind_share:.0%} of that wait passed behind another request at the head of the line."
    if cause.metric == "itl" and slow > 1.2 * middle:
        yield (
            f"In the steps of the slow gaps {slow:,.0f} tokens were prefilled or recomputed in the mean, in "
            f"those of the middle {middle:,.0f}."
        )
    elif cause.metric != "itl" and not 0.8 * middle <= slow <= 1.25 * middle:
        yield f"Their prompts have {slow:,.0f} tokens in the mean, those in the middle {middle:,.0f}."
    slow, middle = cause.slow_output_tokens
    if cause.metric == "e2e" and not 0.8 * middle <= slow <= 1.25 * middle:
        yield f"Their answers have {slow:,.0f} tokens in the mean, those in the middle {middle:,.0f}."


def _second(cause: Cause, top: str) -> str | None:
    """The next cause, if it weighs a fifth or more."""
    weight = {key: share for key, share in cause.weight.items() if key != top}
    key = max(weight, key=lambda part: weight[part])
    if weight[key] < 0.2:
        return None
    slow_s, middle_s = seconds(cause.slow.parts[key]), seconds(cause.middle.parts[key])
    return f"Next: {name_of(key, cause.metric)}, {slow_s} ({middle_s} in the middle)."


def worst_minute_in_words(
    cause: Cause, window: Window, num_replicas: int, engine: EngineSection
) -> list[str]:
    """The worst stretch of time and what was different in it."""
    of = "gaps ended" if cause.metric == "itl" else "requests arrived"
    width_s = window.end_s - window.start_s
    name = "Worst minute" if width_s == 60 else f"Worst {width_s:.3g} s"
    lines = [
        f"{name}: {window.start_s:,.1f}–{window.end_s:,.1f} s, in which {window.slow:,} of the "
        f"{window.all_slow:,} slowest {of}.",
        f"{window.rate_per_s:.3g} requests/s came ({_ratio(window.rate_per_s, window.mean_rate_per_s)}) with "
        f"{window.prompt_tokens_per_s:,.0f} prompt tokens/s "
        f"({_ratio(window.prompt_tokens_per_s, window.mean_prompt_tokens_per_s)}); on one replica up to "
        f"{window.max_running:,} ran and {window.max_waiting:,} waited, KV was up to "
        f"{window.max_kv_share:.0%} full; {window.num_preemptions:,} preemptions.",
    ]
    if window.line_at_start and window.start_s - window.line_since_s > 0.1 * width_s:
        lines.append(
            f"At its start {window.line_at_start:,} waited already: the line had stood since "
            f"{window.line_since_s:,.1f} s, with {window.rate_since_per_s:.3g} requests/s from then on "
            f"({_ratio(window.rate_since_per_s, window.mean_rate_per_s)})."
        )
    budget = engine.max_num_batched_tokens
    if budget and window.longest_prompt_tokens > budget:
        lines.append(
            f"The longest prompt that came in it has {window.longest_prompt_tokens:,} tokens, the budget of "
            f"{-(-window.longest_prompt_tokens // budget)} steps; {window.over_budget:,} need more than one."
        )
    if num_replicas > 1 and window.replica_share > max(2.0 / num_replicas, 0.5):
        lines.append(f"Replica {window.replica} served {window.replica_share:.0%} of them.")
    return lines


def _ratio(value: float, mean: float) -> str:
    return f"{value / mean:.2g} × the run's mean" if mean else "the run has none"


def preemptions_in_words(cause: Cause, notes: Sequence[str]) -> list[str]:
    """The verdict on preemption, as the operator who got the warning wants it."""
    verdict = cause.preemption
    if not verdict.count:
        return ["No preemption."]
    costs = [
        f"{seconds(cost)} to p{p:g} E2E" if cost > 5e-7 else f"none to p{p:g}"
        for p, cost in sorted(verdict.cost_s.items(), reverse=True)
    ]
    adds = f"own stalls and recomputation add {', '.join(costs)}" if cause.slow.size else "nobody finished"
    histogram = ", ".join(f"{n:,} {_times(times)}" for times, n in _binned(verdict.histogram))
    lines = [
        f"{verdict.count:,} preemptions ({verdict.per_request:.2f}/request), {verdict.recomputed_share:.1%} "
        f"of all tokens computed were recomputed; {adds}.",
        f"Requests by preemptions: {histogram}; longest preempt–resume chain without a token: "
        f"{verdict.longest_chain}.",
    ]
    if verdict.useful_tokens_per_busy_s is not None:
        lines.append(
            f"Progress: {verdict.useful_tokens_per_busy_s:,.0f} useful tokens/s while engines were busy; all "
            f"stalls together took {seconds(verdict.stalled_s)}."
        )
    assert verdict.worst is not None
    if verdict.is_thrashing:
        lines.append(
            f"WARNING: thrashing. Request {verdict.worst[0]} was preempted {verdict.worst[1]} times; more "
            f"than {USUAL_PREEMPTIONS} is unusual."
        )
    if verdict.verdict not in ("usual", "thrashing", "no preemption"):
        lines += [f"WARNING: {note}" for note in notes if "ended by" in note]
    return lines


def _times(count: str) -> str:
    return {"0": "never", "1": "once", "2": "twice"}.get(count, f"{count} times")


def _binned(histogram: Mapping[int, int]) -> list[tuple[str, int]]:
    """Counts up to 4 one by one, then in doublings."""
    bins = [(str(count), histogram[count]) for count in range(5) if histogram.get(count)]
    low = 5
    while low <= max(histogram, default=0):
        high = 2 * low - 1
        inside = sum(n for count, n in histogram.items() if low <= count <= high)
        if inside:
            bins.append((f"{low}–{high}", inside))
        low = high + 1
    return bins
