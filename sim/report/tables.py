"""The tables of a report, from a run's summary and its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sim.report.document import Block, Heading, Paragraph, Table, key_values

if TYPE_CHECKING:
    import pandas as pd

Summary = Mapping[str, object]

LATENCIES = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E"))
MOST_VICTIMS = 10
"""So many of the requests that stalled longest are listed one by one."""


def summary_tables(summary: Summary) -> Iterator[Block]:
    """The tables that need no more than a summary, under their headings."""
    yield from _headline(summary)
    yield from _latency(summary)
    yield from _slo(summary)
    yield from _groups(summary, "classes", "Client classes")
    yield from _groups(summary, "adapters", "LoRA adapters")
    yield from _engine(summary)


def run_tables(summary: Summary, requests: pd.DataFrame) -> Iterator[Block]:
    """Every table of one run, under its heading."""
    yield from summary_tables(summary)
    yield from _preemptions(summary, requests)


def number(value: object) -> str:
    """Counts in full, measurements with three digits: a model's numbers do not bear more."""
    if not isinstance(value, (int, float)) or value != value:
        return "–"
    if isinstance(value, int) or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: object) -> str:
    """A share (0..1) in per cent."""
    return f"{100.0 * share:.1f}" if isinstance(share, (int, float)) else "–"


def _headline(summary: Summary) -> Iterator[Block]:
    ends = ("finished", "aborted", "rejected", "in_flight", "not_sent")
    counts = ", ".join(f"{number(summary.get(f'num_{end}'))} {end.replace('_', ' ')}" for end in ends)
    yield Heading(2, "Headline")
    yield key_values(
        [
            ("requests", f"{number(summary.get('num_requests'))}: {counts}"),
            ("request throughput (req/s)", number(summary.get("request_throughput"))),
            ("goodput (req/s)", number(summary.get("request_goodput"))),
            ("output tokens (tok/s)", number(summary.get("output_throughput"))),
            ("output tokens per GPU (tok/s)", number(summary.get("output_throughput_per_gpu"))),
            ("all tokens (tok/s)", number(summary.get("total_token_throughput"))),
        ]
    )


def _latency(summary: Summary) -> Iterator[Block]:
    columns = ("mean", "median", "std", "p90", "p95", "p99")
    thin = summary.get("thin_percentiles")
    marked = set(thin) if isinstance(thin, list) else set()
    rows = []
    for metric, name in LATENCIES:
        keys = [f"{column}_{metric}_ms" for column in columns]
        rows.append((name, *(number(summary.get(key)) + ("°" if key in marked else "") for key in keys)))
    yield Heading(2, "Latency")
    yield Table(("ms", *columns), tuple(rows), (False, *[True] * len(columns)))
    if marked:
        yield Paragraph("° fewer than 10 samples above it: little more than the maximum.")


def _slo(summary: Summary) -> Iterator[Block]:
    targets = summary.get("slo")
    if not isinstance(targets, Mapping):
        return
    rows = []
    for key, target in targets.items():
        met = {True: "yes", False: "**no**", None: ""}[target["met"]]
        met = "no data" if target["attainment"] is None else met
        rows.append((key, number(target["limit_s"]), percent(target["attainment"]), met))
    rows.append(("all at once", "", percent(summary.get("slo_attainment")), ""))
    yield Heading(2, "SLO")
    yield Table(("target", "limit (s)", "attained (%)", "met"), tuple(rows), (False, True, True, False))
    yield Paragraph(f"Judged: {number(summary.get('slo_judged_requests'))} requests.")


