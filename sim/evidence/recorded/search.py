"""Which rules explain a recording: each release, and single rules set otherwise, tried by replaying it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from scheduler.release import RECORDED, Release, Rules, parse_version
from scheduler.release import release as find_release
from sim.evidence.recorded.replay import Replayed, replay
from sim.recordings import Recording
from sim.scenario.rules import noting

OF_THE_LOOP = ("empty_batches_queue", "step_while_blocks_are_held", "pipelines_plan_one_ahead")
"""Rules of when an engine's loop makes its calls, which a recording gives."""

Progress = Callable[[str], None]


def quiet(_: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A release, rules set otherwise in it, and how many steps that explains."""

    version: str
    changed: Mapping[str, bool]
    identical: int

    def release(self) -> Release:
        """The release with these rules."""
        return release_of(self.version).with_rules(**self.changed)


def release_of(version: str) -> Release:
    """The release of a recording; of a version that is none, the latest recorded release."""
    try:
        return find_release(version)
    except ValueError:
        note = f"{version!r} is no version of vLLM; the rules of {RECORDED[-1]} stand in"
        return replace(find_release(RECORDED[-1]), version=version, note=note)


def named_releases(recording_versions: Iterable[str]) -> list[str]:
    """Versions whose rules differ, those of the recordings first, then the recorded releases."""
    dated = {each.metadata["since"] for each in fields(Rules)}
    versions = [*recording_versions, *RECORDED, *sorted(dated, key=parse_version)]
    of_rules = {release_of(version).rules: version for version in reversed(versions)}
    return [version for version in dict.fromkeys(versions) if of_rules[release_of(version).rules] == version]


def replay_watched(recording: Recording, release: Release) -> tuple[Replayed, set[str]]:
    """A replay, and the rules that it asked for: others cannot have made a difference."""
    asked: set[str] = set()
    found = replay(recording, replace(release, rules=noting(release.rules, asked)))
    of_rules = {each.name for each in fields(Rules)} - set(OF_THE_LOOP)
    return found, (asked & of_rules) or of_rules


def single_changes(
    recording: Recording, release: Release, base: Replayed, asked: Collection[str]
) -> list[RuleSet]:
    """The single rules with which a replay gets further than without, the furthest first."""
    found = []
    for name in sorted(asked):
        changed = {name: not getattr(release.rules, name)}
        steps = replay(recording, release.with_rules(**changed)).identical
        if steps > base.identical:
            found.append(RuleSet(release.version, changed, steps))
    return sorted(found, key=lambda each: -each.identical)


def whole_releases(recordings: Sequence[Recording], progress: Progress = quiet) -> list[RuleSet]:
    """How many steps the rules of each release explain."""
    releases = []
    for version in named_releases(recording.release for recording in recordings):
        progress(f"the rules of {version}")
        steps = sum(replay(recording, release_of(version)).identical for recording in recordings)
        releases.append(RuleSet(version, {}, steps))
    return releases


def search_rules(
    recordings: Sequence[Recording], progress: Progress = quiet
) -> tuple[RuleSet, list[RuleSet]]:
    """The rules that explain most steps of all the recordings, and every release alone.

    Each release is tried; in the best one, single rules are set otherwise as long as that explains more.
    """
    releases = whole_releases(recordings, progress)
    best = max(releases, key=lambda each: each.identical)
    return improved(recordings, best, progress), releases


def improved(recordings: Sequence[Recording], best: RuleSet, progress: Progress = quiet) -> RuleSet:
    """Set one rule after the other otherwise, each time the one that explains most, as long as that helps."""
    most = sum(len(recording.steps) for recording in recordings)
    while best.identical < most:
        better = best
        for changed in _one_more(recordings, best):
            progress(", ".join([best.version, *changed]))
            release = release_of(best.version).with_rules(**changed)
            steps = sum(replay(recording, release).identical for recording in recordings)
            if steps > better.identical:
                better = RuleSet(best.version, changed, steps)
        if better is best:
            break
        best = better
    return best


def _one_more(recordings: Sequence[Recording], best: RuleSet) -> list[dict[str, bool]]:
    """The changes of `best` and one more, of each rule that its replays ask for."""
    asked: set[str] = set()
    for recording in recordings:
        asked |= replay_watched(recording, best.release())[1]
    rules = best.release().rules
    return [{**best.changed, name: not getattr(rules, name)} for name in sorted(asked - best.changed.keys())]
