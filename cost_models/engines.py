"""What an engine release brings by itself: default limits, host time, CUDA-graph sizes, front-end time."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import cast

from cost_models.catalog import TomlTable, flag, number, read_table, subtable, text, whole
from cost_models.errors import GIB, SpecError
from cost_models.gpus import Gpu, gpu


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """What an engine assumes where the user sets nothing.

    `source` says how that is known, `assumed` what of it is not stated anywhere at hand.
    cuda_graphs_in_budget: whether the memory of CUDA graphs is taken from the share of the GPU that the
    engine may fill, or from what lies beyond it.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    async_scheduling: bool
    cuda_graphs_in_budget: bool
    source: str
    assumed: str = ""
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """CPU times of one release.

    step_host_s, request_host_s: scheduling, input preparation and output handling, per step and per request
    in it; asynchronous scheduling hides them behind the GPU. step_gap_s: what stays exposed between two
    steps even then.
    frontend_s: HTTP, tokenizer and IPC, added to the TTFT of every request. frontend_stream_s: what each
    other request in flight adds to it, for the front end hands out the tokens of a step one stream after the
    other. eager_layer_s: CPU time to launch one layer's kernels without CUDA graphs.
    sampler_bytes_per_logit: memory traffic of sampling with top-p or top-k, which a general sort of the
    vocabulary makes large.
    """

    step_host_s: float
    request_host_s: float
    step_gap_s: float
    frontend_s: float
    frontend_stream_s: float
    eager_layer_s: float
    sampler_bytes_per_logit: float
    source: str


def version_key(version: str) -> tuple[int, ...]:
    """Release numbers of a version string, for comparing: "0.19.1rc1.dev3" → (0, 19, 1). "dev…" counts as
    newest.
    """
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if match:
        return tuple(int(part) for part in match.group(1).split("."))
    if version.strip().startswith("dev"):
        return (10**6,)
    raise SpecError(f"engine version {version!r}", ["expected a release such as 0.16.0"])


def is_v1(version: str) -> bool:
    """Whether a release runs the V1 engine by default (0.8.0 and later)."""
    return version_key(version) >= (0, 8)


def _entries(table: str) -> list[TomlTable]:
    return cast("list[TomlTable]", read_table("engines.toml")[table])


def entry_since(table: str, version: str) -> TomlTable:
    """The last entry of `table` in the engine data whose `since` is not newer than `version`."""
    key = version_key(version)
    older = [row for row in _entries(table) if version_key(text(row, "since")) <= key]
    return older[-1] if older else _entries(table)[0]


@cache
def engine_profile(version: str) -> EngineProfile:
    """Host times of the release `version`, or of the nearest older one that was measured."""
    row = entry_since("profiles", version)
    return EngineProfile(
        step_host_s=number(row, "step_host_s"),
        request_host_s=number(row, "request_host_s"),
        step_gap_s=number(row, "step_gap_s"),
        frontend_s=number(row, "frontend_s"),
        frontend_stream_s=number(row, "frontend_stream_s"),
        eager_layer_s=number(row, "eager_layer_s"),
        sampler_bytes_per_logit=number(row, "sampler_bytes_per_logit"),
        source=text(row, "source"),
    )


def engine_defaults(version: str, gpu_name: str | Gpu, entry_point: str = "server") -> EngineDefaults:
    """Default limits of `version` on a GPU for the `server` or the offline `llm` entry point.

    Large GPUs (70 GiB and more, but no A100) have larger ones than the rest.
    """
    if entry_point not in ("server", "llm"):
        raise SpecError(f"entry point {entry_point!r}", ["expected server or llm"])
    part = gpu(gpu_name) if isinstance(gpu_name, str) else gpu_name
    row = entry_since("defaults", version)
    limits = subtable(row, "large" if _is_large(part) else "rest") or {}
    return EngineDefaults(
        max_num_seqs=whole(limits, "max_num_seqs"),
        max_num_batched_tokens=whole(limits, entry_point),
        gpu_memory_utilization=number(row, "gpu_memory_utilization"),
        async_scheduling=flag(row, "async_scheduling"),
        cuda_graphs_in_budget=number(entry_since("memory", version), "cuda_graph_share") > 0,
        source=text(row, "source"),
        assumed=text(row, "assumed"),
    )


def _is_large(part: Gpu) -> bool:
    row = read_table("engines.toml")["large_gpus"]
    small_ones = cast("list[str]", row["except"])
    return part.memory_bytes >= number(row, "memory_gib") * GIB and not part.name.startswith(
        tuple(small_ones)
    )


def cudagraph_capture_sizes(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[int, ...]:
    """Token counts with a captured CUDA graph: 1, 2, 4, then multiples of 8 up to 256 and of 16 up to the
    largest.

    The largest is min(2 · max_num_seqs, 512, max_num_batched_tokens), as documented for the V1 engine.
    """
    largest = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return tuple(size for size in sizes if size <= largest)


def padded_tokens(num_tokens: int, sizes: tuple[int, ...]) -> int:
    """`num_tokens` padded to the next captured size; unchanged above the largest or without any."""
    index = bisect_left(sizes, num_tokens)
    return sizes[index] if index < len(sizes) else num_tokens


def client_overhead_s(concurrency: float, client: str = "python") -> float:
    """What a load generator adds to TTFT: 4 ms + 0.25 ms per request in flight for one Python process, else
    nothing.

    Measured for asyncio clients: +3.8 ms at 1, +23 ms at 100, +294 ms at 1,000 in flight.
    """
    return 4e-3 + 0.25e-3 * concurrency if client == "python" else 0.0
