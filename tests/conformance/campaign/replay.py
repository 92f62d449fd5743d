"""Replays campaign recordings and groups the cases that differ by what differs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.evidence.conform.case import load_case
from sim.evidence.conform.conform import FirstDifference, replay_case


@dataclass(frozen=True)
class Outcome:
    """One recording: the same on the fast and on the plain way, or the first difference of one of them."""

    path: Path
    fast: FirstDifference | None
    plain: FirstDifference | None

    @property
    def identical(self) -> bool:
        """Nothing differs, either way."""
        return self.fast is None and self.plain is None

    @property
    def kind(self) -> str:
        """What differs, so that cases of one cause tend to fall together."""
        difference = self.fast or self.plain
        if difference is None:
            return "identical"
        one_way = "" if self.fast and self.plain else "fast only: " if self.fast else "plain only: "
        if difference.error:
            return one_way + difference.error[:110]
        place = "final " if difference.step is None else ""
        return f"{one_way}{place}{', '.join(difference.keys)}"


def replay(path: Path) -> Outcome:
    """Replay one recording both ways."""
    case = load_case(path)
    return Outcome(path, replay_case(case).difference, replay_case(case, plain=True).difference)


def features(content: dict[str, Any]) -> str:
    """The settings of a case that are not the defaults, in one line."""
    config = content["config"]
    told = [key for key, value in config.items() if value is True]
    if config.get("groups"):
        told.append("groups=" + "+".join(_group(group) for group in config["groups"]))
    if config.get("spec"):
        told.append("spec=" + ",".join(f"{k}:{v}" for k, v in config["spec"].items()))
    told += [
        f"{key}={config[key]}"
        for key in ("policy", "kv_load_failure_policy", "retention", "in_flight", "max_loras", "max_active")
        if key in config
    ]
    keys = {key for request in content["requests"] for key in request}
    told += sorted(keys & {"resumable", "ext", "fsm", "skip_cache", "lora", "salt"})
    told += sorted({event[1] for event in content["events"]} - {"add"})
    return " ".join(told)


def _group(group: dict[str, Any]) -> str:
    extent = group.get("window") or group.get("chunk") or group.get("mode") or ""
    return f"{group['type']}{extent}/{group['block_size']}"


def read(path: Path) -> dict[str, Any]:
    """The content of a recording."""
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def by_kind(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Differing cases by what differs, the largest group first."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if not outcome.identical:
            groups.setdefault(outcome.kind, []).append(outcome)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
