"""How sections are made: cheaply, as every start of dryserve makes all of them."""

from __future__ import annotations

import inspect

import pytest

from sim.scenario import EngineSection, Scenario
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
    assert section.untold() == section()
    assert section.untold().model_dump() == section().model_dump()
