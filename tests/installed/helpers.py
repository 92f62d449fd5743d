"""A pretended vLLM to be found, and scenarios for the real one where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.installed import present
from sim.simulation import RunResult

INSTALLED = present.vllm_version()
needs_vllm = pytest.mark.skipif(
    INSTALLED not in present.TRIED, reason=f"needs vLLM {' or '.join(present.TRIED)} installed"
)
TABLES = ("requests", "steps", "preemption_times", "preemptions")
WHO = ("mirrors", "notes")
"""What a summary says of who decided."""


def forget_what_is_installed() -> None:
    for found in (present.vllm_folder, present.vllm_version, present._digest):
        found.cache_clear()


def pretend(folder: Path, version: str) -> Path:
    """A package `vllm` of that version in a folder; nothing in it can be imported."""
    package = folder / "vllm"
    (package / "v1" / "core").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('a pretended vLLM')\n")
    (package / "_version.py").write_text(f"__version__ = version = '{version}'\n")
    (package / "v1" / "core" / "decides.py").write_text("ORDER = 'as released'\n")
    return package


def differences(one: RunResult, other: RunResult) -> list[str]:
    """Where two runs differ, tables to the last bit and the whole summary but for who decided."""
    found = [name for name in TABLES if not getattr(one, name).equals(getattr(other, name))]
    summaries = ({k: v for k, v in run.summary.items() if k not in WHO} for run in (one, other))
    first, second = summaries
    return found + [key for key in {*first, *second} if first.get(key) != second.get(key)]
