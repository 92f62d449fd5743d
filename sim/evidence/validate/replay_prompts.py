"""Whose tokens are whose: prompts that repeat, and prompts that share the prefix of their group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.evidence.validate.traffic import Traffic
from sim.workload import RequestTable, Workload
from sim.workload.prompts import SLOT_BITS, Ranges

__all__ = ["ReplayPrompts", "replay_workload"]


@dataclass(frozen=True, slots=True)
class ReplayPrompts:
    """Equal `prompt_index` means the same prompt, equal `group_index` the same first `shared_tokens`."""

    prompt_index: np.ndarray
    group_index: np.ndarray
    num_groups: int
    shared_tokens: int

    def _own_start(self, index: int) -> int:
        return (1 + self.num_groups + int(self.prompt_index[index])) << SLOT_BITS

    def ranges(self, index: int, prompt_tokens: int) -> Ranges:
        """The group's prefix as far as the prompt reaches, then the prompt's own tokens."""
        shared = min(self.shared_tokens, prompt_tokens)
        if shared == 0:
            return ((self._own_start(index), prompt_tokens),)
        prefix = ((1 + int(self.group_index[index])) << SLOT_BITS, shared)
        own = ((self._own_start(index), prompt_tokens - shared),) if shared < prompt_tokens else ()
        return (prefix, *own)

    def output_start(self, index: int, prompt_tokens: int) -> int:
        """Right after the prompt's own tokens; a repeated prompt gets the same answer."""
        return self._own_start(index) + prompt_tokens - min(self.shared_tokens, prompt_tokens)


def replay_workload(traffic: Traffic, max_model_len: int) -> Workload:
    """The traffic as the simulator takes it; output lengths are forced, as they were measured or stated.

    Requests longer than `max_model_len` are refused on arrival, as a server does.
    """
    count = len(traffic.arrival_s)
    measured_s = traffic.arrival_s[traffic.num_warmup :]
    closed = traffic.max_concurrency is not None and bool((measured_s == measured_s[0]).all())
    return Workload(
        table=RequestTable(
            arrival_s=traffic.arrival_s,
            prompt_tokens=traffic.prompt_tokens.astype(np.int32),
            output_tokens=traffic.output_tokens.astype(np.int32),
            class_index=np.zeros(count, np.int16),
            class_names=("default",),
            session=np.full(count, -1, np.int64),
            priority=np.zeros(count, np.int32),
            rejected=traffic.prompt_tokens + traffic.output_tokens > max_model_len,
            prompts=ReplayPrompts(
                prompt_index=traffic.prompt_index,
                group_index=traffic.group_index,
                num_groups=int(traffic.group_index.max(initial=0)) + 1,
                shared_tokens=traffic.shared_prefix_tokens,
            ),
        ),
        loop="closed" if closed else "open",
        max_concurrency=traffic.max_concurrency,
        ignore_eos=True,
    )
