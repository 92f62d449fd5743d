"""Makes records like those of the recording out of what this engine decided."""

from __future__ import annotations

import zlib

from scheduler import EngineCore, EngineCoreOutputs, FinishReason, KVReport, Request, SchedulerOutput
from scheduler.release import parse_version
from scheduler.state import PrefixCacheStats
from sim.evidence.conform.case import Case, Record
from sim.evidence.conform.extended import ExtendedRecorder
from sim.evidence.conform.pretended import PretendedModel

_LARGEST_QUEUE_RECORDED = 3000

_LATER_NAMES = {"WAITING_FOR_FSM": ("0.33.0", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR")}
"""What a later release calls a status, and by which release it does."""


class StepRecorder:
    """Gathers one step's record. Keys with nothing in them, or nothing new, are left out as in the
    recording.
    """

    def __init__(self, case: Case, engine: EngineCore, extended: ExtendedRecorder) -> None:
        self._engine = engine
        self._extended = extended
        self._ahead = case.config.get("async_sched", False)
        self._record: Record = {}
        self._events: list[object] = []
        self._known_blocks: dict[int, list[int]] = {}
        self._orders: dict[str, list[int]] = {}
        self._second_format = case.format != "sched-oracle/1"
        self._first_outputs: dict[int, list[int]] = {}
        self._with_output: set[int] = set()

    def begin(self, t: int) -> None:
        """A step begins; results of events that came before it belong to it."""
        self._record = {"t": t}
        if self._events:
            self._record["ev"], self._events = self._events, []

    def note_reset(self, ok: bool, preempt_running: bool, preempted: list[Request]) -> None:
        """The prefix cache was reset, or could not be."""
        result: bool | str = ok if ok or not preempt_running else "error"
        self._events.append([result, [request.request_id for request in preempted]])

    def has_events(self) -> bool:
        """Whether there are results that no step has recorded."""
        return bool(self._events)

    def take_events_only(self, t: int) -> Record:
        """A record for results of events in a step in which nothing was executed."""
        self.begin(t)
        return self._record

    def before_schedule(self) -> None:
        """Remember which blocks the running requests hold."""
        self._known_blocks = {
            request.request_id: [len(table) for table in request.block_tables]
            for request in self._engine.running
        }

    def after_schedule(self, output: SchedulerOutput) -> None:
        """Who was scheduled, and with which blocks."""
        record = self._record
        record["sch"] = [
            [request.request_id, count]
            for request, count in zip(output.requests, output.num_scheduled_tokens, strict=True)
        ]
        admitted = {*output.new, *output.resumed}
        new, cached, resumed = [], [], []
        for i, request in enumerate(output.requests):
            before = output.num_computed_before[i]
            if request not in admitted:
                cached.append(
                    [request.request_id, before, self._num_outputs(output, i), self._new_blocks(request)]
                )
            elif request in output.new:
                new.append([request.request_id, before, self._whole_tables(request)])
            else:
                resumed.append(
                    [request.request_id, before, self._num_outputs(output, i), self._whole_tables(request)]
                )
        drafts = output.scheduled_spec_decode_tokens
        self._put("new", new)
        self._put("cached", cached + resumed)
        self._put("res", [request.request_id for request in output.resumed])
        self._put("pre", [request.request_id for request in output.preempted])
        self._put("fin", sorted(output.finished_req_ids))
        self._put(
            "spec", [[r.request_id, drafts[r.request_id]] for r in output.requests if r.request_id in drafts]
        )
        running = self._engine.running
        if self._second_format:
            return
        common = self._engine.kv_cache.num_common_prefix_blocks(running[0]) if running else []
        if any(common):
            record["cpb"] = common

    def _num_outputs(self, output: SchedulerOutput, i: int) -> int:
        """Output tokens and placeholders before the step."""
        request = output.requests[i]
        count = request.num_output_tokens + request.num_output_placeholders
        if self._ahead and output.samples[i]:
            count -= 1 + output.scheduled_spec_decode_tokens.get(request.request_id, 0)
        return count

    def _new_blocks(self, request: Request) -> object:
        known = self._known_blocks[request.request_id]
        new = [table[count:] for table, count in zip(request.block_tables, known, strict=True)]
        return new if any(new) else 0

    def _whole_tables(self, request: Request) -> list[list[int]]:
        return [table.copy() for table in request.block_tables]

    def note_output(self, request: Request) -> None:
        """A request has new tokens: at its first, note what had been cached of its prompt."""
        if request.request_id in self._with_output:
            return
        self._with_output.add(request.request_id)
        prompt, local, external = (
            request.num_prompt_tokens,
            request.num_local_hit_tokens,
            request.num_loaded_tokens,
        )
        hashed = self._engine.kv_cache.num_hashed_tokens(request)
        newly = max(0, min(hashed, prompt) - local - external)
        self._first_outputs[request.request_id] = [request.request_id, prompt, local, external, newly]

    def after_update(self, step: int, outputs: EngineCoreOutputs, report: KVReport | None) -> None:
        """What came of the output of `step`."""
        self._record["u"] = step
        if report and (report.received or report.sent or report.invalid_blocks):
            self._record["kv"] = [list(report.received), list(report.sent), list(report.invalid_blocks)]
        finished = outputs.finished_by_client
        out: list[list[object]] = []
        for client, entries in outputs.by_client().items():
            line: list[object] = [client, [self._entry(*entry) for entry in entries]]
            if finished is not None:
                line.append(sorted(finished.pop(client, ())))
            out.append(line)
        for client, ids in (finished or {}).items():
            out.append([client, [], sorted(ids)])
        self._put("out", out)
        if self._second_format:
            told = [entry[0].request_id for entries in outputs.by_client().values() for entry in entries]
            self._put("pst", [self._first_outputs.pop(i) for i in told if i in self._first_outputs])
        self._extended.after_update(self._record)

    def _entry(self, request: Request, count: int, reason: FinishReason | None) -> list[object]:
        entry: list[object] = [request.request_id, count, reason and reason.value]
        if reason is not None:
            entry.append(request.stop_reason)
        if reason is not None and not self._second_format:
            entry.append(request.num_cached_tokens)
            entry.append(0 if reason is FinishReason.ERROR else request.num_external_tokens)
        return entry

    def close(self) -> Record:
        """The queues at the end of the step complete its record."""
        engine = self._engine
        orders = {
            "run": [r.request_id for r in engine.running],
            "wait": [r.request_id for r in engine.state.waiting.ordinary],
        }
        if self._second_format:
            orders["held"] = [r.request_id for r in engine.state.waiting.holders]
        for key, order in orders.items():
            if self._orders.get(key, [] if key == "held" else None) != order:
                self._record[key] = order
        self._orders = orders
        self._record["free"] = engine.kv_cache.num_free_blocks
        if engine.kv_cache.num_blocks <= _LARGEST_QUEUE_RECORDED:
            queue = ",".join(map(str, engine.kv_cache.pool.free_queue))
            self._record["fq"] = zlib.crc32(queue.encode("ascii"))
        return self._record

    def _put(self, key: str, value: list[object] | list[int] | list[list[object]] | list[list[int]]) -> None:
        if value:
            self._record[key] = value


class FinalRecorder:
    """Gathers what a recording says about the run as a whole."""

    def __init__(
        self, case: Case, engine: EngineCore, model: PretendedModel, extended: ExtendedRecorder
    ) -> None:
        self._case = case
        self._extended = extended
        self._engine = engine
        self._model = model
        self._requests: dict[int, Request] = {}
        self.num_steps = 0
        self.truncated = False
        self._peak_running = 0

    def added(self, request: Request) -> None:
        """A request came."""
        self._requests[request.request_id] = request

    def after_schedule(self, output: SchedulerOutput) -> None:
        """A step was planned."""
        self._peak_running = max(self._peak_running, self._engine.num_running)

    def make(self) -> Record:
        """The final record."""
        engine = self._engine
        pool = engine.kv_cache.pool
        spec = engine.spec_decode_stats
        final: Record = {
            "steps": self.num_steps,
            "truncated": self.truncated,
            "peak_running": self._peak_running,
            "preemptions": engine.num_preemptions,
            "prefix": _stats(engine.prefix_cache_stats),
            "connector_prefix": _stats(engine.connector_prefix_cache_stats)
            if self._case.config.get("connector", False)
            else None,
            "spec": {
                "drafts": spec.num_drafts,
                "draft_tokens": spec.num_draft_tokens,
                "accepted": spec.num_accepted_tokens,
            }
            if self._case.config.get("spec")
            else None,
            "unfinished": sorted(engine.requests),
            "requests": [
                [
                    request_id,
                    request.num_preemptions,
                    self._model.num_output_tokens[request_id],
                    self._status_name(request),
                    *self._cached_tokens(request),
                ]
                for request_id, request in sorted(self._requests.items())
            ],
            "free_queue": list(pool.free_queue),
            "hashed_blocks": [block for block, key in enumerate(pool.key_of_block) if key is not None],
        }
        self._extended.at_the_end(final)
        return final

    def _status_name(self, request: Request) -> str:
        """The status by the name that the recorded release has for it."""
        name = request.status.name
        since, later = _LATER_NAMES.get(name, ("", name))
        return later if since and parse_version(self._case.release) >= parse_version(since) else name

    def _cached_tokens(self, request: Request) -> list[int]:
        if self._case.format == "sched-oracle/1":
            return [request.num_cached_tokens]
        if not self._model.num_output_tokens[request.request_id]:
            return [-1, -1]
        return [request.num_local_hit_tokens, request.num_loaded_tokens]


def _stats(stats: PrefixCacheStats) -> dict[str, int]:
    return {
        "requests": stats.requests,
        "queries": stats.queries,
        "hits": stats.hits,
        "preempted_requests": stats.preempted_requests,
        "preempted_queries": stats.preempted_queries,
        "preempted_hits": stats.preempted_hits,
    }
