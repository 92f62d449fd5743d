"""The model that recordings pretend to have: its tokens and drafts follow from a script in each request."""

from __future__ import annotations

from collections import Counter

from scheduler import EOS_TOKEN_ID, EngineCoreOutputs, Request, SchedulerOutput
from sim.evidence.conform.case import Case


class PretendedModel:
    """Scripts of a case's requests, and how far each has been read."""

    def __init__(self, case: Case) -> None:
        self._requests = case.requests
        self._num_drafts = (case.config.get("spec") or {}).get("k", 0)
        self.num_output_tokens: Counter[int] = Counter()
        """Tokens appended over each request's whole life."""
        self._sampling_events: Counter[int] = Counter()
        self._validations: Counter[int] = Counter()
        self._sampled: set[int] = set()
        """Who got tokens in the latest step."""

    def sample(self, output: SchedulerOutput) -> list[list[int]]:
        """The tokens of a step, one list per scheduled request."""
        sampled: list[list[int]] = []
        admitted = {*output.new, *output.resumed}
        for request, samples in zip(output.requests, output.samples, strict=True):
            if samples and not request.is_finished:
                drafts = output.scheduled_spec_decode_tokens.get(request.request_id, 0)
                if request in admitted:  # dummies that pad an admission are never accepted
                    drafts = 0
                sampled.append(self._tokens(request.request_id, drafts))
            else:
                sampled.append([])
        self._sampled = {
            request.request_id for request, tokens in zip(output.requests, sampled, strict=True) if tokens
        }
        return sampled

    def _tokens(self, request_id: int, num_drafts: int) -> list[int]:
        script = self._requests[request_id]
        accept = script.get("accept", [0])
        accepted = min(accept[self._sampling_events[request_id] % len(accept)], num_drafts)
        self._sampling_events[request_id] += 1
        first = self.num_output_tokens[request_id]
        return [self._token(request_id, number) for number in range(first, first + accepted + 1)]

    def _token(self, request_id: int, number: int) -> int:
        script = self._requests[request_id]
        if number in script.get("eos_at", ()):
            return EOS_TOKEN_ID
        stop_at = script.get("stop_at")
        if stop_at and stop_at[0] == number:
            return stop_at[1]
        return script["out"] + number

    def steady_tokens(self, request: Request) -> int:
        """How many of the next tokens go on by one id each; see `scheduler.cohort.Forecast`."""
        script = self._requests[request.request_id]
        last = request.tokens.shifts[-1] + request.num_tokens - 1
        number = last - script["out"] + 1
        if number < 1:
            return 0
        ends = [*script.get("eos_at", ()), *script.get("stop_at", ())[:1]]
        return min((end - number for end in ends if end >= number), default=1 << 60)

    def note(self, outputs: EngineCoreOutputs) -> None:
        """Count the tokens that the engine really appended."""
        for request, count, _ in outputs.entries:
            self.num_output_tokens[request.request_id] += count

    def propose(self, output: SchedulerOutput) -> list[int]:
        """How many drafts follow the step that was sampled last, for each scheduled request."""
        counts = []
        for request in output.requests:
            drafts = self._requests[request.request_id].get("drafts") or [self._num_drafts]
            number = self._sampling_events[request.request_id] - 1
            counts.append(
                min(self._num_drafts, drafts[number % len(drafts)])
                if request.request_id in self._sampled
                else 0
            )
        return counts

    def num_valid(self, request: Request, num_drafts: int) -> int:
        """The grammar's word on a draft: as many leading tokens as the script says for this call."""
        valid = self._requests[request.request_id].get("grammar_valid")
        if not valid:
            return num_drafts
        number = self._validations[request.request_id]
        self._validations[request.request_id] += 1
        return min(num_drafts, valid[number % len(valid)])
