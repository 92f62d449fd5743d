"""Requests on their way from distributions or rows of a trace to the table of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.values import Floats, Ints
from sim.workload.prompts import Prompts


@dataclass(slots=True, eq=False)
class Drawn:
    """Requests before they meet the limits of the engine. `row_name` tells a user which request is meant."""

    arrival_s: Floats
    prompt: Ints
    output: Ints
    class_index: npt.NDArray[np.integer]
    class_names: tuple[str, ...]
    prompts: Prompts
    row_name: Callable[[int], str]
    notes: list[str]
    session: Ints | None = None
    priority: Ints | None = None
    turn_after: Ints | None = None
    think_s: Floats | None = None
