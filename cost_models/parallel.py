"""How a model is split over GPUs, and the faults of a split that cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.errors import SpecError
from cost_models.models import Model


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Sizes of the parallel groups of one deployment.

    `tensor` × `pipeline` GPUs make one engine. `data` engines run side by side and share the experts of a
    mixture-of-experts model when `expert` > 1: experts are then whole and spread over `expert` GPUs
    (normally tensor × data) instead of being sliced by `tensor`.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole deployment."""
        return self.tensor * self.pipeline * self.data

    def check(self, model: Model) -> None:
        """Raise SpecError, listing every way in which this split does not divide the model."""
        faults = [
            f"{name} parallel size must be at least 1, not {size}"
            for name, size in (
                ("tensor", self.tensor),
                ("pipeline", self.pipeline),
                ("data", self.data),
                ("expert", self.expert),
            )
            if size < 1
        ]
        if not faults:
            faults = list(self._indivisible(model))
        if faults:
            raise SpecError(f"{model.name} on TP {self.tensor} x PP {self.pipeline}", faults)

    def _indivisible(self, model: Model) -> list[str]:
        faults = []
        tp, kv = self.tensor, model.num_kv_heads
        if model.num_heads % tp:
            faults.append(f"tensor parallel size {tp} does not divide {model.num_heads} attention heads")
        if not model.mla and kv % tp and tp % kv:
            faults.append(
                f"tensor parallel size {tp} neither divides {kv} KV heads nor is a multiple of them"
            )
        if self.pipeline > model.num_layers:
            faults.append(f"pipeline parallel size {self.pipeline} exceeds {model.num_layers} layers")
        if self.expert > 1 and not model.moe:
            faults.append(f"expert parallel size {self.expert} needs a mixture-of-experts model")
        elif self.expert > 1 and model.moe and model.moe.num_experts % self.expert:
            faults.append(
                f"expert parallel size {self.expert} does not divide {model.moe.num_experts} experts"
            )
        return faults

    def kv_heads_per_gpu(self, model: Model) -> int:
        """KV heads that one GPU holds: at least one, so they are replicated when there are fewer heads than
        GPUs.
        """
        return max(model.num_kv_heads // self.tensor, 1)
