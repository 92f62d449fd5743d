"""`python -m tests.conformance.campaign`: generate, replay and shrink random cases; see README.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conformance.campaign.generate import make_case
from tests.conformance.campaign.record import write
from tests.conformance.campaign.replay import by_kind, features, read, replay
from tests.conformance.campaign.shrink import Oracle, Shrinker, difference


def generate(release: str, first: str, count: str, folder: str) -> None:
    """Write the bare cases."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for number in range(int(first), int(first) + int(count)):
        case = make_case(release, number)
        (target / f"{case['name']}.json").write_text(json.dumps(case))


def tell(folder: str) -> None:
    """Replay recordings and tell what differs."""
    files = sorted(Path(folder).glob("*.json.gz"))
    outcomes = [replay(path) for path in files]
    for kind, differing in by_kind(outcomes).items():
        _say(f"{len(differing)} {kind}")
        for outcome in differing[:5]:
            found = outcome.fast or outcome.plain
            step = None if found is None else found.step
            _say(f"    {outcome.path.name}, step {step}: {features(read(outcome.path))}")
    _say(f"{sum(outcome.identical for outcome in outcomes)} of {len(files)} identical")


def shrink(python: str, recorder: str, recording: str, out: str) -> None:
    """Write the smallest recording that still differs."""
    with Oracle(python, recorder) as oracle:
        small = Shrinker(oracle).shrink(read(Path(recording)))
    write(small, Path(out))
    _say(json.dumps({key: small[key] for key in ("config", "requests", "events")}))
    _say(str(difference(small)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    {"generate": generate, "replay": tell, "shrink": shrink}[sys.argv[1]](*sys.argv[2:])
