"""What a running engine adds to a model on a GPU: default limits, host times, CUDA-graph sizes of a release.

Also what kernels do inside a running engine and not on a bench, which no table of single operators shows.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from typing import cast

from cost_models.catalog import Fields, entry, read_table
from cost_models.errors import GIB, SpecError
from cost_models.gpus import Gpu, gpu
from cost_models.models import Model

DEFAULT_BLOCK_SIZE = 16
"""Tokens of a KV block, unless a kind of attention wants another number."""


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
    block_size: int = DEFAULT_BLOCK_SIZE
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


@cache
def entry_since(table: str, version: str) -> Fields:
    """The last entry of `table` in the engine data whose `since` is not newer than `version`."""
    key = version_key(version)
    rows = cast("list[dict[str, str]]", read_table("engines.toml")[table])
    older = [row for row in rows if version_key(row["since"]) <= key]
    return Fields(older[-1] if older else rows[0], f"engines.toml: {table} of {version}")


@cache
def engine_profile(version: str) -> EngineProfile:
    """Host times of the release `version`, or of the nearest older one that was measured."""
    row = entry_since("profiles", version)
    return EngineProfile(
        step_host_s=row.number("step_host_s"),
        request_host_s=row.number("request_host_s"),
        step_gap_s=row.number("step_gap_s"),
        frontend_s=row.number("frontend_s"),
        frontend_stream_s=row.number("frontend_stream_s"),
        eager_layer_s=row.number("eager_layer_s"),
        sampler_bytes_per_logit=row.number("sampler_bytes_per_logit"),
        source=row.text("source"),
    )


def engine_defaults(version: str, gpu_name: str | Gpu, entry_point: str = "server") -> EngineDefaults:
    """Default limits of `version` on a GPU for the `server` or the offline `llm` entry point.

    Large GPUs (70 GiB and more, but no A100) have larger ones than the rest, and later releases larger ones
    still on GPUs of 160 GiB.
    """
    if entry_point not in ("server", "llm"):
        raise SpecError(f"entry point {entry_point!r}", ["expected server or llm"])
    part = gpu(gpu_name) if isinstance(gpu_name, str) else gpu_name
    row = entry_since("defaults", version)
    limits = row.table("large" if _is_large(part, row) else "rest")
    huge = row.table("huge")
    if huge is not None and part.memory_bytes >= huge.number("memory_gib") * GIB:
        limits = huge
    assert limits is not None
    return EngineDefaults(
        max_num_seqs=limits.whole("max_num_seqs"),
        max_num_batched_tokens=limits.whole(entry_point),
        gpu_memory_utilization=row.number("gpu_memory_utilization"),
        async_scheduling=row.flag("async_scheduling"),
        cuda_graphs_in_budget=entry_since("memory", version).number("cuda_graph_share", 0.0) > 0,
        source=row.text("source"),
        assumed=row.text("assumed"),
    )


def _is_large(part: Gpu, defaults: Fields) -> bool:
    """By memory, unless the name says otherwise: here, or in the `defaults` of a release."""
    row = entry("engines.toml", "large_gpus")
    small = [*cast("list[str]", row.values["except"]), *cast("list[str]", defaults.values.get("small", []))]
    has_memory = part.memory_bytes >= row.number("memory_gib") * GIB
    return has_memory and not any(name in part.name for name in small)


def default_block_size(version: str, spec: Model, gpu_name: str | Gpu) -> int:
    """Tokens of a KV block where nobody sets any: kernels for latent attention (MLA) want blocks of their
    own.
    """
    part = gpu(gpu_name) if isinstance(gpu_name, str) else gpu_name
    if not spec.mla:
        return DEFAULT_BLOCK_SIZE
    tokens = entry_since("mla_blocks", version).table("tokens")
    assert tokens is not None
    fitting = [arch for arch in tokens.values if part.arch.startswith(arch)]
    return tokens.whole(fitting[0]) if fitting else DEFAULT_BLOCK_SIZE


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


# Matrix products of more rows than this run in tiles of at least so many rows: the libraries' heuristics
# never take smaller ones there, though a bench that tries them all finds some quicker. Seen in TTFT: the same
# from 980 to 1,024 tokens in a step, and a tenth more from 1,025 on (vLLM 0.23.0, H100, 9,450 requests).
LARGE_PRODUCT_ROWS = 256
# Up to here a prefill chunk leaves the decodes beside it alone. Seen in the same runs: beside chunks of 20
# or 250 tokens decodes cost what they cost by themselves, beside 990 or 3,900 a third more, and one block.
SHORT_CHUNK_TOKENS = 512
LARGE_PRODUCT_TILE_ROWS = 128.0


@dataclass(frozen=True, slots=True)
class ServingFacts:
    """How a GPU part serves, relative to its operator tables.

    weight_stream_gain: speed at which weights stream in a captured model, relative to a product alone.
    single_row_gain: the same once more for a single row, where a matrix-vector kernel takes over.
    layer_gap_s: time of each layer that belongs to no kernel of the model.
    mixed_decode_slowdown: decode attention beside a long prefill chunk, relative to decodes alone: one kernel
    serves both, in tiles made for the chunk.
    mixed_block_bandwidth: what that kernel streams for one short query, in shares of bandwidth / SM. It does
    not split their KV, so the longest context is one block's work, which comes on top; 0 = no time at all.
    compute_derate: sustained speed of products and prefill attention relative to the bench (power limit).
    """

    weight_stream_gain: float = 1.0
    single_row_gain: float = 1.0
    layer_gap_s: float = 0.0
    mixed_decode_slowdown: float = 1.0
    mixed_block_bandwidth: float = 0.0
    compute_derate: float = 1.0
    source: str = ""


@cache
def serving_facts(part: Gpu) -> ServingFacts:
    """The facts of a part, or of the reference part of its architecture; neutral where there is neither."""
    table = read_table("serving.toml")
    row = Fields(table.get(part.name) or table.get(part.reference_part, {}), f"serving.toml: {part.name}")
    return ServingFacts(
        weight_stream_gain=row.number("weight_stream_gain", 1.0),
        single_row_gain=row.number("single_row_gain", 1.0),
        layer_gap_s=row.number("layer_gap_s", 0.0),
        mixed_decode_slowdown=row.number("mixed_decode_slowdown", 1.0),
        mixed_block_bandwidth=row.number("mixed_block_bandwidth", 0.0),
        compute_derate=row.number("compute_derate", 1.0),
        source=row.text("source"),
    )


def samples_top_p(spec: Model) -> bool:
    """Whether requests that leave sampling to the server are sampled with top-p or top-k.

    That is what the model's generation_config.json asks for; most do. Known exceptions stand in the data.
    """
    return spec.name not in read_table("sampling.toml") or not entry("sampling.toml", spec.name).flag("plain")
