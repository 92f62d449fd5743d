"""What differs between a baseline and now: numbers, and the layers that no longer do what they did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sim.evidence.regress import recorded
from sim.evidence.regress.baseline import (
    METRICS,
    STEP_COSTS,
    Baseline,
    Decisions,
    Dispatch,
    Metric,
    Observation,
)
from sim.evidence.regress.layers import MARK_EVERY

NOT_COMPARED = ("name", "description", "workload.path")
"""Settings that move no number, or are compared by what they give."""


@dataclass(frozen=True, slots=True)
class Change:
    """A number beside what it was; `allowed` says whether the baseline lets the difference pass.

    `band_percent` is the median error that validation found for such a number, in %, if it knows one.
    """

    scenario: str
    metric: Metric
    before: float | None
    now: float | None
    allowed: bool
    band_percent: float | None

    @property
    def relative(self) -> float | None:
        """The difference as a share of what it was; None where that has no meaning."""
        if self.before is None or self.now is None or not self.before:
            return None
        return self.now / self.before - 1.0

    @property
    def bands(self) -> float | None:
        """The difference as a multiple of the validation error."""
        if self.relative is None or not self.band_percent:
            return None
        return abs(100.0 * self.relative) / self.band_percent

    @property
    def short_name(self) -> str:
        """The number's name without its unit."""
        return self.metric.name.partition(" (")[0]

    @property
    def size(self) -> str:
        """How large the difference is, in words."""
        if self.before is None or self.now is None:
            same = self.before is self.now
            return "–" if same else "appeared" if self.before is None else "is gone"
        if self.before == self.now:
            return "="
        if self.relative is None:
            return f"{self.now - self.before:+.3g}"
        percent = 100.0 * self.relative
        return f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{percent:+.1g} %"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that no longer does what it did, and what shows it."""

    name: str
    evidence: str


@dataclass(frozen=True, slots=True)
class ScenarioDifference:
    """All of one scenario: every number, and the layers that changed; or `fault`, why there are none."""

    name: str
    changes: tuple[Change, ...]
    layers: tuple[Layer, ...]
    band: str | None
    fault: str | None = None

    @property
    def beyond(self) -> list[Change]:
        """Differences that the baseline does not allow, the largest first."""
        moved = [change for change in self.changes if not change.allowed]
        return sorted(moved, key=lambda c: -abs(c.relative) if c.relative is not None else float("-inf"))

    @property
    def differs(self) -> bool:
        """Whether anything is not as the baseline has it."""
        return bool(self.fault or self.layers or self.beyond)

    @property
    def headline(self) -> Change:
        """The number that is named first: the largest against the validation error, else the largest."""
        known = [change for change in self.beyond if change.bands is not None]
        return max(known, key=lambda change: change.bands or 0.0) if known else self.beyond[0]

    @property
    def layer_names(self) -> list[str]:
        """The layers that changed, each once."""
        return list(dict.fromkeys(layer.name for layer in self.layers))


def differences(baseline: Baseline, now: Mapping[str, Observation]) -> tuple[ScenarioDifference, ...]:
    """Hold what `observe` found now against the baseline, scenario by scenario."""
    found = []
    for name in sorted({*baseline.scenarios, *now}):
        before, own = baseline.scenarios.get(name), now.get(name)
        if before is None:
            found.append(ScenarioDifference(name, (), (), None, "is not in the baseline"))
        elif own is None:
            found.append(ScenarioDifference(name, (), (), None, "is in the baseline, but its file is gone"))
        else:
            found.append(_difference(name, before, own, baseline))
    return tuple(found)


def _difference(name: str, before: Observation, now: Observation, baseline: Baseline) -> ScenarioDifference:
    band = now["band"] or {}
    changes = tuple(
        _change(name, metric, before["metrics"].get(metric.key), now["metrics"][metric.key], baseline, band)
        for metric in METRICS
    )
    layers = tuple(_layers(before, now, baseline.allow.get(STEP_COSTS, 0.0)))
    if not layers and any(not change.allowed for change in changes):
        layers = (
            Layer(
                "simulation",
                "workload, scheduler, cost model, memory plan and cluster do what they did on the baseline's "
                "input: what is left is how times add up in the simulation and how they are measured",
            ),
        )
    return ScenarioDifference(name, changes, layers, band.get("line"))


