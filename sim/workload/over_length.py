"""Requests longer than the engine's context: refused or cut, always counted, never made negative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from sim.values import Ints

SHOWN = 3


def fit_lengths(
    prompt: Ints,
    output: Ints,
    max_model_len: int,
    rule: Literal["reject", "clip"],
    row_name: Callable[[int], str],
) -> tuple[Ints, Ints, npt.NDArray[np.bool_], list[str]]:
    """Prompt and output tokens after the rule, which requests are rejected, and what to say about it.

    Clipping cuts the output to the room that the prompt leaves. A prompt that leaves none is cut first, to
    make room for its output, but not below half of the context.
    """
    over = prompt + output > max_model_len
    if not over.any():
        return prompt, output, over, []
    rows = np.flatnonzero(over)
    examples = "; ".join(
        f"{row_name(row)}: {prompt[row]} prompt + {output[row]} output tokens"
        for row in rows[:SHOWN].tolist()
    )
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    done = "rejected" if rule == "reject" or max_model_len < 2 else "clipped"
    note = f"{len(rows)} of {len(over)} requests exceed max_model_len {max_model_len} and are {done}"
    note += f": {examples}{more}"
    if done == "rejected":
        return prompt, output, over, [note]
    room = np.maximum(np.maximum(max_model_len - output, max_model_len // 2), 1)
    prompt = np.where(over & (prompt >= max_model_len), room, prompt)
    output = np.where(over, max_model_len - prompt, output)
    return prompt, output, np.zeros_like(over), [note]
