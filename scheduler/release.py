"""Releases of vLLM as values: which of the engine's rules hold in which.

A release is a frozen record of named rules. The code asks for a rule by name in the one place where it
matters, and never for a version; here alone stands since when each rule holds. Releases between the two
that are recorded in full (0.16.0 and 0.33.0) take the rules they had. Any rule can be set against its
release with `with_rules`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

RECORDED = ("0.16.0", "0.33.0")
"""The releases whose recorded runs are replayed in full."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?((?:\.\d+)*(?:[.+-]?[A-Za-z]\S*|\+\S*)?)")
_T = TypeVar("_T")


def _since(version: str, *, before: object = False, after: object = True) -> Any:
    """A rule that is `before` up to `version` and `after` from it on."""
    return field(default=before, metadata={"since": version, "after": after})


@dataclass(frozen=True, slots=True)
class Rules:
    """What distinguishes releases; False is the rule of 0.16.0. A date known only as "by x" stands as x."""

    # --- running phase
    victims_move_the_walk: bool = _since("0.29.0")
    """Any victim that stands before the walk moves it back, not only one already scheduled in the step."""
    lone_requests_ignore_the_threshold: bool = _since("0.32.0")
    """The long-prefill threshold holds only while there is more than one request."""
    self_victims_do_not_end_the_phase: bool = _since("0.33.0")
    """Under PRIORITY a request that preempted itself does not end the running phase."""
    pipelines_space_decodes: bool = _since("0.33.0")
    """A pipeline ahead of the GPU lets a request decode once in as many schedule() calls as it has stages."""
    drafting_slots_are_charged: bool = _since("0.33.0")
    """Slots in which a drafter computes count against the batch size."""
    last_chunks_feed_the_drafter: bool = _since("0.33.0")
    """A prefill leaves at least the tokens that the drafter reads ahead for its last chunk."""

    # --- waiting phase
    pad_new_decodes: bool = _since("0.26.0")
    """With speculation an admission of one token is padded to one and k dummy drafts."""
    idle_sessions_take_a_place: bool = _since("0.26.0")
    """Streaming sessions waiting for input count against the longest running list."""
    count_lookups_when_admitted: bool = _since("0.29.0")
    """Lookups enter the statistics only if the request is then admitted, not at every attempt."""
    holders_first: bool = _since("0.32.0")
    """Waiting requests that hold blocks have a queue of their own, which is served first."""
    loads_leave_room_for_prefills: bool = _since("0.32.0")
    """Asynchronous loads are not started into blocks that prefills under way still need."""
    lookahead_at_admission: bool = _since("0.33.0")
    """The drafter's slots are allocated already in a request's first step."""
    all_running_adapters_count: bool = _since("0.33.0")
    """LoRA slots are taken by all running requests, not only by those scheduled in the step."""
    skipping_readers_still_ask_the_connector: bool = _since("0.33.0")
    """A request that reads no cache asks the connector all the same, and ignores the answer."""

    # --- blocks
    reuse_unhashed_first: bool = _since("0.23.0")
    """Freed blocks without hash go to the head of the free queue."""
    enter_reachable_window_blocks: bool = _since("0.23.0")
    """Sliding-window groups enter only blocks that a hit can use."""
    windows_drop_processed_tokens: bool = _since("0.29.0")
    """Only tokens whose step has been processed let blocks fall out of a window."""
    enter_common_lengths: bool = _since("0.33.0")
    """Blocks enter the cache up to lengths that all groups (and the drafter) can hit."""
    enter_processed_tokens: bool = _since("0.33.0")
    """Ahead of the GPU, an output lets blocks enter up to what is in flight, not up to the placeholders."""
    enter_after_outputs: bool = _since("0.33.0")
    """With speculation, blocks also enter the cache when an output has been processed."""
    checkpoint_states: bool = _since("0.33.0")
    """Mamba "align": only states from which a replay of the prompt can start enter the cache, and all prefill
    chunks but the last end at block boundaries, or where such a state is wanted. Hits may end inside a block
    whose state has been entered; it is copied before a request goes on from it.
    """
    read_states_once_written: bool = _since("0.33.0")
    """Mamba "align": nobody is admitted with a state that is written only in the same step."""
    drop_last_hit_once: bool = _since("0.33.0")
    """In a lookup over several groups each kind gives up its last hit block for the drafter only once."""
    defer_frees_in_flight: bool = _since("0.33.0")
    """Ahead of the GPU and with a connector, blocks of a step in flight are freed when it is processed, and
    nobody is preempted whose latest step is in flight; should it happen, the output of that step is lost.
    """

    # --- update
    track_stale_output: bool = _since("0.29.0")
    """Output in flight at a preemption or at the end of a turn is told apart from later output."""
    ignore_min_tokens: bool = _since("0.33.0")
    """The stop test no longer looks at min_tokens."""
    uncount_cut_tokens: bool = _since("0.33.0")
    """Accepted drafts behind a stop no longer count as computed."""

    # --- sessions, connector, engine
    merge_keeps_all_but_the_last_token: bool = _since("0.32.0")
    """A session's next input follows all text but the last token; stale hashes are cut, max_tokens is new."""
    sessions_queue_after_the_update: bool = _since("0.33.0")
    """Sessions that go on are enqueued when all stopped requests have left their queues."""
    loads_count_exactly: bool = _since("0.33.0")
    """A finished load computes the matched tokens, not whole blocks; bad blocks are looked for among these.
    """
    step_while_blocks_are_held: bool = _since("0.33.0")
    """The engine steps on while ended requests wait for their blocks to be sent."""
    pipelines_plan_one_ahead: bool = _since("0.33.0")
    """A pipeline ahead of the GPU has one batch more in flight than it has stages."""
    empty_batches_queue: bool = _since("0.33.0")
    """Ahead of the GPU, empty batches fill the queue of batches in flight like others."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings that a release takes unless told otherwise."""

    reserve_full_prompt: bool = _since("0.23.0")
    """Admission needs room for the whole prompt, not only for its next chunk."""
    window_retention_tokens: int | None = _since("0.23.0", before=None, after=0)
    """Which of the blocks of window groups that a hit can use enter the cache (see `KVCacheConfig`)."""
    lookahead_hashes: bool = _since("0.33.0")
    """Hashes cover the tokens that a drafter reads ahead, so that it need not give up the last hit block."""
    kv_load_failure_policy: Literal["recompute", "fail"] = _since("0.33.0", before="recompute", after="fail")
    """What becomes of a request whose KV could not be loaded."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release: its version, its rules and its defaults.

    `note` says what is not exact about it, None for a release whose rules are all recorded.
    """

    version: str
    rules: Rules
    defaults: Defaults
    note: str | None = None

    def with_rules(self, **changed: bool) -> Release:
        """The same release with single rules, or defaults that are on or off, set otherwise."""
        rules = {name: value for name, value in changed.items() if hasattr(self.rules, name)}
        defaults = {name: value for name, value in changed.items() if name not in rules}
        return replace(
            self,
            rules=replace(self.rules, **rules),
            defaults=replace(self.defaults, **defaults),  # type: ignore[arg-type]  # those that are on or off
        )


