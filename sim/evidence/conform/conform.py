"""Replays recorded runs one after another and tells, for each, the first place where this engine differs."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sim.errors import Fault, InputError
from sim.evidence.conform.case import Case, Record, find_case_files, load_case
from sim.evidence.conform.extended import KV_EVENTS
from sim.evidence.conform.replay import Replay
from sim.report import text
from sim.report.document import Block, Preformatted, Table

_INFORMATIONAL = ("cov",)
_WIDEST_VALUE = 400


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first difference of a case: at which step (None: in the final record), in which keys, both
    sides.
    """

    step: int | None
    keys: tuple[str, ...]
    recorded: Record
    replayed: Record
    error: str | None = None
    """What the engine raised, if it did not get through the step."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: how many recorded steps were compared as identical, of how many."""

    path: Path
    name: str
    family: str
    release: str
    steps: int
    identical_steps: int
    difference: FirstDifference | None

    @property
    def identical(self) -> bool:
        """Every record and the final state are the same."""
        return self.difference is None

    @property
    def description(self) -> str:
        """Where the case first differs, and what was recorded and replayed there."""
        difference = self.difference
        if difference is None:
            return f"{self.name}: identical"
        place = "final state" if difference.step is None else f"step {difference.step}"
        of = f"{self.identical_steps} of {self.steps} steps identical"
        lines = [f"{self.name}: {of}, first difference at {place}"]
        if difference.error:
            lines.append(f"  engine: {difference.error}")
        for key in difference.keys:
            lines.append(f"  {key}")
            lines.append(f"    recorded: {_value(difference.recorded, key)}")
            lines.append(f"    replayed: {_value(difference.replayed, key)}")
        return "\n".join(lines)


@dataclass(slots=True)
class ConformReport:
    """All cases replayed, in order, and the files that could not be used."""

    cases: list[CaseResult] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def identical(self) -> int:
        """Cases without any difference."""
        return sum(case.identical for case in self.cases)

    @property
    def steps(self) -> int:
        """Recorded steps of all cases."""
        return sum(case.steps for case in self.cases)

    @property
    def passed(self) -> bool:
        """All cases identical and all files usable."""
        return not self.faults and self.identical == len(self.cases)

    def families(self) -> dict[str, list[CaseResult]]:
        """Cases by family, in the order of their first case."""
        families: dict[str, list[CaseResult]] = {}
        for case in self.cases:
            families.setdefault(case.family, []).append(case)
        return families

    def blocks(self) -> list[Block]:
        """A row a family, the first difference of every case that fails, and the sum of all."""
        rows = tuple(
            (
                family,
                str(len(cases)),
                str(sum(case.steps for case in cases)),
                str(sum(case.identical for case in cases)),
            )
            for family, cases in self.families().items()
        )
        differing = [case.description for case in self.cases if case.difference]
        faults = "\n".join(map(str, self.faults))
        total = f"conform: {self.identical} of {len(self.cases)} cases identical ({self.steps} steps)"
        told = [*differing, *([faults] if faults else []), total]
        table = Table(("family", "cases", "steps", "identical"), rows, (False, True, True, True))
        return [table, *map(Preformatted, told)]

    def as_text(self) -> str:
        """The report as the command prints it; its last line counts identical cases and the steps of all."""
        return "\n\n".join(text.blocks(self.blocks()))


def conform(
    paths: Iterable[str | Path],
    progress: Callable[[int, int, CaseResult | None], None] | None = None,
    *,
    plain: bool = False,
) -> ConformReport:
    """Replay files, or all *.json.gz files below folders; `plain`: without the cohort.

    `progress(done, total, result)` is called after each file. A file that cannot be used becomes a fault in
    the report and does not stop the others, nor does an engine that raises in a case, whatever it is; only a
    path that does not exist, or a folder without cases, raises `InputError` before anything is replayed.
    """
    files = find_case_files(paths)
    report = ConformReport()
    for done, path in enumerate(files, 1):
        result = None
        try:
            result = replay_case(load_case(path), plain=plain)
            report.cases.append(result)
        except InputError as error:
            report.faults += error.faults
        if progress:
            progress(done, len(files), result)
    return report


def replay_case(case: Case, *, plain: bool = False) -> CaseResult:
    """Replay one case up to its first difference; `plain`: without a cohort of requests in steady decode."""
    identical, difference = _first_difference(case, plain)
    if difference is None and not plain and KV_EVENTS in case.extras:  # only the plain way tells of them
        identical, difference = _first_difference(case, plain=True)
    return CaseResult(case.path, case.name, case.family, case.release, len(case.trace), identical, difference)


def _first_difference(case: Case, plain: bool) -> tuple[int, FirstDifference | None]:
    identical = 0
    made: Record = {}
    recorded: Record = {}
    try:
        replay = Replay(case, plain=plain)
        for made in replay.records():
            recorded = case.trace[identical] if identical < len(case.trace) else {}
            if not plain and KV_EVENTS in recorded:
                recorded = {key: value for key, value in recorded.items() if key != KV_EVENTS}
            keys = _differing_keys(recorded, made)
            if keys:
                return identical, FirstDifference(_step_of(recorded, made), keys, recorded, made)
            identical += 1
        if identical < len(case.trace):
            recorded = case.trace[identical]
            return identical, FirstDifference(_step_of(recorded, {}), tuple(recorded), recorded, {})
        final = {key: value for key, value in case.final.items() if key not in _INFORMATIONAL}
        made = replay.final()
        keys = _differing_keys(final, made)
        return identical, FirstDifference(None, keys, final, made) if keys else None
    except Exception as error:
        recorded = case.trace[identical] if identical < len(case.trace) else {}
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return identical, FirstDifference(_step_of(recorded, {}), (), recorded, {}, message)


def _value(record: Record, key: str) -> str:
    if key not in record:
        return "absent"
    told = json.dumps(record[key])
    return told if len(told) <= _WIDEST_VALUE else told[:_WIDEST_VALUE] + " …"


def _step_of(recorded: Record, made: Record) -> int | None:
    step = recorded.get("t", made.get("t"))
    return step if isinstance(step, int) else None


def _differing_keys(recorded: Record, made: Record) -> tuple[str, ...]:
    if recorded == made:
        return ()
    keys = dict.fromkeys([*recorded, *made])
    return tuple(key for key in keys if recorded.get(key, _ABSENT) != made.get(key, _ABSENT))


_ABSENT = object()
