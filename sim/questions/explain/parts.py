"""The parts into which a latency divides: what each means, once, for tables, screens and figures.

Time runs from a request's arrival to the token in question. At every moment the request is in exactly one of
these states, so the parts never overlap and add up to the latency.

Before it runs, and again after each preemption, time passes between calls of the scheduler. While it runs,
time passes in steps, and a step's GPU time divides by what it would have cost without the others: first the
request alone, then with those of its own kind (decodes, or prompt chunks), then with everybody. The
differences are what the others cost it.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """One part: its column (s), its name for people, and its meaning."""

    key: str
    label: str
    meaning: str


PARTS = (
    Part("front_end", "front end", "from arrival until the engine knows of it: HTTP, templates, tokenizing"),
    Part("under_way", "steps under way", "steps planned before it could take part end first"),
    Part("token_budget", "token budget", "max_num_batched_tokens was used up by others"),
    Part(
        "kv_blocks",
        "KV blocks",
        "the head of the line found too few free KV blocks, or others were preempted",
    ),
    Part("seq_slots", "sequence slots", "max_num_seqs requests were running"),
    Part("held_back", "held back", "by a grammar, an adapter slot, KV from outside, a pause or an interval"),
    Part("prefill", "own prefill", "its own prompt chunks, as if alone on the GPU"),
    Part("decode", "own decode", "its own decode steps, as if alone on the GPU"),
    Part("by_prefills", "others' prefills", "what prompt chunks of others added to its own steps"),
    Part("by_decodes", "others' decodes", "what decodes of others added to its own steps"),
    Part("recompute", "recompute", "its own tokens computed again after a preemption, as if alone"),
    Part("preempted", "preempted", "from each preemption until it was admitted again"),
    Part("host", "host", "the GPU waits for the CPU, or for KV being copied, in its own steps"),
)
KEYS = tuple(part.key for part in PARTS)
LABELS = {part.key: part.label for part in PARTS}
INDEX = {key: i for i, key in enumerate(KEYS)}
