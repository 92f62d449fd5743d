"""The laws of a run, checked while it runs: clock, budgets, blocks, tokens, and that no request gets lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler import InvariantError, SchedulerConfig
from scheduler.invariants import check as check_engine
from sim.recorder import Recorder, Status

if TYPE_CHECKING:
    from sim.cluster.replica import Batch, Replica


class LawChecks:
    """Raises `InvariantError` with the numbers that disagree. One object watches all replicas of a run."""

    def __init__(self, config: SchedulerConfig, recorder: Recorder, num_replicas: int) -> None:
        self._config = config
        self._recorder = recorder
        self._last_end_s = [0.0] * num_replicas

    def after_step(self, replica: Replica, batch: Batch, now: float) -> None:
        """Laws of one step, after its update at time `now`."""
        output, config, log = batch.output, self._config, self._recorder.requests
        ends = self._last_end_s[replica.index]
        _hold(ends <= now, "steps end in order", ends, now)
        _hold(batch.scheduled_s <= batch.start_s <= now, "no step runs back in time", batch, now)
        self._last_end_s[replica.index] = now
        total = sum(output.num_scheduled_tokens)
        _hold(total == output.total_num_scheduled_tokens, "token counts add up", total, output)
        _hold(total <= config.max_num_batched_tokens, "no step exceeds its token budget", total, config)
        _hold(len(output.requests) <= config.max_num_seqs, "no more requests than sequences", output, config)
        for request in output.requests:
            arrival_s = log.arrival_s[request.request_id]
            in_time = arrival_s <= batch.scheduled_s
            _hold(in_time, "nobody is scheduled before arrival", request, arrival_s, batch)
        check_engine(replica.engine)

    def at_end(self, rejected: int, sent: int, in_replicas: int) -> None:
        """Every request that was sent has ended once or is still in flight, and counts add up."""
        log, tokens = self._recorder.requests, self._recorder.token_times()
        statuses = list(log.status)
        count = {status: statuses.count(status) for status in Status}
        _hold(count[Status.REJECTED] == rejected, "rejections are counted", count, rejected)
        _hold(count[Status.IN_FLIGHT] == in_replicas, "who has not ended is in a replica", count, in_replicas)
        _hold(len(statuses) - count[Status.NOT_SENT] == sent, "who was sent has a status", count, sent)
        shown = np.bincount(tokens.request, weights=tokens.num_steps, minlength=len(statuses))
        differ = np.flatnonzero(shown != np.array(log.output_tokens))
        _hold(not len(differ), "every token has its time, once", differ[:10], shown[differ[:10]])


def _hold(holds: bool, law: str, *facts: object) -> None:
    if not holds:
        raise InvariantError(f"broken law: {law}; " + ", ".join(map(repr, facts)))
