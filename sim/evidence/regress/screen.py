"""What `dryserve regress` prints: a verdict a scenario, the layer, and the numbers that moved most."""

from __future__ import annotations

from sim.evidence.regress.compare import Change, Regression, ScenarioDifference

MOST_NUMBERS = 6


def render(found: Regression, folder: str) -> str:
    """The screen."""
    failed = found.failed
    verdict = f"{len(failed)} differ" if failed else "all as it was"
    against_what = f"against the baseline of dryserve {found.before.version}"
    lines = [f"{len(found.scenarios)} scenarios of {folder} {against_what}: {verdict}"]
    for scenario in failed:
        lines += ["", *_scenario(scenario)]
    if failed:
        lines += ["", *(f"FAIL {sentence(scenario)}" for scenario in failed)]
    return "\n".join(lines)


def sentence(scenario: ScenarioDifference) -> str:
    """What failed in one line: scenario, number, size, layer."""
    if scenario.fault:
        return f"{scenario.name}: {scenario.fault}"
    names = list(dict.fromkeys(layer.name for layer in scenario.layers))
    layers, beyond = ", ".join(names), scenario.beyond
    if not beyond:
        does = "does what it did" if len(names) == 1 else "do what they did"
        return f"{scenario.name}: no number moved, but {' and '.join(names)} no longer {does}"
    first = headline(scenario)
    more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
    return f"{scenario.name}: {short(first)} {size(first)}{more}; likely layer: {layers}"


def short(change: Change) -> str:
    """The number's name without its unit."""
    return change.metric.name.partition(" (")[0]


def headline(scenario: ScenarioDifference) -> Change:
    """The number that is named first: the largest against the validation error, else the largest."""
    beyond = scenario.beyond
    known = [change for change in beyond if change.bands is not None]
    return max(known, key=lambda change: change.bands or 0.0) if known else beyond[0]


def _scenario(scenario: ScenarioDifference) -> list[str]:
    lines = [scenario.name]
    if scenario.fault:
        return [*lines, f"  {scenario.fault}"]
    lines += [f"  {layer.name}: {layer.evidence}" for layer in scenario.layers]
    beyond = scenario.beyond
    shown = [headline(scenario)] if beyond else []
    shown += [change for change in beyond if change not in shown][: MOST_NUMBERS - 1]
    for change in shown:
        lines.append(
            f"  {change.metric.name:<22} {number(change.before):>10} → {number(change.now):<10}"
            f" {size(change):>9}  {against(change)}".rstrip()
        )
    if len(beyond) > len(shown):
        lines.append(f"  and {len(beyond) - len(shown)} more numbers")
    return lines


def size(change: Change) -> str:
    """How large a difference is."""
    if change.before is None or change.now is None:
        return "–" if change.before is change.now else "appeared" if change.before is None else "is gone"
    if change.before == change.now:
        return "="
    if change.relative is None:
        return f"{change.now - change.before:+.3g}"
    percent = 100.0 * change.relative
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{percent:+.1g} %"


def against(change: Change) -> str:
    """The difference against what validation found, in words; empty where there is nothing to say."""
    if change.bands is None or change.before == change.now:
        return ""
    times = f"{change.bands:.1f}" if change.bands >= 0.05 else f"{change.bands:.1g}"
    return f"{times} × the validation error of {change.band_percent:.1f} %"


def number(value: float | None) -> str:
    """A number in few digits."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
