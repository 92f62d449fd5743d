"""What goes out of a step: who computes how many tokens, and after the model ran, what came of it.

`SchedulerOutput` is filled by the phases of `schedule()` in scheduled order and then only read. Its lists are
parallel; block tables are not copied into it, they stand on the requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from scheduler.request import FinishReason, Request


def count_recomputed(request: Request, num_computed_before: int, num_tokens: int) -> int:
    """How many of the next `num_tokens` tokens had been computed before, ahead of a preemption."""
    return max(0, min(num_computed_before + num_tokens, request.high_water_tokens) - num_computed_before)


OUTPUT_FIELDS = (
    "finished_req_ids",
    "has_prefill_chunk",
    "held_back",
    "holds_prefills",
    "input_budget",
    "lacked_blocks",
    "most_steady_computed_tokens",
    "new",
    "num_computed_before",
    "num_drafting_slots",
    "num_recomputed_tokens",
    "num_scheduled_tokens",
    "num_steady",
    "preempted",
    "requests",
    "resumed",
    "running_orders",
    "samples",
    "scheduled_spec_decode_tokens",
    "steady_computed_tokens",
    "step_number",
    "token_budget",
    "total_num_scheduled_tokens",
    "turned_away",
)


# what is mostly empty is shared until there is something in it
_NONE: Final[list[Request]] = []
_NO_IDS: Final[Collection[int]] = frozenset()


class SchedulerOutput:
    """One step's decisions. The four lists are parallel, in scheduled order: running, then new and
    resumed.
    """

    __slots__ = OUTPUT_FIELDS

    def __init__(
        self,
        token_budget: int,
        input_budget: int | None = None,
        num_drafting_slots: int = 0,
        *,
        holds_prefills: bool = False,
    ) -> None:
        self.token_budget = token_budget
        """Tokens this step could still take."""
        self.input_budget = token_budget if input_budget is None else input_budget
        """Places left in the batch: tokens, and `num_drafting_slots` for each request."""
        self.num_drafting_slots = num_drafting_slots
        self.holds_prefills = holds_prefills
        """Whether prefills take no part in this step (see `state.PrefillInterval`)."""
        self.has_prefill_chunk = False
        """Whether a running request went on with an unfinished prefill."""
        self.step_number = 0
        """Its number among the steps that scheduled anything, or that of the last one that did."""
        self.requests: list[Request] = []
        self.num_scheduled_tokens: list[int] = []
        self.num_computed_before: list[int] = []
        self.samples: list[bool] = []
        """Whether the step yields a token for the request (False: an unfinished prefill chunk)."""
        self.scheduled_spec_decode_tokens: dict[int, int] = {}
        """Draft tokens to verify, by request id; only requests that have some."""
        self.new: list[Request] = []
        """Admitted for the first time (or a session going on with its next input)."""
        self.resumed = _NONE
        """Admitted again after a preemption."""
        self.preempted = _NONE
        self.finished_req_ids: Collection[int] = _NO_IDS
        """Requests that ended since the previous step."""
        self.total_num_scheduled_tokens = 0
        self.num_recomputed_tokens = 0
        self.turned_away: Request | None = None
        """The waiting request at which admission ended, if it ended at one."""
        self.lacked_blocks = False
        """Whether it ended there for want of blocks, not of tokens."""
        self.held_back = _NONE
        """Waiting requests that a gate passed over."""
        self.running_orders: list[int] = []
        """The places of `requests` in the running list when the step was planned, if there is a cohort. Who
        is preempted and comes back while the step is in flight stands elsewhere by then.
        """
        self.num_steady = 0
        """Members of the cohort: scheduled for one token each, sampling, and not named in the lists."""
        self.steady_computed_tokens = 0
        """The sum of their computed tokens before the step."""
        self.most_steady_computed_tokens = 0
        """The largest of these."""

    @property
    def num_running_scheduled(self) -> int:
        """Scheduled requests that were running before the step."""
        return len(self.requests) - len(self.new) - len(self.resumed)

    def note_admitted(self, request: Request, *, resumed: bool) -> None:
        """A request has come from the waiting line."""
        if resumed:
            self.resumed = [*self.resumed, request]
        else:
            self.new.append(request)

    def note_preempted(self, request: Request) -> None:
        """A request has lost its blocks in this step."""
        self.preempted = [*self.preempted, request]

    def note_held_back(self, request: Request) -> None:
        """A gate has passed a waiting request over."""
        self.held_back = [*self.held_back, request]

    def note_turned_away(self, request: Request, *, for_blocks: bool) -> None:
        """Admission ends at this request."""
        self.turned_away = request
        self.lacked_blocks = for_blocks

    def spend(self, num_single_tokens: int) -> None:
        """Requests were noted with one token each."""
        self.token_budget -= num_single_tokens
        self.input_budget -= num_single_tokens * (1 + self.num_drafting_slots)

    @property
    def num_tokens_left(self) -> int:
        """The most tokens that one more request could get; 0 or less: the step is full."""
        return min(self.token_budget, self.input_budget - self.num_drafting_slots)

    def add(self, request: Request, num_tokens: int) -> None:
        """Schedule `num_tokens` for a request: they count as computed from here on."""
        computed = request.num_computed_tokens
        self.requests.append(request)
        self.num_scheduled_tokens.append(num_tokens)
        self.num_computed_before.append(computed)
        after = computed + num_tokens
        request.num_computed_tokens = after
        samples = after >= request.num_tokens + request.num_output_placeholders
        self.samples.append(samples)
        request.is_prefill_chunk = not samples
        self.token_budget -= num_tokens
        self.input_budget -= num_tokens + self.num_drafting_slots
        if computed < request.high_water_tokens:
            again = count_recomputed(request, computed, num_tokens)
            request.num_recomputed_tokens += again
            self.num_recomputed_tokens += again

    def add_while_steady(self, running: list[Request], index: int) -> int:
        """Schedule the requests of `running` from `index` on as long as they are in steady decode: they lack
        one token, and it changes nothing in the KV cache. Returns where the first other one stands.

        This is `add(request, 1)` spelled out, for here is where most requests go.
        """
        num_steady, room = 0, self.num_tokens_left
        requests, counts = self.requests, self.num_scheduled_tokens
        befores, samples = self.num_computed_before, self.samples
        for request in running[index:] if index else running:
            computed = request.num_computed_tokens
            in_flight = request.num_output_placeholders
            if (
                computed >= request.next_kv_change_tokens
                or request.num_tokens + in_flight + request.num_draft_tokens - computed != 1
                or (in_flight > 0 and computed + 2 - in_flight >= request.max_total_tokens)
                or num_steady >= room
            ):
                break
            request.num_computed_tokens = computed + 1
            requests.append(request)
            counts.append(1)
            befores.append(computed)
            samples.append(True)
            num_steady += 1
        self.spend(num_steady)
        return index + num_steady

    def take_out(self, request: Request) -> bool:
        """Undo `add` for a request that is preempted in the very step it was scheduled in; False if it was
        not.
        """
        if request not in self.requests:
            return False
        position = self.requests.index(request)
        del self.requests[position]
        num_tokens = self.num_scheduled_tokens.pop(position)
        computed = self.num_computed_before.pop(position)
        del self.samples[position]
        self.scheduled_spec_decode_tokens.pop(request.request_id, None)
        self.token_budget += num_tokens
        self.input_budget += num_tokens + self.num_drafting_slots
        again = count_recomputed(request, computed, num_tokens)
        request.num_recomputed_tokens -= again
        self.num_recomputed_tokens -= again
        request.num_computed_tokens = computed
        return True

    def insert(self, request: Request, num_computed_before: int) -> None:
        """Name a request that had one token as a member of the cohort, at its place in running order."""
        order, orders = request.running_order, self.running_orders
        place = len(orders)
        while place and orders[place - 1] > order:
            place -= 1
        if place == len(orders):  # the usual case, at half the price
            orders.append(order)
            self.requests.append(request)
            self.num_scheduled_tokens.append(1)
            self.num_computed_before.append(num_computed_before)
            self.samples.append(True)
            return
        orders.insert(place, order)
        self.requests.insert(place, request)
        self.num_scheduled_tokens.insert(place, 1)
        self.num_computed_before.insert(place, num_computed_before)
        self.samples.insert(place, True)

    def remove(self, request: Request) -> None:
        """The opposite of `insert`."""
        place = self.requests.index(request)
        del self.running_orders[place]
        del self.requests[place]
        del self.num_scheduled_tokens[place]
        del self.num_computed_before[place]
        del self.samples[place]


class SteadySteps:
    """Coming steps that are all alike: the same requests, one token each. Counts are of the first of them."""

    __slots__ = ("most_computed_tokens", "num_computed_tokens", "num_requests", "num_steps")

    def __init__(
        self, num_steps: int, num_requests: int, num_computed_tokens: int, most_computed_tokens: int
    ) -> None:
        self.num_steps = num_steps
        self.num_requests = num_requests
        self.num_computed_tokens = num_computed_tokens
        """Of all requests together, before the step."""
        self.most_computed_tokens = most_computed_tokens
        """The largest of these."""


class StepRun:
    """Steps that were taken at once, with one entry a step in each list."""

    __slots__ = ("cached_blocks", "output", "used_blocks")

    def __init__(
        self, used_blocks: list[int], cached_blocks: list[int], output: SchedulerOutput | None
    ) -> None:
        self.used_blocks = used_blocks
        """KV blocks in use after each step."""
        self.cached_blocks = cached_blocks
        """Free KV blocks that can be hit, after each step."""
        self.output = output
        """The step whose update came last, if that update is still to be done; None: all is done."""


RequestOutput = tuple[Request, int, FinishReason | None]
"""`(request, number of new tokens, finish reason or None)`."""


class EngineCoreOutputs:
    """What the update of one step tells the clients.

    `entries`: requests with new tokens, or ended by this output, in scheduled order; load errors come last.
    `finished_by_client`: ids that ended since the client's last report, aborts included (only with
    `include_finished_set`). `num_unnamed`: requests that got one token each, go on, and have no entry.
    """

    __slots__ = ("entries", "finished_by_client", "num_unnamed")

    def __init__(
        self,
        entries: list[RequestOutput],
        finished_by_client: dict[int, set[int]] | None = None,
        num_unnamed: int = 0,
    ) -> None:
        self.entries = entries
        self.finished_by_client = finished_by_client
        self.num_unnamed = num_unnamed

    def by_client(self) -> dict[int, list[RequestOutput]]:
        """Entries per client index, clients in the order of their first entry."""
        grouped: dict[int, list[RequestOutput]] = {}
        for entry in self.entries:
            grouped.setdefault(entry[0].client_index, []).append(entry)
        return grouped


def expand(output: SchedulerOutput, running: Sequence[Request], clock: int) -> SchedulerOutput:
    """The step just planned as the ordinary walk would have written it. Call before anything happens.

    `running` is the running list, with every request's counts written back, and `clock` the cohort's.
    """
    full = SchedulerOutput(output.token_budget)
    for name in OUTPUT_FIELDS:
        setattr(full, name, getattr(output, name))
    full.num_steady = full.steady_computed_tokens = full.most_steady_computed_tokens = 0
    named = {request: i for i, request in enumerate(output.requests)}
    full.requests, full.num_scheduled_tokens, full.num_computed_before, full.samples = [], [], [], []
    for request in running:
        i, member = named.get(request), request.member
        if i is None and (member is None or not output.num_steady):
            continue
        full.requests.append(request)
        if i is not None:
            full.num_scheduled_tokens.append(output.num_scheduled_tokens[i])
            full.num_computed_before.append(output.num_computed_before[i])
            full.samples.append(output.samples[i])
        elif member is not None:
            full.num_scheduled_tokens.append(1)
            full.num_computed_before.append(member.base + clock - 1)
            full.samples.append(True)
    return full


def expand_outputs(
    output: SchedulerOutput, full: SchedulerOutput, outputs: EngineCoreOutputs
) -> EngineCoreOutputs:
    """What came of a step, members included; `full`: the step expanded. Call right after its update."""
    entry_of = {entry[0]: entry for entry in outputs.entries}
    entries: list[RequestOutput] = []
    for request in full.requests:
        if request in entry_of:
            entries.append(entry_of.pop(request))
        elif request.member is not None and request not in output.requests:
            entries.append((request, 1, None))
    return EngineCoreOutputs([*entries, *entry_of.values()], outputs.finished_by_client)
