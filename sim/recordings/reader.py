"""Reads a recording from its file. The format is described in README.md beside this module."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from sim.errors import Fault, InputError
from sim.recordings.recording import (
    Added,
    CacheReset,
    Call,
    ClassesKnown,
    ClassRun,
    ConnectorAnswer,
    ConnectorReport,
    Drafted,
    Ended,
    Paused,
    QueueState,
    RecordedRequest,
    RecordedStep,
    Recording,
    RecordingSettings,
    SessionInputCame,
    StepOutput,
    StepScheduled,
    StepUpdated,
)

FORMAT = "dryserve-recording/1"
SUFFIX = ".jsonl.gz"

_MOST_BLOCKS = 1 << 24
"""More full blocks than any request has: a longer run is a broken line."""

_Line = dict[str, Any]


def load_recording(path: str | Path) -> Recording:
    """Read a recording. One that was cut off is read up to the cut; `InputError` names file and line of what
    cannot be read.
    """
    path = Path(path)
    lines = _lines(path)
    number, text = next(lines, (1, b""))
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else None
        _fail(path, number, f"not a recording: format is {found!r}, expected {FORMAT}")
    reader = _Reader()
    try:
        settings = _settings(header["settings"])
        release, scheduler = str(header["release"]), str(header["scheduler"])
        for reader.line, text in lines:
            reader.read(json.loads(text))
    except InputError:
        raise
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        _fail(path, reader.line, f"cannot be read ({type(error).__name__}: {error})")
    return Recording(
        path=path,
        release=release,
        scheduler=scheduler,
        patched=bool(header.get("patched", False)),
        settings=settings,
        requests=reader.finished_requests(),
        calls=tuple(reader.calls),
        steps=_with_step_times(reader.steps, reader.calls),
        ending=reader.ending,
    )


def is_recording(path: Path) -> bool:
    """Whether a file begins as a recording does."""
    try:
        with path.open("rb") as file:
            begin = zlib.decompressobj(31).decompress(file.read(4096), 200)
    except (OSError, ValueError, zlib.error):  # ValueError: a null character in the name
        return False
    return FORMAT.encode("ascii") in begin


def _fail(path: Path, line: int, message: str) -> NoReturn:
    raise InputError([Fault(f"{path}:{line}", None, message)]) from None


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a compressed file, numbered from 1, as far as they can be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError([Fault(str(path), None, error.strerror or str(error))]) from None
    stream = zlib.decompressobj(31)
    rest, number = b"", 0
    for begin in range(0, len(content), 1 << 20):
        try:
            rest += stream.decompress(content[begin : begin + (1 << 20)])
        except zlib.error as error:
            _fail(path, number + 1, f"not a whole gzip file ({error})")
        *lines, rest = rest.split(b"\n")
        for line in lines:
            number += 1
            yield number, line


def _settings(given: _Line) -> RecordingSettings:
    return RecordingSettings(
        config=given["config"],
        model=given.get("model"),
        dtype=given.get("dtype"),
        gpu=given.get("gpu"),
        tensor_parallel=given.get("tensor_parallel", 1),
        pipeline_parallel=given.get("pipeline_parallel", 1),
        data_parallel=given.get("data_parallel", 1),
        quantization=given.get("quantization"),
        kv_cache_dtype=given.get("kv_cache_dtype"),
        enforce_eager=given.get("enforce_eager", False),
        hash_lookahead_tokens=given.get("hash_lookahead_tokens", 0),
        not_replayed=tuple(given.get("not_replayed", ())),
    )


def _s(microseconds: int) -> float:
    return microseconds / 1e6


def _runs(given: list[list[int]]) -> tuple[ClassRun, ...]:
    for first, count in given:
        if not (first >= 0 and 0 < count <= _MOST_BLOCKS):
            raise ValueError(f"{count} blocks of classes from {first} on")
    return tuple((first, count) for first, count in given)


def _drafts(line: _Line, scheduled: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Who has one token and the most drafts has them, but as `spec` says."""
    given, most = dict(line.get("spec", ())), line.get("drafts", 0)
    if not most and not given:
        return {}
    drafts = {
        request: given.get(request, most if tokens == most + 1 else 0)
        for request, (tokens, _) in scheduled.items()
    }
    return {request: count for request, count in drafts.items() if count}


