"""The cohort: running requests in steady decode, which do in every step exactly what they did in the last.

Such a request is scheduled for one token a step. What will happen to it is known: when its next block fills,
when it needs a new one, and for how long the executor has announced that nothing will stop it. So it keeps no
state per step. A *member* has a base, and with `clock` counting the steps planned so far

    computed tokens = base + clock

for every member at once; a calendar says in which step who needs a block and who leaves. `schedule()` then
walks only those who have something to do: the members in the calendar and the running requests outside the
cohort, in running order. A step that could go wrong (budget or blocks short under a policy that must choose)
is left to the ordinary walk: everybody leaves the cohort, with all counts written back, and joins again
later.

Nothing here decides anything. Every count, block and order is the one the ordinary walk would have made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter

from scheduler.admission import AdmissionGates
from scheduler.bookkeeping import SyncBookkeeping
from scheduler.calendar import Calendar, insert, merged
from scheduler.kv_cache.plain import PlainKVCache
from scheduler.output import SchedulerOutput, SteadySteps, StepRun
from scheduler.policies import VictimPolicy
from scheduler.request import RUNNING, Member, Request
from scheduler.scheduler import Scheduler
from scheduler.speculation import Drafter
from scheduler.state import EngineState

Forecast = Callable[[Request], int]
"""An executor's announcement: how many of a request's next output tokens, those not yet appended, will each
be the id after the one before, and none of them an end that only the model knows of. Policies never see it.
"""

SHORTEST_STAY = 2
"""Steps for which it is worth to join."""

_in_order = attrgetter("running_order")


class Cohort:
    """The members of one engine and their calendar. All counts are in tokens or steps.

    If the victim is always the last running request, preemption needs no look at the others and is done
    here; otherwise a step in which blocks could run out is left to the ordinary walk.
    """

    def __init__(
        self,
        state: EngineState,
        kv_cache: PlainKVCache,
        forecast: Forecast,
        scheduler: Scheduler,
        most_in_flight: int,
    ) -> None:
        self.size = 0
        self.clock = 0
        """Steps planned so far that scheduled anything."""
        self.sum_of_bases = 0
        self.in_flight: list[SchedulerOutput] = []
        """Steps planned but not yet updated, the oldest first; they hold every member, though not by name."""
        self._state = state
        self._kv = kv_cache
        self._pool = kv_cache.run_pool
        self._size = kv_cache.block_size
        self._forecast = forecast
        self._scheduler = scheduler
        self._tail_is_victim = scheduler.tail_is_victim
        self._ahead = state.config.async_scheduling
        self._most_in_flight = most_in_flight
        self._entered = 0
        """The first base + _entered tokens of each member are entered in the prefix cache, block by block."""
        self._calendar = Calendar(self._size)
        self._shared: list[Request] = []
        """Members that are not alone: their blocks must be entered one by one, in running order."""
        self._largest_base = 0
        self._knows_largest = False
        self._others: list[Request] | None = []
        """Running requests outside the cohort, and perhaps some that no longer run; None: not known."""
        self._walked: Request | None = None
        self._events: list[Request] = []
        self._no_joins_before = 0
        kv_cache.run_pool.watcher = self

    # --- the step ---------------------------------------------------------------------------------------

    def schedule(self, output: SchedulerOutput) -> bool:
        """Schedule the running requests into an empty `output`; False if it takes the ordinary walk."""
        clock = self.clock
        if not self.size:
            self._others = None
            return False
        others = self._find_others()
        due = self._calendar.due(clock)
        if not self._is_plain(others, due, output.token_budget):
            self.dissolve()
            self._no_joins_before = clock + self._size
            return False
        output.spend(self.size)
        if others or self._shared or len(due) > self._pool.free_queue.size:
            self._walk(others, due, output)
        elif due:
            blocks = self._pool.take(len(due))
            for i, request in enumerate(due):
                request.block_tables[0].append(blocks[i])
        self._entered = clock + 1 - len(self.in_flight)
        return True

    def _find_others(self) -> list[Request]:
        others = self._others
        if others is None:
            others = [request for request in self._state.running if request.member is None]
        elif others:
            others = [request for request in others if request.status is RUNNING and request.member is None]
            if len(others) > 1:
                others = sorted(set(others), key=_in_order)
        self._others = others
        return others

    def _is_plain(self, others: list[Request], due: list[Request], budget: int) -> bool:
        """Whether everybody gets the tokens due to it; the last in the running list may get less."""
        if self.in_flight and not self._ahead:
            return False
        longest = self._state.config.long_prefill_token_threshold or budget
        tokens, blocks = self.size, len(due)
        last = self._state.running[-1]
        for request in others:
            lacking = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            lacking = min(lacking, longest)
            if request is not last:
                tokens += lacking
            blocks += lacking // self._size + 2
        return tokens <= budget and (self._tail_is_victim or blocks <= self._pool.free_queue.size)

    def _walk(self, others: list[Request], due: list[Request], output: SchedulerOutput) -> None:
        """Walk those who have something to do, in running order; preempt from the tail for blocks."""
        clock, size = self.clock, self._size
        entered = clock + 1 - len(self.in_flight)
        events = self._events = merged(merged(others, due), self._full(entered))
        for request in events:  # grows behind the walk where texts are met
            self._walked = request
            member = request.member
            if member is None:
                if request.status is RUNNING:
                    while not self._scheduler.try_running(request, output):
                        if self._preempt_tail(output) is request:
                            break
                continue
            if (member.base + clock) % size == 0:
                while not self._pool.free_queue.size and self._preempt_tail(output) is not request:
                    pass
                if request.member is None:
                    continue
                request.block_tables[0] += self._pool.take(1)
            if not member.alone and (member.base + entered) % size == 0:
                self._enter(request, entered)
        self._walked = None

    def _preempt_tail(self, output: SchedulerOutput) -> Request:
        victim = self._state.running.pop()
        if victim.member is not None:
            self.leave(victim)
            output.spend(-1)
        self._state.preempt(victim)
        output.note_preempted(victim)
        return victim

    def note_scheduled(self, output: SchedulerOutput) -> None:
        """A step is complete: members count as scheduled in it."""
        others = self._others
        if others is not None:
            others.extend(output.new)
            others.extend(output.resumed)
        if not output.total_num_scheduled_tokens:
            return
        clock = self.clock
        if self.size:
            sums = self.sums()
            output.num_steady, output.steady_computed_tokens, output.most_steady_computed_tokens = sums
        for request in output.requests:
            output.running_orders.append(request.running_order)
        self._entered = clock + 1 - len(self.in_flight)
        self.clock = clock + 1
        self.in_flight.append(output)

    def note_updated(self, output: SchedulerOutput) -> None:
        """The tokens of a step have been appended: who is in steady decode now joins."""
        in_flight = self.in_flight
        if in_flight and in_flight[0] is output:  # else nothing was scheduled in it
            in_flight.pop(0)
            for other in in_flight:
                for request in output.requests:
                    if request.is_finished and request in other.requests:
                        other.remove(request)
            entered = self.clock - len(in_flight)
            if entered > self._entered:
                self._entered = entered
                if self._shared:
                    for request in self._full(entered):
                        self._enter(request, entered)
        if self.clock >= self._no_joins_before:
            samples = output.samples
            for i, request in enumerate(output.requests):
                if samples[i] and request.member is None and request.status is RUNNING:
                    self._join(request)

    def sums(self) -> tuple[int, int, int]:
        """How many members there are, the sum of their computed tokens, and the largest of these."""
        if not self._knows_largest:
            largest = -self.clock
            for request in self._state.running:
                member = request.member
                if member is not None and member.base > largest:
                    largest = member.base
            self._largest_base, self._knows_largest = largest, True
        return self.size, self.sum_of_bases + self.size * self.clock, self._largest_base + self.clock

    # --- many steps at once -----------------------------------------------------------------------------

    def look_ahead(self, most: int) -> SteadySteps | None:
        """The coming steps, up to `most`, in which the members are scheduled and surely nobody else."""
        num_steps = self._steps_ahead(most)
        if not num_steps:
            return None
        num_requests, num_computed_tokens, most_computed_tokens = self.sums()
        return SteadySteps(num_steps, num_requests, num_computed_tokens, most_computed_tokens)

    def _steps_ahead(self, most: int) -> int:
        """How many they are: turns of `schedule()` and `update()`, with as many steps in flight as now, and
        nothing from outside in between. In the last update, but in none before, somebody may have to be
        looked at.
        """
        state, size, in_flight = self._state, self.size, self.in_flight
        if (
            not size
            or size != len(state.running)
            or state.pause
            or (state.waiting.size and not self._scheduler.is_full())
            or size > self._scheduler.token_budget
            or self._shared
            or (in_flight and not self._ahead)
        ):
            return 0
        for output in in_flight:
            if output.requests:
                return 0
        most = min(most, self._calendar.next_leave() - self.clock + len(in_flight) + 1)
        free = self._pool.free_queue.size
        if (most // self._size + 1) * size <= free:
            return most
        steps = 0
        while steps < most:
            free -= len(self._calendar.due(self.clock + steps))
            if free < 0:
                break
            steps += 1
        return steps

    def advance(self, steps: int) -> StepRun:
        """Take so many steps of `look_ahead` at once: the turns of `schedule()` and `update()`."""
        state, pool, calendar = self._state, self._pool, self._calendar
        first, end = self.clock, self.clock + steps
        used, cached = self._kv.num_used_blocks, pool.num_cached_free
        count = 0
        for clock in range(first, end):
            count += len(calendar.due(clock))
        unkeyed: list[int] = []
        blocks = pool.take(count, unkeyed) if count else unkeyed
        used_blocks: list[int] = []
        cached_blocks: list[int] = []
        taken = kept = 0
        for clock in range(first, end):
            for request in calendar.due(clock):
                request.block_tables[0].append(blocks[taken])
                taken += 1
            while kept < len(unkeyed) and unkeyed[kept] < taken:
                kept += 1
            used_blocks.append(used + taken)
            cached_blocks.append(cached - taken + kept)
        self.clock = end
        self._entered = max(self._entered, end - len(self.in_flight))
        state.num_steps += steps
        state.finished_req_ids.clear()
        return StepRun(used_blocks, cached_blocks, self._name_leaving(None))

    def unfold(self, output: SchedulerOutput) -> int:
        """Name the members whose stay ends with this step, whose tokens are about to be sampled.

        Returns how many members the step holds beside those that it names.
        """
        in_flight = self.in_flight
        if not in_flight or in_flight[0] is not output:
            return 0  # nothing was scheduled in it
        self._name_leaving(output)
        return self.size

    def _name_leaving(self, output: SchedulerOutput | None) -> SchedulerOutput | None:
        """Name the members whose stay ends with the oldest step in flight; None: that of the last turn of
        `advance`, which is made if there are any, and is in flight again then.
        """
        in_flight = self.in_flight
        step = self.clock - len(in_flight) - (output is None)
        member = self._calendar.pop_leaving(step)
        while member is not None:
            if output is None:
                output = SchedulerOutput(0)
                in_flight.insert(0, output)
            self.leave(member.request)
            member = self._calendar.pop_leaving(step)
        return output

    # --- in and out -------------------------------------------------------------------------------------

    def _join(self, request: Request) -> None:
        in_flight = len(self.in_flight)
        computed = request.num_computed_tokens
        if (
            computed != request.num_tokens - 1 + in_flight
            or not request.num_output_tokens
            or request.num_output_placeholders != (in_flight if self._ahead else 0)
            or (in_flight and not self._ahead)
            or computed < request.high_water_tokens
            or self._state.bookkeeping.awaits_stale_output(request)
            or len(request.block_tables[0]) != -(-computed // self._size)
        ):
            return
        for output in self.in_flight:
            if request not in output.requests:
                return
        config = self._state.config
        room = config.max_model_len - request.num_tokens - 1
        limit = request.max_tokens - request.num_output_tokens - 1
        if self._ahead:  # the engine knows of such ends beforehand, and schedules nothing beyond them
            room -= max(2, self._most_in_flight - 1)  # it counts what is in flight as computed
            limit -= 2
        stay = min(min(self._steady_tokens(request), limit), room) - in_flight
        if stay < SHORTEST_STAY:
            return
        clock = self.clock
        alone = not self._kv.caching or self._kv.entry_is_implied(request)
        member = request.member = Member(request, computed - clock, clock + stay, alone)
        for output in self.in_flight:
            output.remove(request)
        if not alone:
            insert(self._shared, request)
        self._calendar.add(member)
        self.size += 1
        self.sum_of_bases += member.base
        if self.size == 1 or (self._knows_largest and member.base > self._largest_base):
            self._largest_base, self._knows_largest = member.base, True

    def _steady_tokens(self, request: Request) -> int:
        """How many of the next tokens surely continue the text by one id each, and stop nothing."""
        steady = self._forecast(request)
        following = request.num_tokens + request.tokens.shifts[-1]
        eos = self._state.config.eos_token_id
        if following <= eos < following + steady:
            steady = eos - following
        if request.stop_token_ids:
            for token in request.stop_token_ids:
                if following <= token < following + steady:
                    steady = token - following
        return steady

    def leave(self, request: Request) -> None:
        """A member becomes an ordinary running request again, also in the steps in flight."""
        member = request.member
        assert member is not None
        self.write_back(request)
        request.member = None
        self.size -= 1
        self.sum_of_bases -= member.base
        if member.base == self._largest_base:
            self._knows_largest = False
        self._calendar.remove(member)
        if not member.alone:
            self._shared.remove(request)
        first = self.clock - len(self.in_flight)
        for i, output in enumerate(self.in_flight):
            output.insert(request, member.base + first + i)
        if self._others is not None:
            self._others.append(request)

    def let_go(self, requests: Iterable[Request]) -> None:
        """Those of the requests that are members leave."""
        for request in requests:
            if request.member is not None:
                self.leave(request)

    def dissolve(self) -> None:
        """Everybody leaves."""
        if self.size:
            for request in self._members():
                self.leave(request)

    def _members(self) -> list[Request]:
        return [request for request in self._state.running if request.member is not None]

    def write_back(self, request: Request) -> None:
        """Bring a member's own counts up to date."""
        member = request.member
        assert member is not None
        in_flight = len(self.in_flight)
        computed = member.base + self.clock
        request.num_computed_tokens = computed
        request.num_tokens = computed + 1 - in_flight
        request.num_output_tokens = request.num_tokens - request.num_prompt_tokens
        if self._ahead:
            request.num_output_placeholders = in_flight
        if self._state.bookkeeping.counts_tokens_in_flight:
            request.num_tokens_in_flight = in_flight
        self.catch_up(request)
        self._kv.note_next_change(request, computed - 1, 1)

    def write_back_all(self) -> None:
        """Bring every member's own counts up to date."""
        if self.size:
            for request in self._members():
                self.write_back(request)

    # --- blocks -----------------------------------------------------------------------------------------

    def catch_up(self, holder: Request) -> None:
        """Count the blocks that a member has filled unseen as entered in the prefix cache.

        Amid a walk those before the walked one have had this step's entry.
        """
        member = holder.member
        if member is None or not member.alone or not self._kv.caching:
            return
        entered = self._entered
        if self._walked is not None and holder.running_order < self._walked.running_order:
            entered = self.clock + 1 - len(self.in_flight)
        full = (member.base + entered) // self._size
        if full > holder.num_cached_blocks[0]:
            holder.num_cached_blocks[0] = full
            holder.next_full_tokens = (full + 1) * self._size

    def note_equal_text(self, holder: Request) -> None:
        """Somebody else has the same text: from now on the member's blocks are entered one by one."""
        member = holder.member
        if member is not None and member.alone:
            member.alone = False
            insert(self._shared, holder)
            walked = self._walked
            later = walked is not None and holder.running_order > walked.running_order
            if later and holder not in self._events:
                insert(self._events, holder)

    def _full(self, entered: int) -> list[Request]:
        """Members whose blocks must be entered one by one, and who have one to enter."""
        return [
            r for r in self._shared if r.member is not None and (r.member.base + entered) % self._size == 0
        ]

    def _enter(self, request: Request, entered: int) -> None:
        member = request.member
        assert member is not None
        request.num_tokens = self.clock + member.base + 1 - len(self.in_flight)
        self._kv.enter(request, member.base + entered)
        if self._kv.entry_is_implied(request):
            member.alone = True
            self._shared.remove(request)


class CohortScheduler(Scheduler):
    """The schedule page with a cohort, which schedules its members without a look at each."""

    def __init__(
        self,
        state: EngineState,
        victim_policy: VictimPolicy,
        gates: AdmissionGates,
        bookkeeping: SyncBookkeeping,
        drafter: Drafter,
        kv_cache: PlainKVCache,
        forecast: Forecast,
        most_in_flight: int,
    ) -> None:
        super().__init__(state, victim_policy, gates, bookkeeping, drafter)
        self.cohort = Cohort(state, kv_cache, forecast, self, most_in_flight)

    def schedule(self) -> SchedulerOutput:
        """Plan one step."""
        output = super().schedule()
        self.cohort.note_scheduled(output)
        return output

    def schedule_running(self, output: SchedulerOutput) -> None:
        """Give running requests their tokens: by the cohort, or by the ordinary walk."""
        if not self.cohort.schedule(output):
            super().schedule_running(output)
