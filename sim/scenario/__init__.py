"""Scenario files: what they may say, how they are read, and where they are wrong."""

from sim.scenario.loader import load_scenario, scenario_from_data, scenario_names
from sim.scenario.scenario import Scenario
from sim.scenario.slo import Slo, SloTarget, parse_slo

__all__ = [
    "Scenario",
    "Slo",
    "SloTarget",
    "load_scenario",
    "parse_slo",
    "scenario_from_data",
    "scenario_names",
]
