"""Random cases: the generator makes what it should, and recordings of its cases replay identically."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from sim.evidence.conform import conform
from tests.conformance.campaign.generate import make_case


def test_a_case_follows_from_its_release_and_number() -> None:
    assert make_case("0.33.0", 7) == make_case("0.33.0", 7)
    assert make_case("0.33.0", 7) != make_case("0.33.0", 8)
    assert make_case("0.33.0", 7)["config"] != make_case("0.16.0", 7)["config"]


@pytest.mark.parametrize("release", ["0.16.0", "0.33.0"])
def test_cases_use_the_whole_vocabulary(release: str) -> None:
    used: Counter[str] = Counter()
    for number in range(300):
        case = make_case(release, number)
        used.update(list(case["config"]))
        used.update(f"group {group['type']}" for group in case["config"].get("groups", ()))
        used.update(f"spec {case['config'][key]['kind']}" for key in ("spec",) if key in case["config"])
        used.update({key for request in case["requests"] for key in request})
        used.update({key for request in case["requests"] for key in request.get("ext", ())})
        used.update({event[1] for event in case["events"]})
    rare = {key: count for key, count in used.items() if count < 3}
    assert not rare
    wanted = {
        "group mamba", "group chunked", "group sliding", "group full", "spec eagle", "spec ngram",
        "spec draft_model", "in_flight", "ext", "fail", "defer", "send", "resumable", "chunk", "end", "fsm",
        "grammar", "lora", "salt", "skip_cache", "abort", "abort_mid", "reset", "max_loras", "prio",
    }  # fmt: skip
    if release == "0.33.0":
        wanted |= {"pause", "pp", "spec mtp_multi", "spec dflash", "prefill_interval", "watermark"}
    assert wanted <= set(used)


@pytest.mark.nightly
def test_recorded_campaigns_replay_identically() -> None:
    folder = os.environ.get("DRYSERVE_CAMPAIGN")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs recorded campaign cases: set DRYSERVE_CAMPAIGN to their folder")
    report = conform([folder])
    assert report.passed, report.as_text()
