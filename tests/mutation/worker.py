"""Replays recorded runs with some rules changed, in a process of its own: which runs notice?

    python tests/mutation/worker.py MUTANT CASE...

writes one line a case (a recorded run, or the path of a test), `noticed` or `identical`. Nothing goes to
disk: changed modules are compiled from changed syntax trees as they are imported.
"""

from __future__ import annotations

import ast
import signal
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

REPO = Path(__file__).resolve().parents[2]
LONGEST_S = 30
"""A changed engine may loop for ever; that is noticed too."""


class _ChangedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


class _ChangedFinder(MetaPathFinder):
    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._trees = trees

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in self._trees:
            return None
        file = REPO / Path(*fullname.split("."))
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        loader = _ChangedLoader(fullname, str(file), self._trees[fullname])
        return spec_from_file_location(fullname, file, loader=loader)


def scheduler_trees() -> dict[str, ast.Module]:
    """The syntax trees of all modules of the scheduler, by the names by which they are imported."""
    trees = {}
    for file in sorted((REPO / "scheduler").rglob("*.py")):
        name = ".".join(file.relative_to(REPO).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(file.read_text(encoding="utf-8"))
    return trees


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
    from tests.mutation.patterns import Module, changed

    name, *cases = sys.argv[1:]
    edits = MUTANTS[name].edits
    trees = {
        module: changed(tree, edits)
        for module, tree in scheduler_trees().items()
        if any(Module(tree).places(edit) for edit in edits)
    }
    assert trees, "nothing to change"
    assert not any(module.split(".")[0] == "scheduler" for module in sys.modules), "too late"
    sys.meta_path.insert(0, _ChangedFinder(trees))
    for case in cases:
        sys.stdout.write("noticed\n" if notices(case) else "identical\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
