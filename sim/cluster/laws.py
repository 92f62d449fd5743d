"""The laws of a run, checked while it runs: clock, budgets, blocks, tokens, and that no request gets lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler import InvariantError
from scheduler.invariants import check as check_engine
from scheduler.invariants import check_step
from sim.cluster.recorder import Recorder, Status

if TYPE_CHECKING:
    from sim.cluster.replica import Batch, Replica

_BLOCKS_PER_STEP = 64


class LawChecks:
    """Raises `InvariantError` with the numbers that disagree. One object watches all replicas of a run.

    Clock, causality and budgets are checked after every step. The look at every block and queue takes time in
    proportion to the pool: it comes after every step of a pool of 64 blocks, every second of one of 128, and
    so on; besides after every step that preempted, and at the end. Without `looks_inside` it is left out.
    """

    def __init__(self, recorder: Recorder, num_replicas: int, *, looks_inside: bool = True) -> None:
        self._recorder = recorder
        self._looks_inside = looks_inside
        self._last_end_s = [0.0] * num_replicas
        self._steps = [0] * num_replicas

    def after_step(self, replica: Replica, batch: Batch, now: float) -> None:
        """Laws of one step, after its update at time `now`."""
        output, index, engine = batch.output, replica.index, replica.engine
        _hold(self._last_end_s[index] <= now, "steps end in order", self._last_end_s[index], now)
        _hold(batch.scheduled_s <= batch.start_s <= now, "no step runs back in time", batch, now)
        self._last_end_s[index] = now
        check_step(engine, output)
        for request in output.requests:
            arrival_s = self._recorder.requests.arrival_s[request.request_id]
            in_time = arrival_s <= batch.scheduled_s
            _hold(in_time, "nobody is scheduled before arrival", request, arrival_s, batch)
        self._steps[index] += 1
        is_turn = self._steps[index] % max(engine.kv_cache.num_blocks // _BLOCKS_PER_STEP, 1) == 0
        if self._looks_inside and (is_turn or output.preempted):
            check_engine(engine, replica.drafts_in_flight())

    def at_end(self, rejected: int, sent: int, replicas: list[Replica]) -> None:
        """Every request that was sent has ended once or is still in flight, and counts add up."""
        for replica in replicas if self._looks_inside else ():
            check_engine(replica.engine, replica.drafts_in_flight())
        in_replicas = sum(replica.num_outstanding for replica in replicas)
        log, tokens = self._recorder.requests, self._recorder.token_times()
        statuses = list(log.status)
        count = {status: statuses.count(status) for status in Status}
        _hold(count[Status.REJECTED] == rejected, "rejections are counted", count, rejected)
        _hold(count[Status.IN_FLIGHT] == in_replicas, "who has not ended is in a replica", count, in_replicas)
        _hold(len(statuses) - count[Status.NOT_SENT] == sent, "who was sent has a status", count, sent)
        shown = np.bincount(tokens.request, weights=tokens.num_steps, minlength=len(statuses))
        shown += np.array(log.extra_tokens)
        differ = np.flatnonzero(shown != np.array(log.output_tokens))
        _hold(not len(differ), "every token has its time, once", differ[:10], shown[differ[:10]])


def _hold(holds: bool, law: str, *facts: object) -> None:
    if not holds:
        raise InvariantError(f"broken law: {law}; " + ", ".join(map(repr, facts)))
