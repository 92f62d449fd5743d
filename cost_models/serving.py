"""What kernels do inside a running engine and not on a bench: what no table of single operators shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from cost_models.calibration import REFERENCE_PART
from cost_models.catalog import flag, number, read_table, text
from cost_models.gpus import Gpu
from cost_models.models import Model

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
    row = table.get(part.name) or table.get(REFERENCE_PART.get(part.arch.split(" ", 1)[0], ""), {})
    return ServingFacts(
        weight_stream_gain=number(row, "weight_stream_gain", 1.0),
        single_row_gain=number(row, "single_row_gain", 1.0),
        layer_gap_s=number(row, "layer_gap_s"),
        mixed_decode_slowdown=number(row, "mixed_decode_slowdown", 1.0),
        mixed_block_bandwidth=number(row, "mixed_block_bandwidth"),
        compute_derate=number(row, "compute_derate", 1.0),
        source=text(row, "source"),
    )


def samples_top_p(spec: Model) -> bool:
    """Whether requests that leave sampling to the server are sampled with top-p or top-k.

    That is what the model's generation_config.json asks for; most do. Known exceptions stand in the data.
    """
    row = read_table("sampling.toml").get(spec.name)
    return row is None or not flag(row, "plain")