class _Reader:
    """Puts the lines together."""

    def __init__(self) -> None:
        self.line = 1
        self.requests: list[RecordedRequest] = []
        self.steps: list[RecordedStep] = []
        self.calls: list[Call] = []
        self.ending = "cut off"
        self._scheduled: dict[int, tuple[int, int]] = {}
        """Of the latest step: by request its tokens and those computed afterwards."""
        self._outputs: list[int] = []
        self._reasons: dict[int, str] = {}
        self._ties: dict[int, float] = {}

    def read(self, line: _Line) -> None:
        """One line."""
        match line["k"]:
            case "add":
                self._add(line)
            case "s":
                self._step(line)
            case "u":
                self._update(line)
            case "h":
                self.calls.append(ClassesKnown(self._known(line["r"]), line["from"], _runs(line["h"])))
            case "input":
                self.calls.append(
                    SessionInputCame(
                        _s(line["t"]),
                        self._known(line["r"]),
                        line["n"],
                        line["max"],
                        line["at"],
                        line.get("min", 0),
                    )
                )
            case "end":
                self.calls.append(SessionInputCame(_s(line["t"]), self._known(line["r"])))
            case "finish":
                self._finish(line)
            case "reset":
                self.calls.append(CacheReset(_s(line["t"]), line["running"], line["ok"]))
            case "pause":
                self.calls.append(Paused(_s(line["t"]), line["level"]))
            case "drafts":
                self.calls.append(self._drafted(line))
            case "tie":
                self._ties[self._known(line["r"])] = line["tie"]
            case "gap":
                self.ending = f"gap: {line['why']}"
            case "close":
                self.ending = line["why"]
            case kind:
                raise ValueError(f"unknown kind of line {kind!r}")

    def _known(self, request_id: int) -> int:
        if not 0 <= request_id < len(self.requests):
            raise ValueError(f"request {request_id} has not come")
        return request_id

    def _add(self, line: _Line) -> None:
        if line["r"] != len(self.requests):
            raise ValueError(f"request {line['r']} where {len(self.requests)} is next")
        self.requests.append(
            RecordedRequest(
                request_id=line["r"],
                time_s=_s(line["t"]),
                arrival_s=float(line["at"]),
                num_prompt_tokens=line["n"],
                max_tokens=line["max"],
                prompt_classes=_runs(line.get("h", [])),
                min_tokens=line.get("min", 0),
                priority=line.get("prio", 0),
                client_index=line.get("client", 0),
                lora=line.get("lora", 0),
                skips_cache=line.get("skip", False),
                needs_grammar=line.get("grammar", False),
                is_session=line.get("session", False),
                not_replayed=line.get("not"),
            )
        )
        self._outputs.append(0)
        self.calls.append(Added(_s(line["t"]), line["r"]))

    def _finish(self, line: _Line) -> None:
        ids = tuple(map(self._known, line["r"]))
        self.calls.append(Ended(_s(line["t"]), ids, line["as"], tuple(line.get("held", ()))))
        reason = line["as"].removeprefix("FINISHED_").lower()
        for request_id in ids:
            self._reasons.setdefault(request_id, "abort" if reason == "aborted" else reason)

    def finished_requests(self) -> tuple[RecordedRequest, ...]:
        """The requests with what had become of them."""
        return tuple(
            replace(
                request,
                num_outputs=outputs,
                finish_reason=self._reasons.get(request.request_id),
                tie=self._ties.get(request.request_id, 0.0),
            )
            for request, outputs in zip(self.requests, self._outputs, strict=True)
        )

    def _step(self, line: _Line) -> None:
        if line["i"] != len(self.steps):
            raise ValueError(f"step {line['i']} where {len(self.steps)} is next")
        before = self._scheduled
        if "all" in line:
            now = {request: (tokens, computed + tokens) for request, tokens, computed in line["all"]}
        else:
            off = set(line.get("off", ()))
            now = {
                request: (tokens, end + tokens)
                for request, (tokens, end) in before.items()
                if request not in off
            }
            for request, tokens, computed in line.get("set", ()):
                if request not in now:
                    raise ValueError(f"request {request} was not in the step before")
                now[request] = (tokens, computed + tokens)
            for request, tokens, computed in line.get("on", ()):
                now[request] = (tokens, computed + tokens)
        for request in now.keys() - before.keys():
            self._known(request)
        self._scheduled = now
        drafts = _drafts(line, now)
        start, end = line["t"]
        self.steps.append(
            RecordedStep(
                index=line["i"],
                schedule_start_s=_s(start),
                schedule_end_s=_s(end),
                request_ids=array("i", now),
                num_scheduled_tokens=array("i", [tokens for tokens, _ in now.values()]),
                num_computed_before=array("i", [end - tokens for tokens, end in now.values()]),
                after_schedule=QueueState(line["run"], line["wait"], line["free"]),
                drafts=drafts,
                preempted=tuple(line.get("pre", ())),
                finished=tuple(line.get("fin", ())),
                grammars_ready=tuple(line.get("ready", ())),
                answers=tuple(ConnectorAnswer(*answer) for answer in line.get("ext", ())),
                blocks_crc=line.get("blocks", 0),
                not_replayed=line.get("not"),
            )
        )
        self.calls.append(StepScheduled(line["i"]))

    def _drafted(self, line: _Line) -> Drafted:
        given = {self._known(request): int(count) for request, count in line.get("n", ())}
        of_all = dict.fromkeys(self.steps[-1].request_ids, int(line["most"])) if line.get("most") else {}
        return Drafted(tuple({**of_all, **given}.items()))

    def _update(self, line: _Line) -> None:
        step = self.steps[line["i"]]
        if step.update_start_s is not None or line["i"] < 0:
            raise ValueError(f"step {line['i']} was updated before")
        if "gots" in line:
            sampled = array("i", line["gots"])
            if len(sampled) != len(step.request_ids):
                raise ValueError(f"{len(sampled)} counts of {len(step.request_ids)} requests")
        else:
            given = dict(line.get("got", ()))
            sampled = array("i", [given.get(request, 1) for request in step.request_ids])
        for request_id, count in zip(step.request_ids, sampled, strict=True):
            wrong = step.drafts.get(request_id, 0) + 1 - count
            if step.drafts and count and wrong and request_id in self._scheduled:
                tokens, end = self._scheduled[request_id]
                self._scheduled[request_id] = (tokens, end - wrong)
        outputs = tuple(StepOutput(*output) for output in line.get("out", ()))
        start, end = line["t"]
        self.steps[line["i"]] = replace(
            step,
            update_start_s=_s(start),
            update_end_s=_s(end),
            num_sampled_tokens=sampled,
            outputs=outputs,
            report=ConnectorReport(*map(tuple, line["kv"])) if "kv" in line else None,
            held=tuple(line.get("held", ())),
            after_update=QueueState(line["run"], line["wait"], line["free"]),
        )
        self.calls.append(StepUpdated(line["i"]))
        told = {output.request_id: output for output in outputs}
        for request_id, count in zip(step.request_ids, sampled, strict=True):
            if request_id not in told and count:
                self._count_outputs(request_id, count, None)
        for output in outputs:
            self._count_outputs(self._known(output.request_id), output.num_tokens, output.finish_reason)

    def _count_outputs(self, request_id: int, count: int, reason: str | None) -> None:
        self._outputs[request_id] += count
        if reason is not None:
            self._reasons.setdefault(request_id, reason)


def _with_step_times(steps: list[RecordedStep], calls: list[Call]) -> tuple[RecordedStep, ...]:
    """The steps with `step_time_s`: updates come in the order of the calls."""
    timed = list(steps)
    last_update_s = float("-inf")
    for call in calls:
        if isinstance(call, StepUpdated):
            step = steps[call.index]
            assert step.update_start_s is not None
            began = max(step.schedule_end_s, last_update_s)
            timed[call.index] = replace(step, step_time_s=step.update_start_s - began)
            last_update_s = step.update_start_s
    return tuple(timed)
