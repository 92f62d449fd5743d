"""When an output token ends a request."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.config import SchedulerConfig
from scheduler.request import Request
from scheduler.status import RequestStatus


def append_until_stop(
    request: Request, tokens: Sequence[int], config: SchedulerConfig
) -> tuple[int, RequestStatus | None]:
    """Append sampled tokens one by one until one ends the request; the rest is cut.

    Returns how many were appended and the final status, None if the request goes on. In this order a token ends
    the output: EOS, a stop token, the model's or the request's length limit. Before `min_tokens` nothing does.
    """
    count = 0
    for token in tokens:
        count += 1
        position = request.num_tokens
        if token - position != request.tokens.shifts[-1]:
            request.tokens.append(position, token)
        request.num_tokens = position + 1
        num_outputs = request.num_output_tokens + 1
        request.num_output_tokens = num_outputs
        if num_outputs < request.min_tokens:
            continue
        if token == config.eos_token_id and not request.ignore_eos:
            return count, RequestStatus.FINISHED_STOPPED
        if token in request.stop_token_ids:
            request.stop_reason = token
            return count, RequestStatus.FINISHED_STOPPED
        if num_outputs >= request.max_tokens or position + 1 >= config.max_model_len:
            return count, RequestStatus.FINISHED_LENGTH_CAPPED
    return count, None
