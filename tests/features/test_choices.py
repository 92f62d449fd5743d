"""Popularity: how often each adapter or grammar is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.features.helpers import FIXED, build, faults_of

POISSON = {"kind": "poisson", "rate_per_s": 10, "num_requests": 50_000}
LORA = {"lora": {"max_loras": 4}}


def test_adapters_are_as_popular_as_zipf_says():
    """Of 4 adapters with weights 1, 1/2, 1/3, 1/4 the shares are 12, 6, 4 and 3 of 25."""
    table = build(
        {**POISSON, "lora": {"num_adapters": 4, "popularity": "zipf", "zipf_exponent": 1}}, engine=LORA
    ).table
    shares = np.bincount(table.adapter) / len(table)
    assert shares == pytest.approx(np.array([12, 6, 4, 3]) / 25, abs=0.007)
    assert table.adapter_names == ("adapter-0", "adapter-1", "adapter-2", "adapter-3")


def test_uniform_adapters_are_all_alike_and_only_a_share_asks():
    table = build({**POISSON, "lora": {"num_adapters": 5, "share": 0.5}}, engine=LORA).table
    counts = np.bincount(table.adapter + 1) / len(table)
    assert counts[0] == pytest.approx(0.5, abs=0.01)
    assert counts[1:] == pytest.approx(0.1, abs=0.007)


def test_a_session_keeps_its_adapter():
    table = build(
        {**POISSON, "num_requests": 200, "sessions": {"turns": 3}, "lora": {"num_adapters": 9}}, engine=LORA
    ).table
    later = table.turn_after >= 0
    assert (table.adapter[later] == table.adapter[table.turn_after[later]]).all()
    assert len(set(table.adapter)) == 9


def test_adapters_of_two_parts_are_different_adapters():
    plain = {**POISSON, "num_requests": 100, "lengths": FIXED}
    part = {**plain, "lora": {"num_adapters": 2}}
    table = build({"kind": "mix", "workloads": {"a": part, "plain": plain, "b": part}}, engine=LORA).table
    names = [table.adapter_names[k] if k >= 0 else None for k in table.adapter.tolist()]
    classes = [table.class_names[k] for k in table.class_index.tolist()]
    assert set(zip(classes, names, strict=True)) == {
        ("a", "a/adapter-0"),
        ("a", "a/adapter-1"),
        ("plain", None),
        ("b", "b/adapter-0"),
        ("b", "b/adapter-1"),
    }


def test_grammars_are_asked_for_by_a_share_of_the_requests():
    grammar = {"share": 0.3, "num_grammars": 10}
    table = build({**POISSON, "grammar": grammar}, engine={"grammar": {"compile_s": 0.1}}).table
    assert (table.grammar >= 0).mean() == pytest.approx(0.3, abs=0.01)
    assert set(table.grammar) == set(range(-1, 10))


@pytest.mark.parametrize(
    ("workload", "engine", "fault"),
    [
        (
            {"lora": {"num_adapters": 2}},
            {},
            "workload.lora: LoRA is off; give engine.lora, such as {max_loras: 4}",
        ),
        (
            {"grammar": {}},
            {},
            "workload.grammar: no grammar is compiled; give engine.grammar, such as {compile_s: 0.1}",
        ),
        (
            {},
            {"lora": {"max_lora_rank": 17}},
            "engine.lora.max_lora_rank: '17' is not one of",
        ),
        ({}, {"grammar": {}}, "engine.grammar.compile_s: is missing"),
    ],
)
def test_what_the_engine_cannot_serve_is_refused(workload, engine, fault):
    said = faults_of({**POISSON, **workload}, engine=engine)
    assert len(said) == 1
    assert said[0].startswith(fault)
