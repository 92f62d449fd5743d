"""The schedule page of one release is the schedule page, with the rules of that release answered in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import scheduler.engine_core
from scheduler.page import fold, main, page
from scheduler.release import RECORDED, release
from sim.evidence.conform import conform

GOLDEN = Path(__file__).parents[1] / "golden"
PACKAGE = Path(scheduler.__file__).parent
ASKS_A_RULE = re.compile(r"\brules\.\w+")


def use(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on engines plan their steps by the page of this release."""
    if not scheduler.engine_core.__file__.endswith(".py"):
        pytest.skip("a compiled engine takes no other page")
    module = ModuleType("one_page")
    exec(compile(page(version), "one_page", "exec"), module.__dict__)
    monkeypatch.setattr(scheduler.engine_core, "Scheduler", module.Scheduler)


@pytest.mark.parametrize("version", ["0.16.0", "0.26.0", "0.29.0", "0.32.0", "0.33.0"])
def test_the_page_of_a_release_asks_for_no_rule(version: str) -> None:
    assert not ASKS_A_RULE.search(page(version))
    assert ASKS_A_RULE.search(Path(PACKAGE / "scheduler.py").read_text())


@pytest.mark.parametrize("module", sorted(path.stem for path in PACKAGE.glob("*.py")))
@pytest.mark.parametrize("version", RECORDED)
def test_every_module_can_be_folded_and_still_compiles(version: str, module: str) -> None:
    compile(page(version, module), module, "exec")


def test_comments_and_what_no_rule_touches_stay_as_they_are() -> None:
    whole = (PACKAGE / "scheduler.py").read_text().splitlines()
    kept = page("0.16.0").splitlines()
    assert len(kept) < len(whole)
    assert len(set(kept) - set(whole)) < 10
    assert any("vLLM: KVCacheManager.new_step_starts" in line for line in kept)


@pytest.mark.parametrize("version", RECORDED)
def test_the_page_of_a_release_plans_every_recorded_step_of_it(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(version, monkeypatch)
    cases = sorted((GOLDEN / version).glob("*-[01].json.gz"))
    assert len(cases) > 60
    assert conform(cases, plain=True).passed


def test_the_page_of_another_release_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    use("0.16.0", monkeypatch)
    assert not conform(sorted((GOLDEN / "0.33.0").glob("*-0.json.gz")), plain=True).passed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = a and rules.holders_first", "x = a"),
        ("x = a() or not rules.holders_first", "x = a()"),
        ("x = rules.pad_new_decodes or a", "x = True"),
        ("x = f(b, k=1 if self.rules.holders_first else 2)", "x = f(b, k=1)"),
        ("x = a() and not rules.holders_first", "x = a() and False"),  # the call is still made
        ("if rules.holders_first:\n    # why\n    a()\nb()", "# why\na()\nb()"),
        ("if not rules.holders_first:\n    a()\nelse:\n    b()", "b()"),
        ("if not rules.holders_first:\n    a()\nelif c:\n    b()", "if c:\n    b()"),
        (
            "if c:\n    a()\nelif rules.holders_first:\n    b()\nelse:\n    d()",
            "if c:\n    a()\nelse:\n    b()",
        ),
        (
            "if c:\n    a()\nelif not rules.holders_first:\n    b()\nelse:\n    d()",
            "if c:\n    a()\nelse:\n    d()",
        ),
        ("def f():\n    if not rules.holders_first:\n        a()", "def f():\n    pass"),
        ("def f():\n    if rules.holders_first:\n        return 1\n    return 2", "def f():\n    return 1"),
    ],
)
def test_what_never_happens_is_left_out(before: str, after: str) -> None:
    assert fold(before + "\n", release("0.33.0").rules) == after + "\n"


def test_the_command_prints_the_page_and_refuses_what_is_no_release(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["0.33.0"]) == 0
    assert capsys.readouterr().out == page("0.33.0")
    assert main(["newest"]) == 2
    assert "'newest' is not a version like 0.33.0" in capsys.readouterr().err
    assert main([]) == 2


def test_the_page_is_a_command() -> None:
    command = [sys.executable, "-m", "scheduler.page", "0.16.0"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout
    assert printed == page("0.16.0")
