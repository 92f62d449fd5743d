"""Reads the requests of a recording of an engine: when they came, their lengths, which text they share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sim.errors import input_error
from sim.recordings import ClassesKnown, ClassRun, RecordedRequest, Recording, load_recording
from sim.workload.table import TraceRows

DEFAULT_BLOCK_TOKENS = 16


def recorded_rows(path: str) -> TraceRows:
    """A row for each request that got a token, by number; `line` is its number, counted from 1.

    Answers are as long as they were by the end of the recording; how many were not over by then, and what of
    requests plays no part in a trace, is noted. Raises `InputError` for a recording that cannot be read.
    """
    recording = load_recording(Path(path))
    requests = [request for request in recording.requests if request.num_outputs]
    if not requests:
        raise input_error("no request in it got a token", where=path)
    block_tokens = recording.settings.config.get("hash_block_size")
    if not isinstance(block_tokens, int):
        block_tokens = DEFAULT_BLOCK_TOKENS
    # Text beyond the blocks that have a class, such as a last one that is not full, is nobody else's.
    classes = _classes(recording)
    blocks = [
        classes[request.request_id][: request.num_prompt_tokens // block_tokens] for request in requests
    ]
    none = np.full(len(requests), -1, np.int64)
    return TraceRows(
        line=np.array([request.request_id + 1 for request in requests], np.int64),
        time_s=np.array([request.time_s - requests[0].time_s for request in requests]),
        prompt_tokens=np.array([request.num_prompt_tokens for request in requests], np.int64),
        output_tokens=np.array([request.num_outputs for request in requests], np.int64),
        classes=none,
        sessions=none.copy(),
        priority=np.array([request.priority for request in requests], np.int64),
        hash_ids=np.array([each for of_prompt in blocks for each in of_prompt], np.int64),
        num_hashes=np.array([len(of_prompt) for of_prompt in blocks], np.int64),
        block_tokens=block_tokens,
        notes=list(_notes(recording, requests)),
    )


def _classes(recording: Recording) -> dict[int, list[int]]:
    """By request, the classes of the blocks of its text, as far as the recording has them."""
    found = {request.request_id: _expanded(request.prompt_classes) for request in recording.requests}
    for call in recording.calls:
        if isinstance(call, ClassesKnown):
            of_request = found[call.request_id]
            if call.first_block <= len(of_request):
                of_request[call.first_block :] = _expanded(call.classes)
    return found


def _expanded(runs: Iterable[ClassRun]) -> list[int]:
    return [each for first, count in runs for each in range(first, first + count)]


def _notes(recording: Recording, requests: list[RecordedRequest]) -> list[str]:
    under_way = sum(request.finish_reason is None for request in requests)
    counts = {
        "were not over when the recording ended; their answers are as long as they were by then": under_way,
        "got no token and are left out": len(recording.requests) - len(requests),
        "were ended from outside; they are taken as over": sum(
            request.finish_reason == "abort" for request in requests
        ),
        "are streaming sessions; their first input is taken": sum(request.is_session for request in requests),
        "have an adapter, and run without": sum(bool(request.lora) for request in requests),
        "waited for a grammar, and have none": sum(request.needs_grammar for request in requests),
    }
    return [f"recording: {count:,} requests {what}" for what, count in counts.items() if count]