def _groups(summary: Summary, key: str, title: str) -> Iterator[Block]:
    """A table with a row for each group of requests, where there are groups."""
    groups = summary.get(key)
    if not isinstance(groups, Mapping):
        return
    columns = ["completed", "failed", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms"]
    columns += ["p99_e2el_ms", "max_wait_s", "num_preemptions"]
    rows = tuple(
        (
            str(name),
            *(number(row[column]) for column in columns),
            percent(row["token_share"]),
            percent(row["slo_attainment"]),
        )
        for name, row in groups.items()
    )
    header = ("", *(column.replace("_", " ") for column in columns), "token share (%)", "SLO (%)")
    yield Heading(2, title)
    yield Table(header, rows, (False, *[True] * (len(header) - 1)))
    if key == "classes":
        yield Paragraph(f"Jain's index of the speeds they see: {number(summary['class_jain_index'])}.")


def _engine(summary: Summary) -> Iterator[Block]:
    kv = " / ".join(percent(summary.get(f"kv_usage_{which}")) for which in ("p50", "p95", "max"))
    running = " / ".join(number(summary.get(f"num_running_{which}")) for which in ("p50", "p95", "max"))
    shares = summary.get("time_share_by_bound")
    bounds = sorted(shares.items(), key=lambda item: -item[1]) if isinstance(shares, Mapping) else []
    rows = [
        ("steps", number(summary.get("num_steps"))),
        ("KV in use, p50 / p95 / max (%)", kv),
        ("requests running on a replica, p50 / p95 / max", running),
        ("KV blocks per replica", number(summary.get("num_gpu_blocks"))),
        ("preemptions", number(summary.get("num_preemptions"))),
        ("preemption tax (%)", percent(summary.get("recomputed_token_share"))),
        ("prefix hit rate (%)", percent(summary.get("prefix_cache_hit_rate"))),
        ("GPUs at work, mean over time and replicas (%)", percent(summary.get("busy_share"))),
        (
            "what bounds the steps, by their time",
            ", ".join(f"{name} {percent(share)} %" for name, share in bounds if share >= 0.0005),
        ),
    ]
    rows += [(name, show(summary[key])) for key, name, show in _FEATURES if key in summary]
    yield Heading(2, "Engine")
    yield key_values(rows)


def _preemptions(summary: Summary, requests: pd.DataFrame) -> Iterator[Block]:
    """How often requests were preempted, and those that stalled longest; nothing without preemptions."""
    if "num_preemptions" not in requests or not requests["num_preemptions"].any():
        return
    victims = requests[requests["num_preemptions"] > 0]
    counts = victims["num_preemptions"].value_counts().sort_index()
    often = ", ".join(f"{number(n)} {times}×" for times, n in zip(counts.index, counts.tolist(), strict=True))
    yield Heading(2, "Preemptions")
    yield Paragraph(
        f"{number(int(victims['num_preemptions'].sum()))} in the whole run; of {number(len(requests))} "
        f"requests {number(len(victims))} were preempted: {often}. Together they waited "
        f"{number(float(victims['stalled_s'].sum()))} s to come back and recomputed "
        f"{number(int(victims['recomputed_tokens'].sum()))} tokens."
    )
    worst = victims.sort_values(["stalled_s", "request_id"], ascending=[False, True]).head(MOST_VICTIMS)
    e2e_s = worst["last_token_s"] - worst["arrival_s"]
    columns = ("request_id", "num_preemptions", "stalled_s", "recomputed_tokens")
    shown = zip(
        *(worst[name].tolist() for name in columns),
        e2e_s.tolist(),
        worst["prompt_tokens"].tolist(),
        worst["output_tokens"].tolist(),
        strict=True,
    )
    header = (
        "stalled longest: request",
        "preempted",
        "stalled (s)",
        "recomputed tokens",
        "E2E (s)",
        "prompt tokens",
        "output tokens",
    )
    rows = tuple(tuple(number(value) for value in row) for row in shown)
    yield Table(header, rows, (True,) * len(header))


_FEATURES: tuple[tuple[str, str, Callable[[object], str]], ...] = (
    ("spec_decode_acceptance_rate", "accepted draft tokens (%)", number),
    ("spec_decode_acceptance_length", "tokens per verification", number),
    ("external_prefix_cache_hit_rate", "external cache hit rate (%)", percent),
    ("external_cache_loads", "external cache loads", number),
    ("external_cache_link_busy_share", "external cache link busy (%)", percent),
    ("grammars_compiled", "grammars compiled", number),
    ("num_sessions", "sessions", number),
    ("num_sessions_left_early", "sessions left early", number),
    ("aborted_output_tokens", "output tokens of aborted requests", number),
)
"""Rows for features, if a run has them: key of the summary, name, form."""


def differences(labels: Sequence[str], summaries: Sequence[Summary]) -> Table:
    """A row for each number, a column for each run, and how far each differs from the first in per cent."""
    header = [
        "",
        *labels,
        *(["difference"] if len(labels) == 2 else (f"{label} − first" for label in labels[1:])),
    ]
    rows = []
    for key, name, share in _compared():
        values = [summary.get(key) for summary in summaries]
        if not any(isinstance(value, (int, float)) for value in values):
            continue
        show = percent if share else number
        thin = [
            key in marks if isinstance(marks := s.get("thin_percentiles"), list) else False for s in summaries
        ]
        cells = [show(value) + ("°" if few else "") for value, few in zip(values, thin, strict=True)]
        rows.append((name, *cells, *(_difference(value, values[0], share) for value in values[1:])))
    return Table(tuple(header), tuple(rows), (False, *[True] * (len(header) - 1)))


def _compared() -> Iterator[tuple[str, str, bool]]:
    """Key of the summary, name, and whether it is a share."""
    yield "completed", "requests completed", False
    yield "failed", "requests failed", False
    yield "request_throughput", "request throughput (req/s)", False
    yield "request_goodput", "goodput (req/s)", False
    yield "output_throughput", "output tokens (tok/s)", False
    yield "output_throughput_per_gpu", "output tokens per GPU (tok/s)", False
    for metric, name in LATENCIES:
        for column in ("mean", "median", "p90", "p99"):
            yield f"{column}_{metric}_ms", f"{'p50' if column == 'median' else column} {name} (ms)", False
    yield "slo_attainment", "SLO attainment (%)", True
    yield "kv_usage_p50", "KV in use, p50 (%)", True
    yield "kv_usage_p95", "KV in use, p95 (%)", True
    yield "num_running_p50", "running on a replica, p50", False
    yield "num_running_p95", "running on a replica, p95", False
    yield "num_preemptions", "preemptions", False
    yield "recomputed_token_share", "preemption tax (%)", True
    yield "prefix_cache_hit_rate", "prefix hit rate (%)", True
    yield "busy_share", "GPUs at work (%)", True


def _difference(value: object, base: object, share: bool) -> str:
    if not isinstance(value, (int, float)) or not isinstance(base, (int, float)):
        return "–"
    if share:
        return f"{round(100.0 * (value - base), 1) + 0.0:+.1f} pt" if value != base else "="
    if value == base:
        return "="
    return f"{100.0 * (value / base - 1.0):+.1f} %" if base else f"{value - base:+.3g}"
