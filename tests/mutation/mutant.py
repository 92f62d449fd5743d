"""Deliberate changes of single rules, and the recorded runs that notice each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One rule broken: `edits` are (file, text, other text); every occurrence is replaced.

    `noticed_by`: a recorded run (release/case) that must differ. For a change that none notices,
    `equivalent` says why nothing can.
    """

    what: str
    edits: tuple[tuple[str, str, str], ...]
    noticed_by: str = ""
    equivalent: str = ""

    def by_file(self) -> dict[str, list[tuple[str, str]]]:
        """Edits by file."""
        found: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for file, old, new in self.edits:
            found[file].append((old, new))
        return found


SCHEDULER = "scheduler/scheduler.py"
STATE = "scheduler/state.py"
STATS = "scheduler/stats.py"
OUTPUT = "scheduler/output.py"
QUEUES = "scheduler/waiting.py"
VICTIM = "scheduler/policies/victim.py"
ORDER = "scheduler/policies/waiting_order.py"
STOPPING = "scheduler/bookkeeping.py"
UPDATE = "scheduler/update.py"
AHEAD = "scheduler/bookkeeping.py"
SPECULATION = "scheduler/speculation.py"
LORA = "scheduler/admission.py"
GRAMMAR = "scheduler/admission.py"
LOADS = "scheduler/remote_loads.py"
LIFE = "scheduler/state.py"
SESSIONS = "scheduler/streaming.py"
CACHE = "scheduler/kv_cache/grouped.py"
PLAIN = "scheduler/kv_cache/plain.py"
RUNS = "scheduler/kv_cache/runs.py"
POOL = "scheduler/kv_cache/pool.py"
GROUP = "scheduler/kv_cache/manager.py"
WINDOWS = "scheduler/kv_cache/windows.py"
HASHES = "scheduler/kv_cache/hashes.py"
LOOKUP = "scheduler/kv_cache/lookup.py"
RELEASE = "scheduler/release.py"
ROOM = "scheduler/admission.py"
TESTS = "tests/mutation/test_unrecorded_rules.py::"


def one(what: str, file: str, old: str, new: str, noticed_by: str = "", equivalent: str = "") -> Mutant:
    """A mutant of a single edit."""
    return Mutant(what, ((file, old, new),), noticed_by, equivalent)
