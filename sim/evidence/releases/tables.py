"""A comparison as tables: on the screen and in `report.md` the same text, in `releases.csv` every number."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sim.errors import input_error
from sim.evidence.releases.differences import Difference
from sim.evidence.releases.runs import Comparison, Effect, Outcome
from sim.version import dryserve_version

SMALL = 0.001
"""Relative changes, and changes of shares, below which a difference is only named."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of the summary, how it is called, and whether changes are told as ratio, count or share."""

    key: str
    name: str
    short: str
    kind: Literal["ratio", "count", "share"] = "ratio"


METRICS = (
    Metric("output_throughput", "output throughput (tok/s)", "tok/s"),
    Metric("median_ttft_ms", "TTFT p50 (ms)", "TTFT p50"),
    Metric("p99_ttft_ms", "TTFT p99 (ms)", "TTFT p99"),
    Metric("median_tpot_ms", "TPOT p50 (ms)", "TPOT p50"),
    Metric("p99_tpot_ms", "TPOT p99 (ms)", "TPOT p99"),
    Metric("median_e2el_ms", "E2E p50 (ms)", "E2E p50"),
    Metric("p99_e2el_ms", "E2E p99 (ms)", "E2E p99"),
    Metric("completed", "completed requests", "completed", "count"),
    Metric("num_preemptions", "preemptions", "preempt.", "count"),
    Metric("recomputed_token_share", "recomputed tokens", "recomp.", "share"),
    Metric("prefix_cache_hit_rate", "prefix hit rate", "hits", "share"),
    Metric("slo_attainment", "SLO attainment", "SLO", "share"),
)


def render(found: Comparison) -> str:
    """The whole comparison as Markdown that reads well on a screen; without a final newline."""
    older, newer = found.older.engine.version, found.newer.engine.version
    lines = [f"# {found.newer.name}: vLLM {older} and {newer}", ""]
    lines += [found.newer.description, ""] if found.newer.description else []
    lines += [*_both(found), ""]
    moved = sorted((e for e in found.effects if _size(found, e) >= SMALL), key=lambda e: -_size(found, e))
    lines += [f"## What each difference does in {newer}", ""]
    if moved:
        lines += [
            f"Each cell is the run of {newer} against the same run with this one thing as in {older}.",
            "Effects need not add up: where two things do the same, undoing one alone shows little.",
            "",
            *_effects(found, moved),
            "",
        ]
    lines += _silent(found, moved)
    lines += _failed(found)
    lines += ["", *_by_hand(found, moved)]
    return "\n".join([*lines, "", "## Notes", "", *_notes(found)])


def write(found: Comparison, root: Path | str = "runs") -> Path:
    """Write `report.md` and `releases.csv` into a folder named by what was compared; return the folder.

    Raises `InputError` if it cannot be written.
    """
    older, newer = found.older.engine.version, found.newer.engine.version
    told = "\n".join([dryserve_version(), found.older.dump_resolved(), found.newer.dump_resolved()])
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    folder = Path(root) / f"{found.newer.name}-{older}-{newer}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.md").write_text(render(found) + "\n", encoding="utf-8")
        (folder / "releases.csv").write_text(table_csv(found), encoding="utf-8", newline="")
    except OSError as error:
        raise input_error(f"cannot be written: {error.strerror}", where=str(folder)) from None
    return folder


