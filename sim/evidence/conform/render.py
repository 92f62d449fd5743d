"""The conformance report as text: a line per family, then the first difference of every case that fails."""

from __future__ import annotations

import json

from sim.evidence.conform.conform import CaseResult, ConformReport

_WIDEST_VALUE = 400


def render(report: ConformReport) -> str:
    """The whole report; its last line counts identical cases and the steps of all."""
    families = report.families()
    width = max([len("family"), *map(len, families)])
    lines = [f"{'family':<{width}}  cases  steps  identical"]
    for family, cases in families.items():
        steps = sum(case.steps for case in cases)
        identical = sum(case.identical for case in cases)
        lines.append(f"{family:<{width}}  {len(cases):>5}  {steps:>5}  {identical:>9}")
    for case in report.cases:
        if case.difference:
            lines += ["", *_describe(case)]
    if report.faults:
        lines += ["", *(str(fault) for fault in report.faults)]
    lines += [
        "",
        f"conform: {report.identical} of {len(report.cases)} cases identical ({report.steps} steps)",
    ]
    return "\n".join(lines)


def _describe(case: CaseResult) -> list[str]:
    difference = case.difference
    assert difference is not None
    place = "final state" if difference.step is None else f"step {difference.step}"
    lines = [
        f"{case.name}: {case.identical_steps} of {case.steps} steps identical, first difference at {place}"
    ]
    if difference.error:
        lines.append(f"  engine: {difference.error}")
    for key in difference.keys:
        lines.append(f"  {key}")
        lines.append(f"    recorded: {_value(difference.recorded, key)}")
        lines.append(f"    replayed: {_value(difference.replayed, key)}")
    return lines


def _value(record: dict[str, object], key: str) -> str:
    if key not in record:
        return "absent"
    text = json.dumps(record[key])
    return text if len(text) <= _WIDEST_VALUE else text[:_WIDEST_VALUE] + " …"
