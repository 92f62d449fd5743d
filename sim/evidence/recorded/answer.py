"""The set of rules that explains recordings best, as an answer: what to paste into a scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from scheduler.release import RECORDED
from sim.errors import Fault, InputError
from sim.evidence.recorded.conform import RecordingResult, load_usable
from sim.evidence.recorded.replay import replay
from sim.evidence.recorded.search import Progress, RuleSet, quiet, release_of, search_rules
from sim.recordings import Recording
from sim.report.answer import Answer
from sim.report.document import Block, Paragraph, Preformatted, Table
from sim.scenario.rules import RULE_NAMES
from sim.values import Json

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class RulesAnswer(Answer):
    """The best set, how many steps every release alone explains, and each recording under the best set."""

    kind: ClassVar[str] = "rules"
    root: ClassVar[str] = "rules"
    owns_folder: ClassVar[bool] = False

    best: RuleSet
    releases: Sequence[RuleSet]
    results: Sequence[RecordingResult]

    @property
    def question(self) -> str:
        """Which rules does the recorded engine have?"""
        names = ", ".join(result.recording.path.name for result in self.results)
        return f"Which rules explain {names}?"

    @property
    def steps(self) -> int:
        """Recorded steps of all recordings."""
        return sum(result.steps for result in self.results)

    @property
    def has_failed(self) -> bool:
        """Whether steps are left that no set of rules explains."""
        return self.best.identical < self.steps

    @property
    def version(self) -> str:
        """A release with the best set's rules that scenarios name: a recorded one rather than another."""
        rules = release_of(self.best.version).rules
        alike = [version for version in RECORDED if release_of(version).rules == rules]
        return (alike or [self.best.version])[0]

    @property
    def rules(self) -> dict[str, bool]:
        """What is set otherwise in that release, also the defaults that the recorded engine did not take."""
        changed = {**self._told_defaults(), **self.best.changed}
        return {name: changed[name] for name in RULE_NAMES if name in changed}

    def _told_defaults(self) -> dict[str, bool]:
        """Settings of the recorded engine that differ from the release's defaults."""
        config, defaults = self.results[0].recording.settings.config, release_of(self.version).defaults
        told = {"reserve_full_prompt": bool(config.get("reserve_full_prompt", False))}
        spec = config.get("spec")
        if isinstance(spec, Mapping) and spec.get("kind") in ("eagle", "mtp_multi"):
            told["lookahead_hashes"] = bool(spec.get("lookahead_hashes", False))
        return {name: value for name, value in told.items() if value != getattr(defaults, name)}

    def yaml(self) -> str:
        """The engine's part of a scenario."""
        lines = ["engine:", f'  version: "{self.version}"']
        if self.rules:
            lines.append("  rules:")
            lines += [f"    {name}: {str(value).lower()}" for name, value in self.rules.items()]
        return "\n".join(lines)

    def blocks(self) -> Iterable[Block]:
        """What to paste, what it explains, and what the releases alone do."""
        share = f"{self.best.identical} of {self.steps}"
        if self.has_failed:
            yield Paragraph(f"This set explains {share} steps; no further rule that is known explains more:")
        else:
            yield Paragraph(f"This set explains all {share} steps:")
        yield Preformatted(self.yaml())
        rows = [(each.version, "", str(each.identical)) for each in self.releases]
        if self.best.changed:
            changed = ", ".join(f"{name}: {str(value).lower()}" for name, value in self.best.changed.items())
            rows.append((self.best.version, changed, str(self.best.identical)))
        yield Table(
            ("rules of", "but", f"steps explained of {self.steps}"), tuple(rows), (False, False, True)
        )
        for result in self.results:
            if not result.identical:
                yield Preformatted(result.description)

    def as_json(self) -> dict[str, Json]:
        """The set, and what was tried."""
        return {
            "version": self.version,
            "rules": self.rules,
            "identical_steps": self.best.identical,
            "steps": self.steps,
            "releases": {each.version: each.identical for each in self.releases},
            "recordings": {
                str(each.recording.path): {"steps": each.steps, "identical_steps": each.replayed.identical}
                for each in self.results
            },
        }

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """The releases."""
        import pandas as pd

        rows = [(each.version, each.identical, self.steps) for each in self.releases]
        return {"releases.csv": pd.DataFrame(rows, columns=["version", "identical_steps", "steps"])}

    def folder_in(self, root: Path) -> Path:
        """`root` itself."""
        return root


def find_rules(files: Iterable[str | Path], progress: Progress = quiet) -> RulesAnswer:
    """The release and the rules that explain most steps of these recordings.

    They are taken to be of engines of one kind. `InputError` names what cannot be read or replayed.
    """
    recordings, faults = [], list[Fault]()
    for path in files:
        try:
            recordings.append(load_usable(Path(path)))
        except InputError as error:
            faults += error.faults
    if faults:
        raise InputError(faults)
    best, releases = search_rules(recordings, progress)
    return RulesAnswer(best, releases, [_under(best, recording) for recording in recordings])


def _under(best: RuleSet, recording: Recording) -> RecordingResult:
    replayed = replay(recording, best.release())
    return RecordingResult(recording, best.release(), replayed, searched=True)
