"""The recorder before the installed vLLM's own schedulers: what it records replays identically.

Needs vLLM installed and the public recorders beside the checkout; `make installed-tests` has the first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.evidence.recorded import RecordingsReport, conform_recordings
from tests.installed.helpers import INSTALLED, needs_vllm

GOLDEN = Path(__file__).parents[1] / "golden" / str(INSTALLED)
FAMILIES = {path.name.rpartition("-")[0]: path for path in sorted(GOLDEN.glob("*.json.gz"))}

pytestmark = needs_vllm


def record(shared: Path, folder: Path, *arguments: object) -> RecordingsReport:
    recorder = shared / "oracle" / str(INSTALLED)
    if not recorder.is_dir():
        pytest.skip("needs the public recorders")
    told = [sys.executable, Path(__file__).with_name("engine_loop.py"), recorder, folder, *arguments]
    done = subprocess.run(
        [str(each) for each in told], env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return conform_recordings(sorted(folder.glob("*.jsonl.gz")))


def test_a_case_of_each_family_replays_identically(shared_dir: Path, tmp_path: Path) -> None:
    report = record(shared_dir, tmp_path, *FAMILIES.values())
    assert report.passed, report.as_text()
    assert len(report.results) == len(FAMILIES) > 30


def test_a_patched_scheduler_differs(shared_dir: Path, tmp_path: Path) -> None:
    report = record(shared_dir, tmp_path, "--patched", GOLDEN / "fcfs_basic-2.json.gz")
    (result,) = report.results
    assert not report.passed
    assert result.replayed.identical == 5
    assert result.recording.scheduler == "NewestFirst"
