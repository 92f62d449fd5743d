"""The recorder runs in vLLM's own environment, where nothing else of ours, and of our libraries, may be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.recordings import fake_vllm

REPO = Path(__file__).resolve().parents[2]


def test_importing_the_recorder_loads_vllm_and_nothing_else_of_ours(tmp_path: Path) -> None:
    fake_vllm.install(tmp_path)
    told = [sys.executable, "-S", "-c", fake_vllm.LOADS_NOTHING_ELSE]
    paths = os.pathsep.join([str(tmp_path), str(REPO)])
    done = subprocess.run(
        told,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "recorder loaded alone\n", done.stderr
