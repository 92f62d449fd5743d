"""Conformance: recorded runs of the real engine, replayed on this one and compared step by step."""

from sim.evidence.conform.conform import CaseResult, ConformReport, Difference, conform

__all__ = ["CaseResult", "ConformReport", "Difference", "conform"]
