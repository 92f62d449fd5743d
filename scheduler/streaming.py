"""Streaming sessions: a request whose prompt arrives in pieces, with an output after each.

When a turn of a session ends, the session keeps its blocks and queues up again: with its next input, or idle
until one comes. An idle session is not unfinished work.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.request import Request, RequestStatus
from scheduler.state import EngineState
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


class Sessions:
    """The inputs that have come for busy sessions, and what happens between two turns."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    def submit(self, request: Request, new_input: SessionInput | None) -> None:
        """The next input of a session has come, or its end (None). A busy session takes it up later."""
        if request.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
            request.session_inputs.append(new_input)
        elif new_input is None:
            self.state.finish([request], RequestStatus.FINISHED_ABORTED)
        else:
            self._merge(request, new_input)
            request.move_to(RequestStatus.WAITING)
            self.state.num_sessions_idle -= 1

    def end_turn(self, request: Request) -> bool:
        """A stop in a resumable request: True if it has really ended. Else the caller enqueues it again, with
        its next input or idle.
        """
        if request.session_inputs and request.session_inputs[0] is None:
            return True
        self.state.bookkeeping.note_turn_ended(request)
        if request.session_inputs:
            new_input = request.session_inputs.pop(0)
            assert isinstance(new_input, SessionInput)
            self._merge(request, new_input)
            request.move_to(RequestStatus.WAITING)
        else:
            request.move_to(RequestStatus.WAITING_FOR_STREAMING_REQ)
            self.state.num_sessions_idle += 1
        return False

    def _merge(self, request: Request, new_input: SessionInput) -> None:
        """The text so far becomes the prompt, and the new input follows it."""
        if self.state.kv_cache.caching:
            self.state.kv_cache.hasher.extend(request)
        kept = self._keep(request)
        request.tokens.truncate(kept)
        length = request.tokens.append_ranges(kept, new_input.prompt)
        request.num_prompt_tokens += max(0, kept - request.num_prompt_tokens) + length - kept
        request.num_tokens = length
        request.num_output_tokens = 0
        request.arrival_time = new_input.arrival_time
        if self.state.rules.merge_keeps_all_but_the_last_token:
            request.max_tokens = new_input.max_tokens
        if new_input.min_tokens is not None:
            request.min_tokens = new_input.min_tokens
        if new_input.ignore_eos is not None:
            request.ignore_eos = new_input.ignore_eos
        if new_input.stop_token_ids is not None:
            request.stop_token_ids = new_input.stop_token_ids
        request.max_total_tokens = request.num_prompt_tokens + request.max_tokens

    def _keep(self, request: Request) -> int:
        """How many tokens the next input follows: the last sampled one has no KV and is dropped.

        Early releases keep what has KV, and also the hash of a block that ends with the dropped token, so
        that later blocks are cached under hashes of text they do not have. Later ones keep all but the last
        token, computed or not, and cut the hashes beyond.
        """
        if not self.state.rules.merge_keeps_all_but_the_last_token:
            return min(request.num_computed_tokens, request.num_tokens)
        kept = request.num_tokens - 1
        self.state.kv_cache.hasher.truncate(request, kept)
        return kept
