"""A deployment: which model runs on which GPU, how it is split, and under which settings of the engine.

Step costs and memory plan are both worked out from this one value. Where only a part of it differs (a drafter
beside the model, another tensor parallel size), `dataclasses.replace` makes the other deployment.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.engines import default_block_size, engine_defaults
from cost_models.errors import SpecError
from cost_models.gpus import Gpu, gpu
from cost_models.models import Model, Parallelism
from cost_models.named_models import model
from cost_models.weights import WeightDtype, kv_dtype_bytes, model_weight_dtype


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine: a model on GPUs of one kind, in vLLM's names where it has one. Make it with `of`.

    weight_dtype: of the weights as loaded. kv_cache_dtype: of the KV cache, auto for 16 bit. engine_version:
    the release whose times and memory it has. block_size: tokens of a KV block. max_model_len: None where
    only memory is asked for and any length will do. greedy: every request asks for temperature 0; else rows
    are sampled as the model's generation_config.json says, which for most means top-p.
    """

    model: Model
    gpu: Gpu
    parallel: Parallelism
    weight_dtype: WeightDtype
    kv_cache_dtype: str
    engine_version: str
    async_scheduling: bool
    enforce_eager: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    gpu_memory_utilization: float
    block_size: int
    greedy: bool

    @classmethod
    def of(
        cls,
        spec: Model | str,
        part: Gpu | str,
        parallel: Parallelism | None = None,
        *,
        weight_dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        engine_version: str = "0.16.0",
        async_scheduling: bool | None = None,
        enforce_eager: bool = False,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
        gpu_memory_utilization: float | None = None,
        block_size: int | None = None,
        greedy: bool = False,
    ) -> Deployment:
        """The deployment of a model and a GPU, each given whole or by name; what is None takes the release's
        default on that GPU.

        `weight_dtype` auto is what the model's name implies, else the checkpoint's own. Raises
        UnknownNameError for names that nobody knows.
        """
        if isinstance(spec, str):
            named = model(spec)
            spec = named.model
            if weight_dtype == "auto" and named.weight_dtype:
                weight_dtype = named.weight_dtype
        part = gpu(part) if isinstance(part, str) else part
        defaults = engine_defaults(engine_version, part)
        return cls(
            model=spec,
            gpu=part,
            parallel=parallel or Parallelism(),
            weight_dtype=model_weight_dtype(spec, weight_dtype),
            kv_cache_dtype=kv_cache_dtype,
            engine_version=engine_version,
            async_scheduling=defaults.async_scheduling if async_scheduling is None else async_scheduling,
            enforce_eager=enforce_eager,
            max_num_seqs=defaults.max_num_seqs if max_num_seqs is None else max_num_seqs,
            max_num_batched_tokens=defaults.max_num_batched_tokens
            if max_num_batched_tokens is None
            else max_num_batched_tokens,
            max_model_len=max_model_len,
            gpu_memory_utilization=defaults.gpu_memory_utilization
            if gpu_memory_utilization is None
            else gpu_memory_utilization,
            block_size=default_block_size(engine_version, spec, part) if block_size is None else block_size,
            greedy=greedy,
        )

    def check(self) -> None:
        """Raise SpecError, listing every way in which the split does not divide the model or a setting makes
        no sense, and UnknownNameError for a KV dtype that nobody knows.
        """
        self.parallel.check(self.model)
        kv_dtype_bytes(self.kv_cache_dtype)
        faults = []
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            faults.append(f"gpu_memory_utilization must be in (0, 1], not {self.gpu_memory_utilization:g}")
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                faults.append(f"{name} must be at least 1, not {value}")
        if faults:
            raise SpecError(f"deployment of {self.model.name}", faults)

    @property
    def kv_element_bytes(self) -> int:
        """Bytes of one element of the KV cache."""
        return kv_dtype_bytes(self.kv_cache_dtype)
