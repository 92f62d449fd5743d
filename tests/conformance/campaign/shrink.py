"""Shrinks a case that differs to a small one that still does: fewer requests, events, settings, tokens.

Every attempt is recorded again on the real engine, which a recorder process does for as many cases as asked.
"""

from __future__ import annotations

import copy
import gzip
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from sim.evidence.conform.case import load_case
from sim.evidence.conform.conform import FirstDifference, replay_case

HERE = Path(__file__).resolve().parent
RECORDED = ("trace", "final", "extras", "events_error")


class Oracle:
    """A recorder process: cases in, recordings out."""

    def __init__(self, python: str, recorder: str) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / "record.py"), recorder, "-", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def record(self, case: dict[str, Any]) -> dict[str, Any]:
        """The recording, or the case with an `error`."""
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        bare = {key: value for key, value in case.items() if key not in RECORDED}
        pipe_in.write(json.dumps(bare) + "\n")
        pipe_in.flush()
        answer: dict[str, Any] = json.loads(pipe_out.readline())
        return answer

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def difference(recording: dict[str, Any]) -> FirstDifference | None:
    """Where this engine leaves a recording first, on the fast way or else on the plain one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.json.gz"
        path.write_bytes(gzip.compress(json.dumps(recording).encode(), 1))
        case = load_case(path)
        return replay_case(case).difference or replay_case(case, plain=True).difference


class Shrinker:
    """Takes steps that make the case smaller as long as it still differs in the same manner."""

    def __init__(self, oracle: Oracle, tries: int = 400) -> None:
        self._oracle = oracle
        self._left = tries

    def shrink(self, case: dict[str, Any]) -> dict[str, Any]:
        """The smallest recording found."""
        best = self._oracle.record(case)
        found = difference(best) if "error" not in best else None
        if found is None:
            return best
        manner = _manner(found)
        smaller = True
        while smaller and self._left > 0:
            smaller = False
            for candidate in _smaller(best, found):
                if self._left <= 0:
                    break
                self._left -= 1
                recorded = self._oracle.record(candidate)
                if "error" in recorded:
                    continue
                differs = difference(recorded)
                if differs is not None and _manner(differs) == manner:
                    best, found, smaller = recorded, differs, True
                    break
        return best


def _manner(found: FirstDifference) -> str:
    """An error of one kind, or a difference in decisions, or only in the order of blocks."""
    if found.error:
        return found.error.split(":")[0]
    if found.step is None:
        return "final"
    order_alone = {"fq", "free", "new", "cached", "kve", "stats"}
    return "blocks" if set(found.keys) <= order_alone else "decisions"


def _smaller(recording: dict[str, Any], found: FirstDifference) -> Iterator[dict[str, Any]]:
    """Smaller cases, the boldest first."""
    case = {key: value for key, value in recording.items() if key not in RECORDED}
    if found.step is not None and found.step + 1 < case["max_steps"]:
        yield {**case, "max_steps": found.step + 1}
    requests, events = case["requests"], case["events"]
    width = len(requests) // 2
    while width:
        for first in range(0, len(requests), width):
            yield _without_requests(case, set(range(first, first + width)))
        width //= 2
    for i, event in enumerate(events):
        if event[1] != "add":
            yield {**case, "events": events[:i] + events[i + 1 :]}
    for key in list(case["config"]):
        if key not in ("num_blocks", "hash_block_size"):
            yield {**case, "config": {k: v for k, v in case["config"].items() if k != key}}
    yield from _smaller_requests(case)
    for key, value in (("num_blocks", 100), ("max_num_batched_tokens", 64), ("max_num_seqs", 8)):
        if case["config"].get(key, value) != value:
            yield {**case, "config": {**case["config"], key: value}}
    groups = case["config"].get("groups", ())
    for i in range(len(groups) if len(groups) > 1 else 0):
        yield {**case, "config": {**case["config"], "groups": [*groups[:i], *groups[i + 1 :]]}}
    for key in ("lookahead_hashes", "parallel", "by_batch"):
        spec = case["config"].get("spec") or {}
        if key in spec:
            yield {**case, "config": {**case["config"], "spec": {k: v for k, v in spec.items() if k != key}}}
    times = sorted({event[0] for event in events})
    closer = {t: min(t, i) for i, t in enumerate(times)}
    if any(closer[t] != t for t in times):
        yield {**case, "events": [[closer[event[0]], *event[1:]] for event in events]}
    for i, event in enumerate(events):
        if event[0] and (i == 0 or events[i - 1][0] < event[0]):
            yield {**case, "events": [*events[:i], [event[0] - 1, *event[1:]], *events[i + 1 :]]}


def _smaller_requests(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for i, request in enumerate(case["requests"]):

        def changed(new: dict[str, Any], i: int = i) -> dict[str, Any]:
            requests = copy.copy(case["requests"])
            requests[i] = new
            return {**case, "requests": requests}

        optional = [key for key in request if key not in ("prompt", "out", "max_tokens", "ext")]
        if optional:
            yield changed({k: v for k, v in request.items() if k not in optional})
        for key in optional:
            yield changed({k: v for k, v in request.items() if k != key})
        if "ext" in request:
            yield changed({k: v for k, v in request.items() if k != "ext"})
            for key in set(request["ext"]) - {"tokens"}:
                yield changed({**request, "ext": {k: v for k, v in request["ext"].items() if k != key}})
        for fewer in (1, request["max_tokens"] // 2, request["max_tokens"] - 1):
            if 0 < fewer < request["max_tokens"]:
                yield changed({**request, "max_tokens": fewer})
        prompt = request["prompt"]
        for place, (start, length) in enumerate(prompt):
            if len(prompt) > 1:
                yield changed({**request, "prompt": prompt[:place] + prompt[place + 1 :]})
            for fewer in (length // 2, length - 1):
                if 0 < fewer < length:
                    shorter = [*prompt[:place], [start, fewer], *prompt[place + 1 :]]
                    yield changed({**request, "prompt": shorter})


def _without_requests(case: dict[str, Any], dropped: set[int]) -> dict[str, Any]:
    kept = [i for i in range(len(case["requests"])) if i not in dropped]
    new_id = {old: new for new, old in enumerate(kept)}
    events = []
    for event in case["events"]:
        t, kind, *rest = event
        if kind in ("abort", "abort_mid"):
            ids = [new_id[i] for i in rest[0] if i in new_id]
            if ids:
                events.append([t, kind, ids])
        elif kind in ("reset", "pause"):
            events.append(event)
        elif rest[0] in new_id:
            events.append([t, kind, new_id[rest[0]], *rest[1:]])
    requests = [
        {**case["requests"][i], "at": case["requests"][i].get("at", float(i))}
        if case["config"].get("policy") == "priority"
        else case["requests"][i]
        for i in kept
    ]
    return {**case, "requests": requests, "events": events}
