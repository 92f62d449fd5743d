"""Says of recordings whether this engine decides as the recorded one did, and where it first does not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scheduler.release import Release
from sim.errors import Fault, InputError
from sim.evidence.recorded.replay import Replayed
from sim.evidence.recorded.search import (
    Progress,
    RuleSet,
    quiet,
    release_of,
    replay_watched,
    single_changes,
    whole_releases,
)
from sim.recordings import SUFFIX, Recording, is_recording, load_recording
from sim.report import text
from sim.report.document import Block, Preformatted, Table

_WIDEST_VALUE = 400
_MOST_SUSPECTS = 3


@dataclass(frozen=True, slots=True)
class RecordingResult:
    """One recording: how far it was followed, and the single rules with which it is followed further."""

    recording: Recording
    release: Release
    replayed: Replayed
    suspects: tuple[RuleSet, ...] = ()
    best_release: RuleSet | None = None
    searched: bool = False
    """Whether all sets of rules were tried already."""

    @property
    def steps(self) -> int:
        """Recorded steps."""
        return len(self.recording.steps)

    @property
    def identical(self) -> bool:
        """Every step is the same, and there are some."""
        return self.steps > 0 and self.replayed.identical == self.steps

    @property
    def notes(self) -> list[str]:
        """What is to be known about the recording and the rules it was replayed under."""
        recording, notes = self.recording, []
        if self.release.note:
            notes.append(self.release.note)
        if recording.patched:
            notes.append(f"recorded of {recording.scheduler}, which is not vLLM's own scheduler")
        if recording.ending == "cut off" or recording.ending.startswith("gap"):
            notes.append(f"the recording ends early ({recording.ending})")
        return notes

    @property
    def description(self) -> str:
        """Where the first difference is, what was recorded and replayed there, and which rule it may be."""
        name, of = self.recording.path, f"{self.replayed.identical} of {self.steps} steps identical"
        lines = [f"{name}: {of}"] + [f"  note: {note}" for note in self.notes]
        if not self.steps:
            lines.append("  there is no step in it")
        if self.replayed.refused:
            lines.append(f"  cannot be followed further: {self.replayed.refused}")
        difference = self.replayed.difference
        if difference is not None:
            lines[0] += f", first difference at step {difference.index}"
            if difference.error:
                lines.append(f"  engine: {difference.error}")
            for key, recorded, replayed in difference.values:
                lines.append(f"  {key}")
                lines.append(f"    recorded: {_value(recorded)}")
                lines.append(f"    replayed: {_value(replayed)}")
            lines += [] if self.searched else self._suspicion()
        return "\n".join(lines)

    def _suspicion(self) -> list[str]:
        lines = []
        for number, suspect in enumerate(self.suspects[:_MOST_SUSPECTS]):
            ((rule, value),) = suspect.changed.items()
            head = "or" if number else "the rule that most likely differs"
            setting = f"{rule}: {str(value).lower()}"
            lines.append(f"  {head}: {setting} (then {suspect.identical} steps are identical)")
        if not self.suspects:
            lines.append("  none of the known rules, alone set otherwise, makes it the same")
        best = self.best_release
        if best is not None and best.identical > self.replayed.identical:
            lines.append(f"  of whole releases {best.version} explains most: {best.identical} steps")
        if self.recording.patched:
            return [*lines, "  a scheduler of somebody's own may decide as no known rule does"]
        return [*lines, f"  dryserve rules {self.recording.path} looks for the whole set"]


@dataclass(frozen=True, slots=True)
class RecordingsReport:
    """All recordings replayed, in order, and the files that could not be used."""

    results: tuple[RecordingResult, ...]
    faults: tuple[Fault, ...] = ()

    @property
    def identical(self) -> int:
        """Recordings without any difference."""
        return sum(result.identical for result in self.results)

    @property
    def refused(self) -> bool:
        """Whether a file could not be used, or not be followed to its end or a difference."""
        return bool(self.faults) or any(
            result.replayed.refused or not result.steps for result in self.results
        )

    @property
    def passed(self) -> bool:
        """All recordings identical and all files usable."""
        return not self.refused and self.identical == len(self.results)

    def blocks(self) -> list[Block]:
        """A row a recording, what is to be said of them, and the sum of all."""
        rows = tuple(
            (
                result.recording.path.name,
                result.recording.release,
                result.recording.scheduler,
                str(result.steps),
                str(result.replayed.identical),
            )
            for result in self.results
        )
        head = ("recording", "vLLM", "scheduler", "steps", "identical")
        told = [result.description for result in self.results if not result.identical or result.notes]
        faults = "\n".join(map(str, self.faults))
        steps = sum(result.replayed.identical for result in self.results)
        total = f"conform: {self.identical} of {len(self.results)} recordings identical ({steps} steps)"
        table = Table(head, rows, (False, False, False, True, True))
        return [table, *map(Preformatted, [*told, *([faults] if faults else []), total])]

    def as_text(self) -> str:
        """The report as the command prints it; its last line counts recordings and identical steps."""
        return "\n\n".join(text.blocks(self.blocks()))


def conform_recordings(files: Iterable[Path], progress: Progress = quiet) -> RecordingsReport:
    """Replay recordings under the rules of their release. Files that cannot be used become faults."""
    results, faults = [], []
    for path in files:
        try:
            progress(path.name)
            results.append(_conform(load_usable(path), progress))
        except InputError as error:
            faults += error.faults
    return RecordingsReport(tuple(results), tuple(faults))


def _conform(recording: Recording, progress: Progress) -> RecordingResult:
    release = release_of(recording.release)
    replayed, asked = replay_watched(recording, release)
    if replayed.difference is None:
        return RecordingResult(recording, release, replayed)
    progress(f"{recording.path.name}: which rule differs")
    suspects = single_changes(recording, release, replayed, asked)
    releases = whole_releases([recording], progress)
    best = max(releases, key=lambda each: each.identical)
    return RecordingResult(recording, release, replayed, tuple(suspects), best)


def load_usable(path: Path) -> Recording:
    """A recording whose settings can be replayed; `InputError` names what cannot."""
    recording = load_recording(path)
    cannot = recording.settings.not_replayed
    if cannot:
        raise InputError([Fault(str(path), None, f"cannot be replayed: {what}") for what in cannot])
    return recording


def find_recordings(paths: Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """The recordings among files and below folders, and the paths that are or hold something else."""
    recordings: list[Path] = []
    others = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(path.rglob(f"*{SUFFIX}"))
            recordings += found
            if not found or any(path.rglob("*.json.gz")):
                others.append(path)
        elif path.name.endswith(SUFFIX) or is_recording(path):
            recordings.append(path)
        else:
            others.append(path)
    return list(dict.fromkeys(recordings)), others


def _value(value: object) -> str:
    told = json.dumps(value)
    return told if len(told) <= _WIDEST_VALUE else told[:_WIDEST_VALUE] + " …"
