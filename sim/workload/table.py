"""The requests of a run as columns, a million to 40 MB; prompts are derived one by one on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from sim.workload.prompts import Prompts, Ranges


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable:
    """One row a request, in order of arrival; the row number is the request id.

    `arrival_s` counts from the start of the run. `rejected` marks requests longer than `max_model_len`: a
    server refuses them on arrival; they must be counted, never served. `session` is -1 for none.
    `expected_output_tokens` are guesses that come with the requests, None where the workload has no guesses.
    """

    arrival_s: npt.NDArray[np.float64]
    prompt_tokens: npt.NDArray[np.int32]
    output_tokens: npt.NDArray[np.int32]
    class_index: npt.NDArray[np.int16]
    class_names: tuple[str, ...]
    session: npt.NDArray[np.int64]
    priority: npt.NDArray[np.int32]
    rejected: npt.NDArray[np.bool_]
    prompts: Prompts
    expected_output_tokens: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    def prompt_ranges(self, index: int) -> Ranges:
        """The prompt of request `index` as `((first token id, tokens), …)`; equal ids are equal tokens."""
        return self.prompts.ranges(index, int(self.prompt_tokens[index]))

    def output_start(self, index: int) -> int:
        """The id of the first token that request `index` generates; the others follow it."""
        return self.prompts.output_start(index, int(self.prompt_tokens[index]))


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The requests, how they are offered, and what was repaired or refused on the way.

    `loop` is "open" when requests come at `arrival_s`, "closed" when the next comes as one ends (`arrival_s`
    is then 0 for all, and rows go in order). `max_concurrency` caps the requests in flight in either loop.
    """

    table: RequestTable
    loop: Literal["open", "closed"] = "open"
    max_concurrency: int | None = None
    ignore_eos: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine can take: the most prompt + output tokens of a request."""

    max_model_len: int
