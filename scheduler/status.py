"""Where a request stands, and the one table of moves between those standings.

A request is always in exactly one status. `check_move` is the only door from one to the next; a move that
the engine never makes is a bug in the caller and raises `InvariantError` instead of passing silently.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

from scheduler.errors import InvariantError


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