def release(version: str) -> Release:
    """The release of a version, such as "0.33.0", "0.33" or "0.33.0rc1".

    Versions that are not recorded take the rules they had by date; outside the recorded range the nearest
    release stands in. Both say so in `note`. `ValueError` if this is no version.
    """
    number = parse_version(version)
    first, last = parse_version(RECORDED[0]), parse_version(RECORDED[-1])
    nearest = min(max(number, first), last)
    name, note = ".".join(map(str, nearest)), None
    if number != nearest:
        note = f"the decisions of vLLM {version} are not known; those of {name} stand in"
    elif name not in RECORDED:
        note = (
            f"vLLM {version} lies between the recorded releases {' and '.join(RECORDED)}; "
            "it has the rules that are dated up to it"
        )
    elif _suffix(version):
        note = f"vLLM {version} is taken for the release {name}"
    return Release(version, _as_of(Rules, nearest), _as_of(Defaults, nearest), note)


def parse_version(version: str) -> tuple[int, int, int]:
    """Numbers of a version, for comparing; what follows the third number does not count.

    `ValueError` if this is no version.
    """
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"{version!r} is not a version like {RECORDED[-1]}")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def _suffix(version: str) -> str:
    found = _VERSION.fullmatch(version)
    return found[4] if found else ""


def _as_of(kind: type[_T], number: tuple[int, int, int]) -> _T:
    """Each value of `kind` as it was in that version."""
    return kind(
        **{
            each.name: each.metadata["after"]
            if number >= parse_version(each.metadata["since"])
            else each.default
            for each in fields(kind)  # type: ignore[arg-type]
        }
    )
