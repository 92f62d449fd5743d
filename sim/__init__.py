"""Scenarios in, results out: the SimPy world in which the real scheduler meets the cost models."""
