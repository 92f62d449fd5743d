"""Replays recorded runs with some sources changed, in a process of its own: which runs notice?

    python tests/mutation/worker.py MUTANT CASE...

writes one line a case (a recorded run, or the path of a test), `noticed` or `identical`. Nothing goes to
disk: changed modules are compiled from changed text as they are imported.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

REPO = Path(__file__).resolve().parents[2]
LONGEST_S = 30
"""A changed engine may loop for ever; that is noticed too."""


class _ChangedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, edits: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        return compile(changed(Path(self.path), self._edits), self.path, "exec")


class _ChangedFinder(MetaPathFinder):
    def __init__(self, edits: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._edits = {path.removesuffix(".py").replace("/", "."): (path, of) for path, of in edits.items()}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in self._edits:
            return None
        place, edits = self._edits[fullname]
        file = str(REPO / place)
        return spec_from_file_location(fullname, file, loader=_ChangedLoader(fullname, file, edits))


def changed(file: Path, edits: Sequence[tuple[str, str]]) -> str:
    """The source with every edit applied; `LookupError` if one finds nothing to change."""
    text = file.read_text(encoding="utf-8")
    for old, new in edits:
        if old not in text:
            raise LookupError(f"{file.name} has no {old!r} to change")
        text = text.replace(old, new)
    return text


def install(edits: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Let modules imported from now on be the changed ones."""
    assert not any(name.split(".")[0] == "scheduler" for name in sys.modules), "too late"
    sys.meta_path.insert(0, _ChangedFinder(edits))


def notices(case: str) -> bool:
    """Whether a test fails, or a recorded run differs from what the engine does now or does not end."""
    if "::" in case:
        import pytest

        return (
            pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", case]) == pytest.ExitCode.TESTS_FAILED
        )
    from sim.evidence.conform.case import load_case
    from sim.evidence.conform.conform import replay_case

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST_S)
    try:
        return not replay_case(load_case(REPO / "tests" / "golden" / f"{case}.json.gz")).identical
    except Exception:  # whatever a broken engine raises
        return True
    finally:
        signal.alarm(0)


def main() -> None:
    sys.path[0] = str(REPO)
    from tests.mutation.mutants import MUTANTS

    name, *cases = sys.argv[1:]
    install(MUTANTS[name].by_file())
    for case in cases:
        sys.stdout.write("noticed\n" if notices(case) else "identical\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