def table_csv(found: Comparison) -> str:
    """One row for each run: both releases, then the newer with each difference undone. Numbers in full."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["run", "kind", "name", "older", "newer", "set", "failure", *(m.key for m in METRICS)])
    for scenario, outcome in ((found.older, found.older_outcome), (found.newer, found.newer_outcome)):
        rows.writerow(["release", "", scenario.engine.version, "", "", "", *_numbers(outcome)])
    for effect in found.effects:
        it = effect.difference
        run = "undone" if effect.undone else "not asked for"
        numbers = _numbers(effect.undone or found.newer_outcome)
        rows.writerow([run, it.kind, it.name, it.older, it.newer, it.setting or "", *numbers])
    return text.getvalue()


def _numbers(outcome: Outcome) -> list[object]:
    return [outcome.failure or "", *(outcome.summary.get(metric.key) for metric in METRICS)]


# --- sections of the page -----------------------------------------------------------------------------------


def _both(found: Comparison) -> list[str]:
    rows = [["prediction", found.older.engine.version, found.newer.engine.version, "change"]]
    for metric in _shown([found.older_outcome, found.newer_outcome]):
        was, now = (_number(each, metric) for each in (found.older_outcome, found.newer_outcome))
        rows.append([metric.name, _value(was, metric), _value(now, metric), _change(was, now, metric)])
    return _table(rows)


def _effects(found: Comparison, moved: Sequence[Effect]) -> list[str]:
    outcomes = [effect.undone for effect in moved if effect.undone]
    metrics = [
        metric
        for metric in _shown([found.newer_outcome])
        if any(_number(each, metric) != _number(found.newer_outcome, metric) for each in outcomes)
    ]
    rows = [["", *(metric.short for metric in metrics)]]
    for effect in moved:
        assert effect.undone is not None
        cells = [
            _change(_number(effect.undone, metric), _number(found.newer_outcome, metric), metric)
            for metric in metrics
        ]
        rows.append([_name(effect.difference), *cells])
    together = [
        _change(_number(found.older_outcome, metric), _number(found.newer_outcome, metric), metric)
        for metric in metrics
    ]
    return _table([*rows, ["all together", *together]])


def _name(difference: Difference) -> str:
    """A rule by its name, which is on or off; all else with what it was and is."""
    if difference.kind == "rule":
        return difference.name
    return f"{difference.name}, {difference.older} → {difference.newer}"


def _silent(found: Comparison, moved: Sequence[Effect]) -> list[str]:
    """What moved nothing, in one line each."""
    rest = [effect for effect in found.effects if effect not in moved and not _has_failed(effect)]
    little = [e for e in rest if e.undone and _size(found, e) > 0.0]
    nothing = [e for e in rest if e.undone and _size(found, e) == 0.0]
    never = [e for e in rest if e.undone is None]
    lines = []
    for effects, words in (
        (little, f"Moved nothing by more than {SMALL:.1%}"),
        (nothing, "Moved nothing"),
        (never, "Never asked for in this run"),
    ):
        if effects:
            lines.append(f"{words}: {', '.join(effect.difference.name for effect in effects)}.")
    return lines or (["Everything that differs moved something."] if moved else ["Nothing differs."])


def _failed(found: Comparison) -> list[str]:
    failed = [effect for effect in found.effects if _has_failed(effect)]
    return [f"Could not be undone: {e.difference.name}: {e.undone.failure}." for e in failed if e.undone]


def _by_hand(found: Comparison, moved: Iterable[Effect]) -> list[str]:
    newer = found.newer.engine.version
    settings = [effect.difference.setting for effect in moved]
    lines = [f"By hand: `{found.command} --set engine.version={newer}`, and to undo one of these also"]
    lines += [f"* `--set {setting}`" for setting in settings if setting]
    return lines if len(lines) > 1 else []


def _notes(found: Comparison) -> list[str]:
    notes: dict[str, None] = {
        f"* one run each, seed {found.newer.seed}: with another seed all numbers scatter": None
    }
    for scenario, outcome in ((found.older, found.older_outcome), (found.newer, found.newer_outcome)):
        told = outcome.summary["notes"]
        assert isinstance(told, Sequence)
        notes |= dict.fromkeys(f"* {scenario.engine.version}: {note}" for note in told)
        thin = outcome.summary["thin_percentiles"]
        assert isinstance(thin, Sequence)
        names = [metric.short for metric in METRICS if metric.key in thin]
        if names:
            notes[f"* {scenario.engine.version}: fewer than 10 samples above {', '.join(names)}"] = None
    return list(notes)


# --- numbers ------------------------------------------------------------------------------------------------


def _has_failed(effect: Effect) -> bool:
    return effect.undone is not None and effect.undone.failure is not None


def _size(found: Comparison, effect: Effect) -> float:
    """The largest change that a difference makes, as a ratio; a change of a count counts as large."""
    if effect.undone is None or _has_failed(effect):
        return 0.0
    sizes = [0.0]
    for metric in METRICS:
        was, now = _number(effect.undone, metric), _number(found.newer_outcome, metric)
        if was == now:
            continue
        if was is None or now is None or metric.kind == "count":
            sizes.append(SMALL)
        elif metric.kind == "share":
            sizes.append(abs(now - was))
        else:
            sizes.append(abs(now - was) / max(abs(was), abs(now)))
    return max(sizes)


def _shown(outcomes: Sequence[Outcome]) -> list[Metric]:
    return [m for m in METRICS if any(_number(each, m) is not None for each in outcomes)]


def _number(outcome: Outcome, metric: Metric) -> float | None:
    value = outcome.summary.get(metric.key)
    return float(value) if isinstance(value, (int, float)) else None


def _value(value: float | None, metric: Metric) -> str:
    if value is None:
        return "–"
    if metric.kind == "share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if metric.kind == "count" or abs(value) >= 100 else f"{value:.2f}"


def _change(was: float | None, now: float | None, metric: Metric) -> str:
    if was is None or now is None:
        return "–"
    if was == now:
        return "="
    if metric.kind == "count":
        return f"{now - was:+,.0f}"
    if metric.kind == "share":
        return f"{100 * (now - was):+.1f} pp"
    return f"{now / was - 1:+.1%}" if was else "–"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table whose columns are aligned: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (cell.ljust if i == 0 else cell.rjust for i, cell in enumerate(cells))
        padded = [first(widths[0]), *(pad(width) for pad, width in zip(others, widths[1:], strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|".join([":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])])
    return [line(rows[0]), f"|{rule}|", *(line(row) for row in rows[1:])]
