"""A replica that writes a recording of itself, as the recorder of a real engine does.

Nothing is decided here and no time is changed: a recorded run is the same to the last bit. Simulated
`schedule()` and `update()` take no time of their own; the host's time stands between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simpy import Event

from scheduler import EngineCore, FinishReason, Request, SchedulerOutput
from scheduler.output import RequestOutput
from sim.cluster.replica import Batch, Replica
from sim.cluster.replica_spec import ReplicaSpec
from sim.cluster.watched import WatchedEngine
from sim.recordings.reader import SUFFIX
from sim.recordings.writer import RecordingWriter, blocks_checksum
from sim.values import Json


class RecordedReplica(Replica):
    """A replica that keeps a recording; its engine is a `WatchedEngine` that names everybody."""

    def keep(self, writer: RecordingWriter, *, caches: bool) -> None:
        """Write to this file; `caches`: prefixes are cached. To be called once, before time runs."""
        self._writer = writer
        self._numbers: dict[int, int] = {}
        self._noted_blocks: dict[int, int] = {}
        self._indices: dict[int, int] = {}
        self._loras: dict[str, int] = {}
        self._caches = caches
        self._grammars_ready: list[int] = []
        self._num_recorded = 0
        self._ended: dict[int, FinishReason] = {}
        self._sampled: list[list[int]] = []
        sample = self._sampler

        def sampler(output: SchedulerOutput) -> list[list[int]]:
            self._sampled = sample(output)
            return self._sampled

        self._sampler = sampler
        self._drafted: list[tuple[int, int]] = []
        assert isinstance(self._engine, WatchedEngine)
        self._engine.watch(self._note_plan, self._note_update)

    def _note_plan(self, output: SchedulerOutput) -> None:
        """An empty step is scheduled; it may report who has finished."""
        if not output.total_num_scheduled_tokens:
            self._note_step(output, self._env.now, {})

    def _note_update(self, output: SchedulerOutput) -> None:
        """An empty step is over: at once, or after those in flight before it."""
        if not output.total_num_scheduled_tokens:
            self._writer.update(self._indices.pop(id(output)), self._env.now, {}, {}, self._queues())

    def _queues(self) -> tuple[int, int, int]:
        engine = self._engine
        return engine.num_running, engine.num_waiting, engine.kv_cache.num_free_blocks

    def _enter(self, request: Request) -> None:
        number = self._numbers[request.request_id] = len(self._numbers)
        self._writer.add(
            number,
            self._env.now,
            request.arrival_time,
            request.num_prompt_tokens,
            request.max_tokens,
            prio=request.priority,
            client=request.client_index,
            grammar=request.needs_grammar,
            lora=self._lora(request.lora_name),
        )
        if self._engine.config.policy == "priority":  # of equals the id decides, which is not the number
            self._writer.tie(number, _place_as_text(request.request_id))
        self._noted_blocks[request.request_id] = 0
        super()._enter(request)

    def _lora(self, name: str | None) -> int:
        return 0 if name is None else self._loras.setdefault(name, len(self._loras) + 1)

    def _note_blocks(self, request: Request) -> None:
        """The blocks of the request's text that have become known since."""
        noted, keys = self._noted_blocks[request.request_id], request.block_keys
        if len(keys) > noted:
            self._writer.classes(self._numbers[request.request_id], noted, keys.all()[noted:])
            self._noted_blocks[request.request_id] = len(keys)

    def _schedule(self, now: float) -> bool:
        held = {
            request_id: [len(table) for table in request.block_tables]
            for request_id, request in self.requests.items()
            if request_id in self._numbers
        }
        scheduled = super()._schedule(now)
        output = self._in_flight[-1].output if scheduled else None
        if output is not None and id(output) not in self._indices:  # else it is empty, and was noted
            self._note_step(output, now, held)
        return scheduled

    def _note_step(self, output: SchedulerOutput, now: float, held: Mapping[int, list[int]]) -> None:
        """A step has been scheduled; `held` are the lengths of block tables before."""
        index = self._indices[id(output)] = self._num_recorded
        self._num_recorded += 1
        self._write_step(index, output, now, held)

    def _write_step(
        self, index: int, output: SchedulerOutput, now: float, held: Mapping[int, list[int]]
    ) -> None:
        numbers = self._numbers
        for request in (*output.new, *output.resumed):
            self._note_blocks(request)
        columns = zip(output.requests, output.num_scheduled_tokens, output.num_computed_before, strict=True)
        told: dict[str, Json] = {
            "pre": [numbers[request.request_id] for request in output.preempted],
            "fin": sorted(numbers[request] for request in output.finished_req_ids),
            "ready": self._grammars_ready,
            "blocks": blocks_checksum(self._new_blocks(output, held)),
        }
        scheduled = [(numbers[request.request_id], tokens, before) for request, tokens, before in columns]
        self._writer.step(index, now, scheduled, self._drafts(output), self._queues(), **told)
        self._grammars_ready = []

    def _drafts(self, output: SchedulerOutput) -> dict[int, int]:
        """Drafts to be verified, by the number of the request."""
        drafts = output.scheduled_spec_decode_tokens
        return {self._numbers[request_id]: count for request_id, count in drafts.items()}

    def _new_blocks(
        self, output: SchedulerOutput, held: Mapping[int, list[int]]
    ) -> Iterator[tuple[int, list[list[int]]]]:
        """By number of a request, the blocks that it got: whoever is admitted gets all that it has."""
        admitted = {*output.new, *output.resumed}
        for request in output.requests:
            lengths = [0] * len(request.block_tables)
            if request not in admitted:
                lengths = held[request.request_id]
            tables = [
                list(table[length:]) for table, length in zip(request.block_tables, lengths, strict=True)
            ]
            yield self._numbers[request.request_id], tables

    def _update(self, batch: Batch) -> None:
        if batch.is_empty:
            super()._update(batch)
            return
        named = batch.output.requests
        tokens_before = [request.num_output_tokens for request in named]
        self._ended.clear()
        super()._update(batch)
        numbers = self._numbers
        sampled: dict[int, int] = {}
        out: list[Json] = []
        columns = zip(named, tokens_before, self._sampled, batch.output.samples, strict=True)
        for request, before, tokens, samples in columns:
            number, reason = numbers[request.request_id], self._ended.get(request.request_id)
            # a model does not know who has ended while the batch was in flight
            sampled[number] = len(tokens) or int(samples)
            appended = request.num_output_tokens - before
            if appended != sampled[number] or reason is not None:
                out.append([number, appended, None if reason is None else reason.value])
        index = self._indices.pop(id(batch.output))
        drafts = self._drafts(batch.output)
        self._writer.update(index, self._env.now, sampled, drafts, self._queues(), out=out)
        if self._drafted:
            self._writer.drafts(self._drafted)
            self._drafted = []

    def abort(self, request: Request) -> None:
        """The client has hung up."""
        if request.request_id in self._numbers:
            self._writer.finish(self._numbers[request.request_id], self._env.now)
        super().abort(request)

    def _end(self, request: Request, reason: FinishReason) -> None:
        self._ended[request.request_id] = reason
        if request.request_id in self._numbers and self._caches:
            # the engine has forgotten the keys; those of the last blocks were made on the way
            self._engine.kv_cache.hasher.rebuild(request)
            self._note_blocks(request)
            request.block_keys.clear()
        super()._end(request, reason)

    def _grammar_ready(self, request_id: int) -> None:
        if request_id in self.requests:
            self._grammars_ready.append(self._numbers[request_id])
        super()._grammar_ready(request_id)

    def _note_drafts(self, output: SchedulerOutput, entries: Sequence[RequestOutput]) -> None:
        super()._note_drafts(output, entries)
        if not self._engine.config.async_scheduling:
            live = [request for request in output.requests if request.request_id in self.requests]
            self._drafted = [(self._numbers[each.request_id], each.num_draft_tokens) for each in live]

    def _pause(self, event: Event) -> None:
        assert isinstance(event.value, int)
        self._writer.pause(self._env.now, event.value)
        super()._pause(event)

    def stop(self) -> None:
        """The clock has stopped, and the recording is over."""
        super().stop()
        self._writer.close()


