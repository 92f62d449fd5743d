"""The version of dryserve that runs, which every result names."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version


@cache
def dryserve_version() -> str:
    """As it is installed; read once, for that means parsing the metadata of the package."""
    return version("dryserve")
