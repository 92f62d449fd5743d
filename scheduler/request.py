"""One request as the engine sees it: what it asks for, and how far it has come.

There is no prefill or decode state. A request has `num_tokens` known tokens (prompt and appended outputs) and
`num_computed_tokens` of them have KV; every step tries to let the second catch up with the first. How long
the output will be in the end is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Final

from scheduler.errors import InvariantError
from scheduler.tokens import BlockKeys, TokenRange, TokenRanges


class RequestStatus(IntEnum):
    """vLLM's request statuses. Everything from `FINISHED_STOPPED` on is final."""

    WAITING = 0
    WAITING_FOR_FSM = 1
    WAITING_FOR_REMOTE_KVS = 2
    WAITING_FOR_STREAMING_REQ = 3
    RUNNING = 4
    PREEMPTED = 5
    FINISHED_STOPPED = 6
    FINISHED_LENGTH_CAPPED = 7
    FINISHED_ABORTED = 8
    FINISHED_ERROR = 9

    @property
    def is_finished(self) -> bool:
        """True once the request has ended, for whatever reason."""
        return self >= RequestStatus.FINISHED_STOPPED


# What is asked for in every step, as constants: a compiled module need not look them up in the class.
WAITING: Final = RequestStatus.WAITING
RUNNING: Final = RequestStatus.RUNNING
PREEMPTED: Final = RequestStatus.PREEMPTED
FIRST_FINISHED: Final = RequestStatus.FINISHED_STOPPED


