"""Scenario files: what they may say, how they are read, and where they are wrong."""

from sim.scenario.engine import EngineSection
from sim.scenario.loader import load_scenario, scenario_from_data, scenario_names, scenario_text
from sim.scenario.reference import json_schema, reference_markdown
from sim.scenario.scenario import Scenario
from sim.scenario.slo import Slo, SloTarget, parse_slo
from sim.scenario.yaml_text import parse_axis, parse_grid

__all__ = [
    "EngineSection",
    "Scenario",
    "Slo",
    "SloTarget",
    "json_schema",
    "load_scenario",
    "parse_axis",
    "parse_grid",
    "parse_slo",
    "reference_markdown",
    "scenario_from_data",
    "scenario_names",
    "scenario_text",
]
