"""One name for each kind of value that many modules pass on: columns of numbers, and data as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""What a JSON file may hold."""


def finite(value: float) -> float | None:
    """The value, or None where it is no number: JSON has neither NaN nor infinity."""
    return value if isfinite(value) else None


def plain_json(value: object) -> Json:
    """A value as JSON has it: numbers of numpy as Python's, tuples as lists, keys as text, NaN as None."""
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if isinstance(value, Mapping):
        return {
            f"{key:g}" if isinstance(key, float) else str(key): plain_json(each)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [plain_json(each) for each in value]
    if isinstance(value, float):
        return finite(value)
    return value if value is None or isinstance(value, (bool, int)) else str(value)
