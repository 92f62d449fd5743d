"""Scenario files, packaged so that a name alone finds them."""
