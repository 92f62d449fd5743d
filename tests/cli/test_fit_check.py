"""`dryserve fit --check`: the memory plan judged by logged start-ups."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.helpers import dryserve

GOAL_MEDIAN_PERCENT, GOAL_P90_PERCENT = 1.0, 4.0
"""For V1 on A100, H100 and H200 without MLA, the project's goal."""


def test_the_plan_meets_its_goal_on_logged_start_ups(shared_dir: Path) -> None:
    done = dryserve("fit", "--check", str(shared_dir / "validation" / "kv_capacity.csv"))
    assert done.returncode == 0
    last = done.stdout.strip().splitlines()[-1]
    found = re.fullmatch(r"fit: kv_tokens median (\S+) % p90 (\S+) % over (\d+) rows", last)
    assert found is not None
    assert float(found[1]) <= GOAL_MEDIAN_PERCENT
    assert float(found[2]) <= GOAL_P90_PERCENT
    assert int(found[3]) > 60


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("vllm_version,gpu,tp\n0.16.0,h100-sxm,1\n", "no column model"),
        ("", "no column vllm_version"),
    ],
)
def test_a_file_that_is_no_table_of_start_ups_is_named_with_what_lacks(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "logs.csv"
    path.write_text(content)
    done = dryserve("fit", "--check", str(path))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_row_that_cannot_be_compared_is_skipped_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    path.write_text("vllm_version,gpu,tp,model,kv_tokens\n0.16.0,h100-sxm,1,no/such-model,1000\n")
    done = dryserve("fit", "--check", str(path))
    assert "line 2: unknown model 'no/such-model'" in done.stdout
    assert done.stdout.strip().endswith("fit: no row could be compared")
