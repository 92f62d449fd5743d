"""When an output token ends a request."""

from __future__ import annotations

from scheduler.config import SchedulerConfig
from scheduler.release import Rules
from scheduler.request import Request
from scheduler.status import RequestStatus


class StopRules:
    """Appends sampled tokens until one ends the request: EOS, a stop token, or a length limit."""

    __slots__ = ("eos_token_id", "ignore_min_tokens", "max_model_len")

    def __init__(self, config: SchedulerConfig, rules: Rules) -> None:
        self.ignore_min_tokens = rules.ignore_min_tokens
        self.eos_token_id = config.eos_token_id
        self.max_model_len = config.max_model_len

    def append(self, request: Request, tokens: list[int]) -> RequestStatus | None:
        """Append tokens one by one; after one that ends the request the rest is cut.

        Returns the final status, None if the request goes on. Before `min_tokens` outputs nothing ends it;
        then, in this order: EOS unless ignored, a stop token, the model's or the request's length limit.
        """
        for token in tokens:
            position = request.num_tokens
            if token - position != request.tokens.shifts[-1]:
                request.tokens.append(position, token)
            request.num_tokens = position + 1
            num_outputs = request.num_output_tokens + 1
            request.num_output_tokens = num_outputs
            if num_outputs < request.min_tokens and not self.ignore_min_tokens:
                continue
            if token == self.eos_token_id and not request.ignore_eos:
                return RequestStatus.FINISHED_STOPPED
            if request.stop_token_ids and token in request.stop_token_ids:
                request.stop_reason = token
                return RequestStatus.FINISHED_STOPPED
            if num_outputs >= request.max_tokens or position + 1 >= self.max_model_len:
                return RequestStatus.FINISHED_LENGTH_CAPPED
        return None
