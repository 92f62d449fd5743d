"""What is noted of each call, read off vLLM's own objects in the engine's thread as cheaply as can be.

A note is a tuple: the name of the `Lines` method that makes a line of it, and that method's arguments. Lists
that the engine goes on changing are copied; token ids are counted here and left here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .writer import Writer

_CHECK_EVERY = 512


class Notes:
    """Notes the calls of one scheduler."""

    def __init__(self, scheduler: Any, writer: Writer) -> None:
        self._scheduler = scheduler
        self._put = writer.put
        self._writer = writer
        self._pool = scheduler.kv_cache_manager.block_pool
        self._counts = scheduler.get_request_counts
        self._next_step = 0
        self._in_flight: list[tuple[Any, int]] = []
        self._grammars: dict[str, tuple[Any, Any]] = {}
        """Requests that wait for their grammar, and the status they wait in."""
        self._sessions: dict[str, tuple[Any, object]] = {}
        """Streaming sessions, and what identifies the hashes that were noted last."""
        self._answers: list[tuple[str, int | None, bool]] = []
        self._held: list[str] = []
        self._failed_loads = False
        connector = getattr(scheduler, "connector", None)
        if connector is not None:
            self._listen_to(connector)

    def close(self, why: str) -> None:
        """End the recording and wait until it is written."""
        self._writer.close(why)

    def abandon(self, why: str) -> None:
        """End the recording without waiting."""
        self._writer.abandon(why)

    # --- requests ---------------------------------------------------------------------------------------

    def knows(self, request: Any) -> bool:
        """Whether the scheduler has a request of this id: then this one is its next input."""
        return request.request_id in self._scheduler.requests

    def added(self, start: float, _: float, args: Any, __: Any, ___: Any, known: bool) -> None:
        """A request, or a session's next input, has come."""
        request = args[0]
        if known:
            self._input(start, request)
            return
        name, sampling = request.request_id, request.sampling_params
        status = request.status
        waits = status.name not in ("WAITING", "RUNNING", "PREEMPTED") and sampling is not None
        if waits and sampling.structured_outputs is not None:
            self._grammars[name] = (request, status)
        if request.resumable:
            self._sessions[name] = (request, _mark(request.block_hashes))
        lora = request.lora_request
        self._put(
            (
                "add",
                start,
                name,
                request.arrival_time,
                request.num_prompt_tokens,
                request.max_tokens,
                request.block_hashes.copy(),
                request,
                (
                    getattr(sampling, "min_tokens", 0) or 0,
                    request.priority,
                    request.client_index,
                    lora.lora_int_id if lora is not None else 0,
                    bool(request.skip_reading_prefix_cache),
                    name in self._grammars,
                    bool(request.resumable),
                ),
                _why_not_replayed(request),
            )
        )

    def _input(self, start: float, request: Any) -> None:
        if not request.resumable:
            self._put(("end", start, request.request_id))
        else:
            self._put(
                (
                    "input",
                    start,
                    request.request_id,
                    request.arrival_time,
                    request.num_prompt_tokens,
                    request.max_tokens,
                    getattr(request.sampling_params, "min_tokens", 0) or 0,
                )
            )
        self._look_at_sessions()

    def _look_at_sessions(self) -> None:
        """What sessions hold can be cut and go on otherwise, so it is looked at after each call."""
        for name, (request, known) in list(self._sessions.items()):
            mark = _mark(request.block_hashes)
            if mark != known:
                self._put(("session_classes", name, request.block_hashes.copy()))
                self._sessions[name] = (request, mark)
            if name not in self._scheduler.requests:
                del self._sessions[name]
                self._put(("session_over", name))

    def about_to_end(self, request_ids: Any) -> list[str]:
        """Those of the ids that the scheduler knows, in the order in which it will end them."""
        known = self._scheduler.requests
        if request_ids is None:
            return list(known)
        names = [request_ids] if isinstance(request_ids, str) else request_ids
        return [name for name in (names if len(names) < 2 else list(set(names))) if name in known]

    def ended(self, start: float, _: float, args: Any, kwargs: Any, __: Any, ended: list[str]) -> None:
        """Requests were ended from outside."""
        if ended:
            status = args[1] if len(args) > 1 else next(iter(kwargs.values()))
            self._put(("finish", start, ended, status.name, self._take_held()))
            for name in ended:
                self._grammars.pop(name, None)
            if self._sessions:
                self._look_at_sessions()

    def reset(self, start: float, _: float, args: Any, kwargs: Any, result: Any) -> None:
        """The prefix cache was reset; `result` "error": it could not be, running requests are preempted."""
        running = args[0] if args else kwargs.get("reset_running_requests", False)
        self._put(("reset", start, bool(running), result if result == "error" else bool(result)))

    def paused(self, start: float, _: float, args: Any, __: Any, ___: Any) -> None:
        """Scheduling was paused, or goes on."""
        self._put(("pause", start, int(args[0])))

    # --- steps ------------------------------------------------------------------------------------------

    def scheduled(self, start: float, end: float, _: Any, __: Any, output: Any, throttled: bool) -> None:
        """A step was planned."""
        index = self._next_step
        self._next_step += 1
        self._in_flight.append((output, index))
        new = [
            (data.req_id, data.num_computed_tokens, tuple(map(tuple, data.block_ids)))
            for data in output.scheduled_new_reqs
        ]
        cached = output.scheduled_cached_reqs
        blocks = [
            (name, tuple(map(tuple, ids)))
            for name, ids in zip(cached.req_ids, cached.new_block_ids, strict=True)
            if ids is not None
        ]
        drafts = output.scheduled_spec_decode_tokens
        answers, self._answers = self._answers, []
        run, wait = self._counts()
        self._put(
            (
                "step",
                index,
                start,
                end,
                output.num_scheduled_tokens.copy(),
                new,
                cached.req_ids,
                cached.num_computed_tokens.copy(),
                blocks,
                {name: len(tokens) for name, tokens in drafts.items()} if drafts else {},
                list(output.preempted_req_ids or ()),
                list(output.finished_req_ids),
                self._ready_grammars() if self._grammars else None,
                answers,
                (run, wait, self._pool.get_num_free_blocks()),
                throttled,
            )
        )
        if index % _CHECK_EVERY == 0:
            self._put(("checkpoint",))

    def _ready_grammars(self) -> list[str]:
        """Whose grammar has become ready: the scheduler saw it, and the status is another."""
        ready = [name for name, (request, status) in self._grammars.items() if request.status is not status]
        for name in ready:
            del self._grammars[name]
        return ready

    def updated(self, start: float, end: float, args: Any, __: Any, result: Any) -> None:
        """A step's output was applied."""
        output, model_output = args[:2]
        index = self._take_in_flight(output)
        sampled = model_output.sampled_token_ids
        report = model_output.kv_connector_output
        told = None
        if report is not None:
            told = (
                list(report.finished_recving or ()),
                list(report.finished_sending or ()),
                sorted(report.invalid_block_ids or ()),
            )
            if getattr(report, "failed_recving", None):
                raise NotImplementedError("loads that failed by request are not recorded")
        outputs = [of_client.outputs for of_client in result.values()]
        odd = [
            (each.request_id, len(each.new_token_ids), _reason(each.finish_reason))
            for of_client in outputs
            for each in of_client
            if each.finish_reason is not None or len(each.new_token_ids) != 1
        ]
        run, wait = self._counts()
        self._put(
            (
                "update",
                index,
                start,
                end,
                model_output.req_ids.copy(),
                list(map(len, sampled)),
                odd,
                outputs,
                told,
                self._take_held(),
                (run, wait, self._pool.get_num_free_blocks()),
            )
        )
        if self._sessions:
            self._look_at_sessions()

    def _take_in_flight(self, output: Any) -> int:
        for i, (each, index) in enumerate(self._in_flight):
            if each is output:
                del self._in_flight[i]
                return index
        raise LookupError("an update of a step that was not scheduled here")

    def drafted(self, _: float, __: float, args: Any, ___: Any, ____: Any) -> None:
        """Drafts were attached, those left that the grammars allow."""
        known = self._scheduler.requests
        counts = [(name, len(known[name].spec_token_ids) if name in known else 0) for name in args[0].req_ids]
        if counts:
            self._put(("drafts", counts))

    # --- the KV connector -------------------------------------------------------------------------------

    def _listen_to(self, connector: Any) -> None:
        """Note what the connector answers."""
        match = connector.get_num_new_matched_tokens

        def matched(request: Any, num_computed_tokens: int) -> Any:
            answer = match(request, num_computed_tokens)
            self._answers.append((request.request_id, answer[0], bool(answer[1])))
            return answer

        connector.get_num_new_matched_tokens = matched
        for name in ("request_finished", "request_finished_all_groups"):
            if hasattr(connector, name):
                setattr(connector, name, self._finish_listener(getattr(connector, name)))

    def _finish_listener(self, finished: Callable[..., Any]) -> Callable[..., Any]:
        def listen(request: Any, block_ids: Any) -> Any:
            answer = finished(request, block_ids)
            if answer[0] and request.request_id not in self._held:
                self._held.append(request.request_id)
            return answer

        return listen

    def _take_held(self) -> list[str]:
        held, self._held = self._held, []
        return held


def _reason(finish_reason: object) -> str | None:
    return None if finish_reason is None else str(finish_reason)


def _mark(hashes: Any) -> object:
    """Each hash covers those before it, so the last one and their number stand for all."""
    return (len(hashes), hashes[-1] if hashes else None)


def _why_not_replayed(request: Any) -> str | None:
    if request.sampling_params is None:
        return "pooling"
    if getattr(request, "mm_features", None):
        return "encoder inputs"
    if getattr(request, "prompt_embeds", None) is not None:
        return "prompt embeddings"
    if getattr(request, "abort_immediately", False):
        return "abort at once"
    return None
