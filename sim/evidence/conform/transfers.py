"""The KV connector that recordings pretend to have: matches, loads, sends and failures follow a script."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scheduler import ExternalMatch, KVReport, Request, RequestStatus
from sim.evidence.conform.case import Case, TransferScript


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
