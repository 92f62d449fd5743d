"""Recordings of users' engines, replayed on this one, and the rules that explain them."""

from sim.evidence.recorded.answer import RulesAnswer, find_rules
from sim.evidence.recorded.conform import RecordingsReport, conform_recordings, find_recordings

__all__ = ["RecordingsReport", "RulesAnswer", "conform_recordings", "find_recordings", "find_rules"]
