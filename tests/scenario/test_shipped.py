"""The scenarios that come with the package: found by name, valid, one question each."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.random_streams import streams
from sim.scenario import load_scenario, scenario_names
from sim.workload import Limits, build_workload


@pytest.mark.parametrize("name", scenario_names())
def test_a_shipped_scenario_asks_one_question_and_loads(name: str) -> None:
    first, *_ = (resources.files("scenarios") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert first.startswith("# ")
    assert first.endswith("?")
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description


@pytest.mark.parametrize("name", scenario_names())
def test_a_shipped_scenario_has_requests_that_its_engine_accepts(name: str) -> None:
    scenario = load_scenario(name)
    if scenario.workload.kind == "trace":
        pytest.skip("replays a trace that is not shipped")
    workload = build_workload(scenario, streams(scenario.seed), Limits(scenario.engine.max_model_len or 0))
    assert len(workload.table) >= 1000
    assert not workload.table.rejected.any()


def test_the_quickstart_is_an_hour_of_azures_conversations() -> None:
    """Published statistics of the trace: 5.530 requests/s, CV of gaps 1.09, mean lengths 1,155 and 211."""
    scenario = load_scenario("quickstart")
    table = build_workload(scenario, streams(scenario.seed), Limits(16384)).table
    assert len(table) / 3600 == pytest.approx(5.530, rel=0.02)
    assert table.prompt_tokens.mean() == pytest.approx(1155, rel=0.02)
    assert table.output_tokens.mean() == pytest.approx(211, rel=0.02)


@pytest.mark.parametrize("name", ["azure-conv-h100", "mooncake-h100"])
def test_a_replay_says_which_file_it_misses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = load_scenario(name)
    with pytest.raises(InputError, match=rf"^scenarios/{name}\.yaml:\d+:3: workload\.path: no such file"):
        build_workload(scenario, streams(0), Limits(16384))


def test_an_unknown_name_lists_the_shipped_ones_and_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("quikstart")
    said = str(caught.value)
    assert said.startswith("no scenario 'quikstart'; did you mean 'quickstart'?")
    assert all(name in said for name in scenario_names())


def test_a_path_that_is_not_there_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").touch()
    with pytest.raises(
        InputError, match=r"chta\.yaml: cannot be read: no such file or directory; did you mean 'chat"
    ):
        load_scenario(tmp_path / "chta.yaml")


def test_a_file_named_in_a_scenario_is_looked_for_beside_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "s.yaml").write_text(
        "model: meta-llama/Llama-3.1-8B\ngpu: h100-sxm\nengine: {max_model_len: 100}\n"
        "workload: {kind: trace, path: t.csv}\n"
    )
    assert load_scenario("study/s.yaml").workload.path == "t.csv"  # type: ignore[union-attr]
    (folder / "t.csv").touch()
    assert load_scenario("study/s.yaml").workload.path == "study/t.csv"  # type: ignore[union-attr]
    assert load_scenario("study/s.yaml", ["workload.path=t.csv"]).workload.path == "t.csv"  # type: ignore[union-attr]
