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
    for count, token in enumerate(tokens, 1):
        request.append_token(token)
        if request.num_output_tokens < request.min_tokens:
            continue
        if token == config.eos_token_id and not request.ignore_eos:
            return count, RequestStatus.FINISHED_STOPPED
        if token in request.stop_token_ids:
            request.stop_reason = token
            return count, RequestStatus.FINISHED_STOPPED
        if request.num_tokens >= config.max_model_len or request.num_output_tokens >= request.max_tokens:
            return count, RequestStatus.FINISHED_LENGTH_CAPPED
    return len(tokens), None
