"""The pretended model: the only place that knows how long each answer will be; it hands out tokens one by
one.

The scheduler must decide without that knowledge, as an engine does: it learns of an answer's end when it sees
the EOS token.
"""

from __future__ import annotations

from typing import Final

from scheduler import EOS_TOKEN_ID, Request, SchedulerOutput

NEVER: Final = 1 << 62


class ModelRunner:
    """Samples tokens for all replicas, for the requests that it was told of.

    An answer's tokens are consecutive ids, so that a later prompt can continue it; its last token is the EOS,
    unless `ignore_eos`: answers then run to max_tokens, which is their length.
    """

    def __init__(self, *, ignore_eos: bool) -> None:
        self._ignore_eos = ignore_eos
        self._answers: dict[int, tuple[int, int]] = {}

    def expect(self, request_id: int, output_tokens: int, output_start: int) -> None:
        """A request arrives: the true length of its answer, EOS included, and the id of its first token."""
        self._answers[request_id] = (output_tokens - 1, output_start)

    def forget(self, request_id: int) -> None:
        """The request has ended."""
        del self._answers[request_id]

    def steady_tokens(self, request: Request) -> int:
        """How many tokens of an answer under way come before its EOS; see `scheduler.cohort.Forecast`."""
        last, _ = self._answers[request.request_id]
        return NEVER if self._ignore_eos else last - request.num_output_tokens

    def sample(self, output: SchedulerOutput) -> list[list[int]]:
        """New tokens of each scheduled request in scheduled order; none where the step ends amid a prompt.

        To be called when the step ends: the next token follows those appended by then. A request that ended
        while the step was in flight gets none.
        """
        answers, never_ends, samples = self._answers, self._ignore_eos, output.samples
        sampled: list[list[int]] = []
        for i, request in enumerate(output.requests):
            answer = answers.get(request.request_id) if samples[i] else None
            if answer is None:
                sampled.append([])
                continue
            position = request.num_output_tokens
            last, start = answer
            sampled.append([start + position if position < last or never_ends else EOS_TOKEN_ID])
        return sampled

    def _token(self, request_id: int, position: int) -> int:
        """The token at a position of an answer; from its end on, EOS."""
        last, start = self._answers[request_id]
        return start + position if position < last or self._ignore_eos else EOS_TOKEN_ID
