"""LoRA slots: a step can use only so many distinct adapters."""

from __future__ import annotations

from scheduler.gates import AdmissionGate
from scheduler.output import SchedulerOutput
from scheduler.request import Request
from scheduler.state import EngineState


class AdapterGate(AdmissionGate):
    """Passes over requests whose adapter would be one too many in this step.

    The adapters of a step are those of everything scheduled in it so far or, as the release has it, of all
    running requests. Requests without adapter always pass.
    """

    def __init__(self, state: EngineState, max_loras: int) -> None:
        self.state = state
        self.max_loras = max_loras
        self._output: SchedulerOutput | None = None
        self._names: set[str] = set()
        self._num_seen = 0

    def holds_back(self, request: Request, output: SchedulerOutput) -> bool:
        """True if all slots are taken by other adapters."""
        if request.lora_name is None:
            return False
        if output is not self._output:
            self._output, self._names, self._num_seen = output, set(), 0
            if self.state.rules.all_running_adapters_count:
                self._names = {r.lora_name for r in self.state.running if r.lora_name is not None}
        for scheduled in output.requests[self._num_seen :]:
            if scheduled.lora_name is not None:
                self._names.add(scheduled.lora_name)
        self._num_seen = len(output.requests)
        return len(self._names) == self.max_loras and request.lora_name not in self._names
