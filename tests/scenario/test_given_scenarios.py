"""Whatever asks about a scenario takes it by name, by path or loaded, with overrides."""

from __future__ import annotations

import pytest

import dryserve as ds

FEW = ["workload.num_requests=40"]
HERE = ds.RunOptions(workers=1, store=None)


def test_a_scenario_can_be_simulated_by_its_name_or_loaded_and_overridden_either_way():
    by_name = ds.simulate("kv-starved", FEW)
    loaded = ds.simulate(ds.load_scenario("kv-starved", FEW))
    changed_later = ds.simulate(ds.load_scenario("kv-starved"), FEW)
    assert by_name.summary == loaded.summary == changed_later.summary
    assert by_name.summary["completed"] == 40


def test_an_override_of_a_loaded_scenario_is_checked_like_any_other():
    scenario = ds.load_scenario("kv-starved")
    with pytest.raises(ds.InputError) as caught:
        ds.load_scenario(scenario, ["workload.num_request=3", "engine.max_num_seqs=0"])
    told = str(caught.value)
    assert "did you mean 'num_requests'?" in told
    assert "max_num_seqs" in told


def test_a_loaded_scenario_can_be_explained():
    scenario = ds.load_scenario("kv-starved", ["workload.num_requests=60"])
    found = ds.explain(scenario, "ttft", 90, with_remedies=False)
    by_name = ds.explain(
        "kv-starved", "ttft", 90, overrides=["workload.num_requests=60"], with_remedies=False
    )
    assert found.as_text() == by_name.as_text()


def test_variants_can_be_given_one_by_one_or_as_a_list():
    settings = {"overrides": FEW, "replications": 2, "options": HERE}
    one_by_one = ds.compare("kv-starved", "fcfs_tail", "least_computed", **settings)
    as_a_list = ds.compare("kv-starved", ["fcfs_tail", "least_computed"], **settings)
    assert one_by_one.labels == as_a_list.labels
    assert one_by_one.as_text() == as_a_list.as_text()


def test_the_memory_of_a_scenario_can_be_asked_for_from_python():
    found = ds.fit("quickstart", ["engine.max_num_seqs=32"])
    assert "max_num_seqs = 32" in str(found)
    assert found.kv_tokens == found.setup.num_gpu_blocks * 16


def test_a_run_can_be_written_as_a_trace_from_python(tmp_path):
    written = ds.write_trace(ds.simulate("kv-starved", FEW), str(tmp_path / "trace.json.gz"))
    assert written.num_requests == 40
    assert (tmp_path / "trace.json.gz").stat().st_size > 0


def test_options_that_say_nothing_sensible_are_refused_where_they_are_made():
    with pytest.raises(ds.InputError, match="at least 1"):
        ds.RunOptions(workers=0)


def test_the_version_is_a_public_name():
    assert ds.__version__ == ds.simulate("kv-starved", FEW).summary["dryserve_version"]
