"""What `dryserve run` prints: one screen that follows the block of `vllm bench serve`, and then says more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sim.report.cells import duration, error_lines, facts_line, note_lines

Summary = Mapping[str, object]

WIDTH, LABEL = 50, 40

_METRICS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E"))
THIN = "*"
MOST_CLASSES = 12


def render(summary: Summary) -> str:
    """The screen for a summary; without a final newline."""
    lines = [*_counts(summary), *_latencies(summary), *_engine(summary), *_slo(summary)]
    lines += [*_classes(summary), *_ends(summary)]
    return "\n".join([*lines, "=" * WIDTH, *footer(summary)])


def _counts(summary: Summary) -> Iterator[str]:
    """The head of vLLM's block: same labels, same columns, same digits."""
    yield _banner("Serving Benchmark Result", "=", " ")
    yield _row("Successful requests:", summary["completed"])
    yield _row("Failed requests:", summary["failed"])
    if summary["max_concurrency"] is not None:
        yield _row("Maximum request concurrency:", summary["max_concurrency"])
    if summary["request_rate"] != "inf":
        yield _row("Request rate configured (RPS):", _fixed(summary["request_rate"]))
    yield _row("Benchmark duration (s):", _fixed(summary["duration"]))
    yield _row("Total input tokens:", summary["total_input_tokens"])
    yield _row("Total generated tokens:", summary["total_output_tokens"])
    yield _row("Request throughput (req/s):", _fixed(summary["request_throughput"]))
    if summary["request_goodput"] is not None:
        yield _row("Request goodput (req/s):", _fixed(summary["request_goodput"]))
    yield _row("Output token throughput (tok/s):", _fixed(summary["output_throughput"]))
    yield _row("Peak output token throughput (tok/s):", _fixed(summary["max_output_tokens_per_s"]))
    yield _row("Peak concurrent requests:", _fixed(summary["max_concurrent_requests"]))
    yield _row("Total token throughput (tok/s):", _fixed(summary["total_token_throughput"]))


def _latencies(summary: Summary) -> Iterator[str]:
    """vLLM's three sections as one table: rows TTFT, TPOT, ITL, E2E; columns mean, p50, p90, p99."""
    yield _banner("Latency (ms)", "-")
    yield f"{'':<10}" + "".join(f"{name:>10}" for name in ("mean", "p50", "p90", "p99"))
    thin = summary["thin_percentiles"]
    assert isinstance(thin, Sequence)
    for key, name in _METRICS:
        cells = []
        for statistic in ("mean", "median", "p90", "p99"):
            label = f"{statistic}_{key}_ms"
            cells.append(_fixed(summary[label]) + (THIN if label in thin else " "))
        yield f"{name:<9}" + "".join(f"{cell:>10}" for cell in cells)
    if thin:
        yield f"{THIN} fewer than 10 samples above"


def _engine(summary: Summary) -> Iterator[str]:
    yield _banner("Engine", "-")
    usage = " / ".join(_percent(summary[f"kv_usage_{which}"]) for which in ("p50", "p95", "max"))
    yield _row("KV cache usage p50 / p95 / max:", usage)
    yield _row("Running requests p50 / p95 / max:", _running(summary))
    yield _row("Preemptions:", summary["num_preemptions"])
    yield _row("Recomputed tokens:", _percent(summary["recomputed_token_share"]))
    yield _row("Prefix cache hit rate:", _percent(summary["prefix_cache_hit_rate"]))
    shares = summary["time_share_by_bound"]
    assert isinstance(shares, Mapping)
    largest = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{name} {share:.0%}" for name, share in largest if share >= 0.005)
    yield _row("Step time bound by:", shown or "-")
    for key, label, form in _FEATURES:
        if key in summary:
            yield _row(label, form(summary[key]))


def _running(summary: Summary) -> str:
    """Requests running on a replica, over time."""
    numbers = [summary[f"num_running_{which}"] for which in ("p50", "p95", "max")]
    return " / ".join("-" if number is None else f"{number:.0f}" for number in numbers)


def _slo(summary: Summary) -> Iterator[str]:
    single = summary["slo"]
    if not isinstance(single, Mapping):
        return
    yield _banner("SLO Attainment", "-")
    for key, target in single.items():
        verdict = {True: " met", False: " MISSED", None: ""}[target["met"]]
        share = "no data" if target["attainment"] is None else _percent(target["attainment"]) + verdict
        yield _row(f"{key} <= {duration(target['limit_s'])}:", share)
    yield _row("All at once:", _percent(summary["slo_attainment"]))


def _classes(summary: Summary) -> Iterator[str]:
    """A line for each client class, the first ones if there are many."""
    classes = summary.get("classes")
    if not isinstance(classes, Mapping):
        return
    yield _banner("Client Classes (ms)", "-")
    yield f"{'class':<15}{'done':>7}{'p99 TTFT':>11}{'p99 TPOT':>10}{'SLO':>7}"
    for name, row in list(classes.items())[:MOST_CLASSES]:
        ttft, tpot = _fixed(row["p99_ttft_ms"]), _fixed(row["p99_tpot_ms"])
        slo = _percent(row["slo_attainment"])
        yield f"{name[:14]:<15}{row['completed']:>7}{ttft:>11}{tpot:>10}{slo:>7}"
    if len(classes) > MOST_CLASSES:
        yield f"... and {len(classes) - MOST_CLASSES} more in summary.json"


def _ends(summary: Summary) -> Iterator[str]:
    """Requests that did not end well; nothing if all did."""
    counts = [(name, summary[f"num_{name}"]) for name in ("aborted", "rejected", "in_flight", "not_sent")]
    if not any(count for _, count in counts):
        return
    yield _banner("Not finished", "-")
    for name, count in counts:
        if count:
            yield _row(f"{name.replace('_', ' ').capitalize()}:", count)
    if "aborted_output_tokens" in summary:
        yield _row("Output tokens of aborted requests:", summary["aborted_output_tokens"])
    rejections = summary["rejections"]
    assert isinstance(rejections, Mapping)
    for reason, count in rejections.items():
        yield f"  {count} x {reason}"


def footer(summary: Summary) -> Iterator[str]:
    """What every answer carries: release, loop, seed, warm-up, calibration, its error, and notes."""
    yield facts_line([summary], f"seed {summary['seed']}")
    yield from error_lines([summary])
    yield from note_lines([summary], most=None)


def _banner(title: str, fill: str, space: str = "") -> str:
    return f"{space + title + space:{fill}^{WIDTH}}"


def _row(label: str, value: object) -> str:
    return f"{label:<{LABEL}} {value}"


def _fixed(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, (int, float)) else "-"


def _percent(share: object) -> str:
    return f"{share:.1%}" if isinstance(share, (int, float)) else "-"


def _percentage(value: object) -> str:
    return f"{value:.1f}%" if isinstance(value, (int, float)) else "-"


_FEATURES = (
    ("external_prefix_cache_hit_rate", "External cache hit rate:", _percent),
    ("external_cache_link_busy_share", "External cache link busy:", _percent),
    ("spec_decode_acceptance_rate", "Accepted draft tokens:", _percentage),
    ("spec_decode_acceptance_length", "Tokens per verification:", _fixed),
    ("grammars_compiled", "Grammars compiled:", str),
    ("num_sessions", "Sessions:", str),
)
"""Lines for features, if a run has them: key of the summary, label, form."""