class FinishReason(StrEnum):
    """Why a request ended, as the API reports it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


_S = RequestStatus

FINISH_REASONS: Final[dict[RequestStatus, FinishReason]] = {
    _S.FINISHED_STOPPED: FinishReason.STOP,
    _S.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    _S.FINISHED_ABORTED: FinishReason.ABORT,
    _S.FINISHED_ERROR: FinishReason.ERROR,
}

# a token ends the request; or a turn of a streaming session, which goes on with its next input or is idle
_TURN_ENDS = {_S.FINISHED_STOPPED, _S.FINISHED_LENGTH_CAPPED, _S.WAITING, _S.WAITING_FOR_STREAMING_REQ}
# asynchronous scheduling: a token still in flight may end the session's turn a second time
_TURN_ENDS_AGAIN = _TURN_ENDS
_ENDED_FROM_OUTSIDE = {_S.FINISHED_ABORTED, _S.FINISHED_ERROR}

MOVES: Final[dict[RequestStatus, frozenset[RequestStatus]]] = {
    _S.WAITING: frozenset({_S.RUNNING, _S.WAITING_FOR_REMOTE_KVS} | _TURN_ENDS_AGAIN | _ENDED_FROM_OUTSIDE),
    _S.WAITING_FOR_FSM: frozenset({_S.WAITING} | _ENDED_FROM_OUTSIDE),
    _S.WAITING_FOR_REMOTE_KVS: frozenset({_S.WAITING, _S.PREEMPTED} | _ENDED_FROM_OUTSIDE),
    _S.WAITING_FOR_STREAMING_REQ: frozenset(_TURN_ENDS_AGAIN | _ENDED_FROM_OUTSIDE),
    _S.RUNNING: frozenset({_S.PREEMPTED} | _TURN_ENDS | _ENDED_FROM_OUTSIDE),
    # asynchronous scheduling: a token in flight may end a request that was preempted meanwhile
    _S.PREEMPTED: frozenset({_S.RUNNING, _S.WAITING_FOR_REMOTE_KVS} | _TURN_ENDS | _ENDED_FROM_OUTSIDE),
    _S.FINISHED_STOPPED: frozenset(),
    _S.FINISHED_LENGTH_CAPPED: frozenset(),
    _S.FINISHED_ABORTED: frozenset(),
    _S.FINISHED_ERROR: frozenset(),
}


def check_move(request_id: int, old: RequestStatus, new: RequestStatus) -> None:
    """Raise `InvariantError` unless the engine knows a way from `old` to `new`."""
    if new not in MOVES[old]:
        raise InvariantError(f"request {request_id}: no way from {old.name} to {new.name}")


EOS_TOKEN_ID = 2
"""The end-of-sequence token of the pretended models."""

_NO_TOKENS: Final[frozenset[int]] = frozenset()


class Request:
    """A request and its progress. Counts are tokens unless the name says otherwise.

    `prompt` is a sequence of `(first token id, count)` ranges. `arrival_time` (s) and `priority` (smaller
    runs first) order the waiting queue under the priority policy. `cache_salt` and `lora_name` enter the
    block hashes. `resumable` marks a streaming session that goes on with further inputs.
    """

    __slots__ = (
        "arrival_time",
        "block_keys",
        "block_tables",
        "cache_salt",
        "client_index",
        "drop_stale_output",
        "expected_output_tokens",
        "high_water_tokens",
        "ignore_eos",
        "is_prefill_chunk",
        "junction_tokens",
        "lora_name",
        "max_tokens",
        "max_total_tokens",
        "member",
        "min_tokens",
        "needs_grammar",
        "next_decode_call",
        "next_full_tokens",
        "next_kv_change_tokens",
        "num_cached_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_draft_tokens",
        "num_external_tokens",
        "num_loaded_tokens",
        "num_local_hit_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "num_stale_tokens",
        "num_tokens",
        "num_tokens_in_flight",
        "priority",
        "request_id",
        "resumable",
        "running_order",
        "session_inputs",
        "skip_reading_prefix_cache",
        "status",
        "stop_reason",
        "stop_token_ids",
        "tokens",
    )

    def __init__(
        self,
        request_id: int,
        prompt: Iterable[TokenRange],
        max_tokens: int,
        *,
        arrival_time: float = 0.0,
        priority: int = 0,
        client_index: int = 0,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        stop_token_ids: Iterable[int] = _NO_TOKENS,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        skip_reading_prefix_cache: bool = False,
        needs_grammar: bool = False,
        resumable: bool = False,
        expected_output_tokens: float | None = None,
    ) -> None:
        self.request_id = request_id
        self.max_tokens = max_tokens
        self.arrival_time = arrival_time
        self.priority = priority
        self.client_index = client_index
        self.min_tokens = min_tokens
        self.ignore_eos = ignore_eos
        self.stop_token_ids = (
            stop_token_ids if isinstance(stop_token_ids, frozenset) else frozenset(stop_token_ids)
        )
        self.lora_name = lora_name
        self.cache_salt = cache_salt
        self.skip_reading_prefix_cache = skip_reading_prefix_cache
        self.needs_grammar = needs_grammar
        self.resumable = resumable
        self.expected_output_tokens = expected_output_tokens
        """A guess at the output's length that came with the request, for policies; never the truth."""

        self.tokens = TokenRanges()
        self.num_tokens = self.tokens.append_ranges(0, prompt)
        if self.num_tokens < 1 or max_tokens < 1:
            raise ValueError(
                f"request {request_id} needs at least one prompt token and one output token, "
                f"has {self.num_tokens} and {max_tokens}"
            )
        self.num_prompt_tokens = self.num_tokens
        self.max_total_tokens = self.num_tokens + max_tokens
        """Prompt and longest output together."""
        self.num_output_tokens = 0
        self.num_computed_tokens = 0
        self.num_draft_tokens = 0
        """Draft tokens attached, to be verified in the next step."""
        self.num_output_placeholders = 0
        """Asynchronous scheduling: tokens scheduled but not yet returned."""

        self.status = RequestStatus.WAITING_FOR_FSM if needs_grammar else RequestStatus.WAITING
        self.stop_reason: int | None = None
        """The stop token that ended the output, once one has."""
        self.num_cached_tokens = -1
        """Tokens already computed when first scheduled; -1 before that."""
        self.num_external_tokens = 0
        """Of these, the tokens that came through the KV connector."""
        self.num_tokens_in_flight = 0
        """Asynchronous scheduling, where the release counts them: scheduled tokens not yet processed."""
        self.num_stale_tokens = 0
        """Of these, those that were in flight when the request was preempted or its turn ended."""
        self.drop_stale_output = False
        """Output in flight is worthless: it is dropped instead of delivered."""
        self.is_prefill_chunk = False
        """Whether its latest step left known tokens uncomputed."""
        self.num_local_hit_tokens = 0
        """Tokens hit in the prefix cache at its latest admission with a lookup before any preemption."""
        self.num_loaded_tokens = 0
        """Tokens matched by the connector at that admission."""
        self.junction_tokens = 0
        """A length that some KV group could have hit at the latest lookup, beyond what all could; 0: none."""
        self.session_inputs: list[object] = []
        """Inputs that have come while the session was busy; None marks its end."""

        self.next_decode_call = 0
        """The schedule() call from which on it may decode again, where decodes are spaced."""
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.high_water_tokens = 0
        """Most tokens ever computed before a preemption: what is scheduled again below it is
        recomputation.
        """

        self.running_order = 0
        """Grows along the running list."""
        self.member: Member | None = None
        """Its place in the cohort (see `cohort`); the counts above are then those of when it joined."""

        self.block_keys = BlockKeys()
        """Hashes of the leading full blocks, see `kv_cache.hashes`."""
        self.block_tables: list[list[int]] = []
        """Block ids per KV group; empty while the request holds none."""
        self.num_cached_blocks: list[int] = []
        """Leading blocks per KV group that have been entered in the prefix cache."""
        self.next_full_tokens = 0
        """The number of tokens that fills the next block to enter in the prefix cache."""
        self.next_kv_change_tokens = 0
        """While fewer tokens than this are computed, one more changes nothing in the KV cache."""

    @property
    def is_finished(self) -> bool:
        """True once the request has ended, for whatever reason."""
        return self.status >= FIRST_FINISHED

    def move_to(self, status: RequestStatus) -> None:
        """Change the status, along the engine's ways only (`scheduler.request.MOVES`)."""
        check_move(self.request_id, self.status, status)
        self.status = status

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.status.name}, tokens={self.num_tokens}, "
            f"computed={self.num_computed_tokens})"
        )


class Member:
    """A request's place in the cohort of its engine (see `cohort`).

    Its computed tokens are `base` and the steps that the cohort has planned; it leaves in the step
    `leaves_at`. `alone`: nobody else computes its text, so its full blocks enter the prefix cache without a
    call for each, as part of a run.
    """

    __slots__ = ("alone", "base", "leaves_at", "request")

    def __init__(self, request: Request, base: int, leaves_at: int, alone: bool) -> None:
        self.request = request
        self.base = base
        self.leaves_at = leaves_at
        self.alone = alone


def place_of(request: Request, requests: list[Request]) -> int:
    """Where a request stands in a list in running order, or would stand."""
    order = request.running_order
    low, high = 0, len(requests)
    while low < high:
        middle = (low + high) >> 1
        if requests[middle].running_order < order:
            low = middle + 1
        else:
            high = middle
    return low
