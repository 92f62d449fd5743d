"""The command run as a user runs it: a process of its own, its exit code and what it wrote where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DRYSERVE = [sys.executable, "-m", "dryserve"]

SCENARIO = """\
# Does the command work?
name: small
model: meta-llama/Llama-3.1-8B
gpu: h100-sxm
engine: {max_model_len: 4096}
workload:
  kind: poisson
  rate_per_s: 20
  num_requests: 40
  lengths: {kind: fixed, prompt_tokens: 200, output_tokens: 20}
slo: {ttft_p99: 1s, tpot_p99: 40ms}
"""


def dryserve(
    *arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DRYSERVE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env=os.environ | (env or {}),
        check=False,
    )


def write_scenario(folder: Path, text: str = SCENARIO) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return path
