"""Releases of vLLM as values: which of the engine's rules hold in which.

A release is a frozen record of named rules. The code asks for a rule by name in the one place where it
matters, and never for a version; here alone stands since when each rule holds. Releases between the two
that are recorded in full (0.16.0 and 0.33.0) take the rules they had. Any rule can be set against its
release with `with_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

RECORDED = ("0.16.0", "0.33.0")
"""The releases whose recorded runs are replayed in full."""


def _since(version: str) -> Any:
    """A rule that does not hold before `version`."""
    return field(default=False, metadata={"since": version})


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
    unfit_chunks_are_passed_over: bool = _since("0.33.0")
    """Who could get only a chunk that must not be cut so short is set aside, and no longer holds up the
    rest.
    """
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
    enter_after_outputs: bool = _since("0.33.0")
    """With speculation, blocks also enter the cache when an output has been processed."""
    checkpoint_states: bool = _since("0.33.0")
    """Mamba "align": only states from which a replay of the prompt can start enter the cache, and prefill
    chunks end where such a state is wanted.
    """
    drop_last_hit_once: bool = _since("0.33.0")
    """In a lookup over several groups each kind gives up its last hit block for the drafter only once."""
    defer_frees_in_flight: bool = _since("0.33.0")
    """Ahead of the GPU and with a connector, blocks of a step in flight are freed when it is processed, and
    nobody is preempted whose latest step is in flight.
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
    empty_batches_queue: bool = _since("0.33.0")
    """Ahead of the GPU, empty batches fill the queue of batches in flight like others."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Switches that a release sets unless told otherwise."""

    reserve_full_prompt: bool
    window_retention_tokens: int | None
    lookahead_hashes: bool
    kv_load_failure_policy: Literal["recompute", "fail"]


@dataclass(frozen=True, slots=True)
class Release:
    """One release: its version, its rules and its defaults.

    `note` says what is not exact about it, None for a release whose rules are all recorded.
    """

    version: str
    rules: Rules
    defaults: Defaults
    note: str | None = None

    def with_rules(self, **rules: bool) -> Release:
        """The same release with single rules set otherwise."""
        changed = ", ".join(f"{name}={value}" for name, value in rules.items())
        return replace(self, rules=replace(self.rules, **rules), note=f"{self.version} with {changed}")


def release(version: str) -> Release:
    """The release of a version, "0.33.0" or "0.33".

    Versions that are not recorded take the rules they had by date; outside the recorded range the nearest
    release stands in. Both say so in `note`. `ValueError` if this is no version.
    """
    number = _parse(version)
    first, last = _parse(RECORDED[0]), _parse(RECORDED[-1])
    nearest = min(max(number, first), last)
    note = None
    if number != nearest:
        note = f"vLLM {version} is not known; it is taken for {'.'.join(map(str, nearest))}"
    elif number not in map(_parse, RECORDED):
        note = (
            f"vLLM {version} lies between the recorded releases {' and '.join(RECORDED)}; "
            "it has the rules that are dated up to it"
        )
    rules = Rules(**{rule.name: nearest >= _parse(rule.metadata["since"]) for rule in fields(Rules)})
    return Release(version, rules, _defaults(nearest), note)


def _defaults(number: tuple[int, ...]) -> Defaults:
    return Defaults(
        reserve_full_prompt=number >= (0, 23),
        window_retention_tokens=0 if number >= (0, 23) else None,
        lookahead_hashes=number >= (0, 33),
        kv_load_failure_policy="fail" if number >= (0, 33) else "recompute",
    )


def _parse(version: str) -> tuple[int, ...]:
    try:
        major, minor, *patch = (int(part) for part in version.removeprefix("v").split(".")[:3])
    except ValueError:
        raise ValueError(f"{version!r} is not a version like {RECORDED[-1]}") from None
    return (major, minor, patch[0] if patch else 0)