def recording_path(path: Path, index: int, num_replicas: int) -> Path:
    """Where the recording of replica `index` goes: `path`, or with several `name-<index>` beside it."""
    if num_replicas == 1:
        return path
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}-{index}{SUFFIX}")


def _place_as_text(number: int) -> float:
    """Sorts as the text of the number does, which is what the engine compares."""
    return sum((int(digit) + 1) / 11.0 ** (i + 1) for i, digit in enumerate(str(number)))


@dataclass(frozen=True, slots=True)
class RunRecording:
    """Where the recordings of a run go: `path`, or one beside it for each of several replicas; `release` and
    `settings` are what the header says beside the scheduler's configuration.
    """

    path: Path
    release: str
    settings: Mapping[str, Json]

    def writer(self, index: int, num_replicas: int, spec: ReplicaSpec, engine: EngineCore) -> RecordingWriter:
        """The file of replica `index`."""
        path = recording_path(self.path, index, num_replicas)
        scheduler = "AsyncScheduler" if spec.scheduler.async_scheduling else "Scheduler"
        settings = {**self.settings, "config": recorded_config(spec)}
        settings["hash_lookahead_tokens"] = engine.kv_cache.hasher.lookahead
        return RecordingWriter(path, self.release, scheduler, settings)


def recorded_config(spec: ReplicaSpec) -> dict[str, Json]:
    """The configuration of the scheduler, in the words of a recording."""
    limits, cache = spec.scheduler, spec.kv_cache
    groups: list[Json] = []
    for group in cache.groups:
        told: dict[str, Json] = {"type": group.kind.value, "block_size": group.block_size}
        told |= {name: size for name in ("window", "chunk") if (size := getattr(group, name))}
        groups.append(told)
    config: dict[str, Json] = {
        "policy": str(limits.policy),
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": limits.max_model_len,
        "long_prefill_token_threshold": limits.long_prefill_token_threshold,
        "chunked_prefill": limits.enable_chunked_prefill,
        "prefix_caching": cache.enable_caching,
        "num_blocks": cache.num_blocks,
        "hash_block_size": cache.hash_block_size,
        "groups": groups,
        "async_sched": limits.async_scheduling,
        "reserve_full_prompt": bool(limits.reserve_full_prompt),
        "watermark": limits.watermark,
        "max_num_scheduled_tokens": limits.max_num_scheduled_tokens,
        "max_active": limits.max_active,
        "long_prefill_adaptive": limits.long_prefill_adaptive,
        "prefill_interval": limits.prefill_interval,
        "retention": (
            spec.release.defaults.window_retention_tokens
            if cache.window_retention_tokens == "release"
            else cache.window_retention_tokens
        ),
    }
    if limits.speculative is not None:
        drafts = limits.speculative
        config["spec"] = {
            "kind": drafts.kind,
            "k": drafts.num_speculative_tokens,
            "lookahead_hashes": (
                spec.release.defaults.lookahead_hashes
                if drafts.lookahead_hashes is None
                else drafts.lookahead_hashes
            ),
            "parallel": drafts.parallel,
            "by_batch": [list(each) for each in drafts.drafts_by_batch] or None,
        }
    if limits.pipeline_parallel_size > 1:
        config["pp"] = limits.pipeline_parallel_size
    if limits.max_loras is not None:
        config["max_loras"] = limits.max_loras
    return config
