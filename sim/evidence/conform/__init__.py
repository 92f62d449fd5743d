"""Conformance: recorded runs of the real engine, replayed on this one and compared step by step."""

from sim.evidence.conform.conform import CaseResult, ConformReport, FirstDifference, conform

__all__ = ["CaseResult", "ConformReport", "FirstDifference", "conform"]
