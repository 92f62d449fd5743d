"""What recordings pretend to have: a model and a KV connector, whose every answer follows from a script.

Each request of a case says which tokens and drafts the model gives it, and what the connector has for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scheduler import (
    EOS_TOKEN_ID,
    EngineCoreOutputs,
    ExternalMatch,
    KVReport,
    Request,
    RequestStatus,
    SchedulerOutput,
)
from sim.evidence.conform.case import Case, TransferScript


class PretendedModel:
    """A model whose tokens and drafts are those of a case's scripts; it knows how far each has been read."""

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


@dataclass(slots=True)
class _Transfer:
    """A load or a send under way, to be reported at the first update from step `due` on."""

    request: Request
    due: int


class ScriptedConnector:
    """Plays the `ext` scripts of a case. `now` is the step under way; the replay sets it."""

    def __init__(self, case: Case) -> None:
        self._scripts = [script.get("ext") for script in case.requests]
        self.now = 0
        self._deferred: Counter[int] = Counter()
        self._num_loads: Counter[int] = Counter()
        self._failed: set[int] = set()
        self._matched: dict[int, ExternalMatch] = {}
        self._loads: list[_Transfer] = []
        self._sends: list[_Transfer] = []
        self._sync_loads: list[tuple[int, Request, list[int]]] = []

    def match(self, request: Request, num_local_tokens: int) -> ExternalMatch | None:
        """What the script offers beyond the local hits."""
        script = self._scripts[request.request_id]
        match = ExternalMatch(0, False)
        if script is not None:
            if self._deferred[request.request_id] < script.get("defer", 0):
                self._deferred[request.request_id] += 1
                return None
            asynchronous = bool(script.get("async", False))
            if self._num_loads[request.request_id] < script.get("times", 1):
                covered = min(script["tokens"], request.num_tokens - (0 if asynchronous else 1))
                num_tokens = max(covered - num_local_tokens, 0)
                match = ExternalMatch(num_tokens, asynchronous and num_tokens > 0)
        self._matched[request.request_id] = match
        return match

    def note_allocated(self, request: Request, num_external_tokens: int) -> None:
        """A load starts."""
        script = self._scripts[request.request_id]
        if script is None or not num_external_tokens:
            return
        self._num_loads[request.request_id] += 1
        if self._matched[request.request_id].asynchronous:
            self._loads.append(_Transfer(request, self.now + script.get("delay", 0)))
        else:
            self._sync_loads.append((self.now, request, self._bad_blocks(request, script)))

    def delays_free(self, request: Request) -> bool:
        """Whether the blocks of an ended request are still to be sent."""
        script = self._scripts[request.request_id]
        ended_by_output = request.status in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        )
        if script is None or "send" not in script or not ended_by_output:
            return False
        self._sends.append(_Transfer(request, self.now + script["send"]))
        return True

    def report(self, step: int) -> KVReport:
        """What to report with the output of `step`, now."""
        received = [load.request for load in self._loads if load.due <= self.now]
        sent = [send.request for send in self._sends if send.due <= self.now]
        self._loads = [load for load in self._loads if load.due > self.now]
        self._sends = [send for send in self._sends if send.due > self.now]
        invalid: set[int] = set()
        for request in received:
            script = self._scripts[request.request_id]
            if script is not None:
                invalid.update(self._bad_blocks(request, script))
        for loaded_at, _, bad in self._sync_loads:
            if loaded_at == step:
                invalid.update(bad)
        self._sync_loads = [load for load in self._sync_loads if load[0] != step]
        return KVReport([r.request_id for r in received], [r.request_id for r in sent], sorted(invalid))

    def _bad_blocks(self, request: Request, script: TransferScript) -> list[int]:
        if "fail" not in script or request.request_id in self._failed:
            return []
        self._failed.add(request.request_id)
        table = request.block_tables[0] if request.block_tables else []
        return [table[i] for i in script["fail"] if i < len(table)]