def _change(
    scenario: str, metric: Metric, before: float | None, now: float | None, baseline: Baseline, band: Any
) -> Change:
    if before is None or now is None:
        same = before is now
    else:
        same = abs(now - before) <= baseline.allowed(metric.key) * max(abs(before), abs(now))
    errors = band.get("errors", {}).get(metric.band) if metric.band else None
    return Change(scenario, metric, before, now, same, errors[0] if errors else None)


# --- layers -----------------------------------------------------------------------------------------------


def _layers(before: Observation, now: Observation, allowed_costs: float) -> Iterator[Layer]:
    edited = list(_edited(before["settings"], now["settings"]))
    settings = [text for path, text in edited if not path.startswith("workload.")]
    if settings:
        yield Layer("settings", "; ".join(settings))
    requests = list(recorded.moved(before["workload"], now["workload"]))
    if requests:
        fields = [text for path, text in edited if path.startswith("workload.") or path == "seed"]
        yield Layer("workload", "; ".join([*fields, *requests]))
    then, today = before["probe"], now["probe_of_baseline"]
    if today is None:
        yield Layer(
            "settings", "the baseline's own settings are no longer valid, so its layers cannot be probed"
        )
        return
    if then["num_blocks"] != today["num_blocks"]:
        yield Layer(
            "memory plan", f"{then['num_blocks']:,} → {today['num_blocks']:,} KV blocks for the same settings"
        )
    costs = _costs(then["step_costs_s"], today["step_costs_s"], allowed_costs)
    if costs:
        yield Layer("cost model", costs)
    if then["decisions"] != today["decisions"]:
        yield Layer("scheduler", _decisions(then["decisions"], today["decisions"]))
    elif then["dispatch"] != today["dispatch"]:
        name = "cluster" if then["decisions"] else "scheduler or cluster"
        yield Layer(name, _dispatch(then["dispatch"], today["dispatch"]))


def _edited(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Path and `path a → b` of every setting that is not what it was."""
    flat = [dict(_leaves(settings, "")) for settings in (before, now)]
    for path in dict.fromkeys([*flat[0], *flat[1]]):
        values = [side.get(path) for side in flat]
        if values[0] != values[1] and path not in NOT_COMPARED:
            yield path, f"{path} {_value(values[0])} → {_value(values[1])}"


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _value(value: object) -> str:
    return "none" if value is None else str(value)


def _costs(then: Mapping[str, list[float]], today: Mapping[str, list[float]], allowed: float) -> str:
    """Which fixed steps take another time, by how much; empty if none does."""
    moved: list[tuple[float, str]] = []
    for name in dict.fromkeys([*then, *today]):
        if name not in then or name not in today:
            moved.append((float("inf"), f"{name} {'is new' if name not in then else 'is gone'}"))
            continue
        for where, a, b in zip(("GPU", "host"), then[name], today[name], strict=True):
            if abs(b - a) > allowed * max(abs(a), abs(b)):
                size = b / a - 1.0 if a else float("inf")
                change = f"{100 * size:+.3g} %" if a else f"{1000 * b:.3g} ms from 0"
                moved.append((abs(size), f"{name} {change} on the {where}"))
    if not moved:
        return ""
    most = max(moved)[1]
    return f"{len(moved)} of {2 * len(then)} times of fixed steps, most of all {most}"


def _decisions(then: Decisions | None, today: Decisions | None) -> str:
    if then is None or today is None:
        return "it is driven differently from what it was"
    counts = [
        f"{key.replace('_', ' ')} {then[key]:,} → {today[key]:,}"
        for key in ("steps", "scheduled_tokens", "preemptions", "admissions")
        if then[key] != today[key]
    ]
    marks = zip(then["marks"], today["marks"], strict=False)
    same = next(
        (place for place, (a, b) in enumerate(marks) if a != b), min(len(then["marks"]), len(today["marks"]))
    )
    since = f"on the baseline's requests its decisions part after step {same * MARK_EVERY:,}"
    return f"{since} of {then['steps']:,}" + (f" ({', '.join(counts)})" if counts else "")


def _dispatch(then: Dispatch, today: Dispatch) -> str:
    counts = [
        f"{key.replace('_', ' ')} {then[key]} → {today[key]}"
        for key in ("steps", "output_tokens")
        if then[key] != today[key]
    ]
    what = "with steps of equal time other things become of the same requests"
    return what + (f" ({'; '.join(counts)})" if counts else "")
