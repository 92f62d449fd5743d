"""Streaming sessions: a request whose prompt arrives in pieces, with an output after each.

When a turn of a session ends, the session keeps its blocks and queues up again: with its next input, or idle
until one comes. An idle session is not unfinished work.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.lifecycle import finish
from scheduler.output import SchedulerOutput
from scheduler.request import Request
from scheduler.state import EngineState
from scheduler.status import RequestStatus
from scheduler.tokens import TokenRange


@dataclass(frozen=True, slots=True)
class SessionInput:
    """The next piece of a session. Sampling parameters left None stay as they are."""

    prompt: tuple[TokenRange, ...]
    max_tokens: int
    arrival_time: float = 0.0
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: frozenset[int] | None = None


class IdleSessionGate:
    """Passes over sessions that wait for their next input."""

    def holds_back(self, request: Request, output: SchedulerOutput) -> bool:
        """True while the session is idle."""
        return request.status is RequestStatus.WAITING_FOR_STREAMING_REQ


class Sessions:
    """The inputs that have come for busy sessions, and what happens between two turns."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._inputs: dict[int, list[SessionInput | None]] = {}

    def submit(self, request: Request, new_input: SessionInput | None) -> None:
        """The next input of a session has come, or its end (None). A busy session takes it up later."""
        if request.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
            self._inputs.setdefault(request.request_id, []).append(new_input)
        elif new_input is None:
            finish(self.state, [request], RequestStatus.FINISHED_ABORTED)
        else:
            self._merge(request, new_input)
            request.move_to(RequestStatus.WAITING)
            self.state.num_sessions_idle -= 1

    def end_turn(self, request: Request) -> bool:
        """A stop in a resumable request: queue the session up again, or return True if it has really
        ended.
        """
        queued = self._inputs.get(request.request_id)
        if not queued:
            request.move_to(RequestStatus.WAITING_FOR_STREAMING_REQ)
            self.state.num_sessions_idle += 1
            self.state.waiting.add(request)
            return False
        new_input = queued.pop(0)
        if new_input is None:
            return True
        self._merge(request, new_input)
        request.move_to(RequestStatus.WAITING)
        self.state.waiting.add(request)
        return False

    def forget(self, request: Request) -> None:
        """The session is over."""
        self._inputs.pop(request.request_id, None)

    def _merge(self, request: Request, new_input: SessionInput) -> None:
        """What has KV so far becomes the prompt, and the new input follows it.

        The last sampled token has no KV and is dropped. A hash already made of a block that ends with it
        stays (vLLM 0.16 does not truncate hashes), and so does the first input's `max_tokens`.
        """
        if self.state.kv_cache.caching:
            self.state.kv_cache.hasher.extend(request)
        kept = min(request.num_computed_tokens, request.num_tokens)
        request.tokens.truncate(kept)
        length = request.tokens.append_ranges(kept, new_input.prompt)
        request.num_prompt_tokens += max(0, kept - request.num_prompt_tokens) + length - kept
        request.num_tokens = length
        request.max_total_tokens = request.num_prompt_tokens + request.max_tokens
        request.num_output_tokens = 0
        request.arrival_time = new_input.arrival_time
        if new_input.min_tokens is not None:
            request.min_tokens = new_input.min_tokens
        if new_input.ignore_eos is not None:
            request.ignore_eos = new_input.ignore_eos
        if new_input.stop_token_ids is not None:
            request.stop_token_ids = new_input.stop_token_ids
