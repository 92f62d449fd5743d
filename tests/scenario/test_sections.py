"""How sections are made: cheaply, as every start of dryserve makes all of them."""

from __future__ import annotations

import inspect

import pytest

from sim.scenario import EngineSection, Scenario, scenario_from_data
from sim.scenario.cluster import ClusterSection
from sim.scenario.section import Section
from sim.scenario.slo import Slo


def all_below(cls: type) -> list[type]:
    return [found for child in cls.__subclasses__() for found in (child, *all_below(child))]


SECTIONS = [cls for cls in all_below(Section) if cls.__module__.startswith("sim.")]


def test_there_are_sections_of_all_parts():
    assert {Scenario, EngineSection, ClusterSection} < set(SECTIONS)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda cls: cls.__name__)
def test_annotations_are_evaluated_where_they_stand(section):
    texts = [name for name, kind in inspect.get_annotations(section).items() if isinstance(kind, str)]

    assert texts == []


@pytest.mark.parametrize("section", [*SECTIONS, Slo], ids=lambda cls: cls.__name__)
def test_validators_are_built_when_first_used(section):
    assert section.model_config["defer_build"] is True


@pytest.mark.parametrize("section", [EngineSection, ClusterSection])
def test_a_section_left_out_is_one_that_says_nothing(section):
    assert section.with_defaults() == section()
    assert section.with_defaults().model_dump() == section().model_dump()


def test_data_made_in_code_may_have_lists_where_a_file_has_them() -> None:
    """As JSON gives them."""
    data = {
        "model": "meta-llama/Llama-3.1-8B",
        "gpu": "a100-sxm",
        "workload": {
            "kind": "burst",
            "num_requests": 3,
            "lengths": {"kind": "uniform", "prompt_tokens": [1, 20], "output_tokens": [2, 3]},
        },
    }
    lengths = scenario_from_data(data).workload.lengths
    assert (lengths.prompt_tokens, lengths.output_tokens) == ((1, 20), (2, 3))
