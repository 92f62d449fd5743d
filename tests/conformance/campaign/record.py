"""Records cases on the real scheduler, with more than the plain recorder keeps: KV events, statistics.

Runs with the Python of an environment that has vLLM, and with a plain recorder: a file `record.py` whose
`Driver(case)` has the attributes `s` (the scheduler), `bp` (its block pool), `cfg`, `t`, and the methods
`do_schedule(record)`, `do_update(output, record)` and `run()`.

    python record.py RECORDER OUT CASE.json ...       recordings of these cases, into the folder OUT
    python record.py RECORDER OUT --campaign RELEASE FIRST COUNT
    python record.py RECORDER - --serve               a case a line from stdin, a recording a line to stdout

A case at which the real engine raises is written to OUT/raised with the error. README.md here documents the
keys that are added to a recording.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def load_recorder(path: str) -> Any:
    """The plain recorder as a module."""
    spec = importlib.util.spec_from_file_location("plain_recorder", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Classes:
    """Small numbers for hashes, in order of their first appearance: equal numbers are equal hashes."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int | None:
        """None stays None."""
        return None if value is None else self._numbers.setdefault(value, len(self._numbers))


def ranges(tokens: list[int]) -> list[list[int]]:
    """A list of token ids as runs `[first, length]`."""
    runs: list[list[int]] = []
    for token in tokens:
        if runs and runs[-1][0] + runs[-1][1] == token:
            runs[-1][1] += 1
        else:
            runs.append([token, 1])
    return runs


class Collector:
    """Stands in for the publisher of KV events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def publish(self, batch: Any) -> None:
        """Keep what a subscriber would get."""
        self.events += batch.events

    def shutdown(self) -> None:
        """Nothing to close."""


def extended(recorder: Any) -> type:
    """The recorder's driver, which also records the keys of README.md."""
    from vllm.config import KVEventsConfig

    inner_build = recorder.build_scheduler
    inner_config = recorder.VllmConfig

    def with_events(*args: Any, **kwargs: Any) -> Any:
        config = inner_config(*args, **kwargs)
        if ExtendedDriver.with_events:
            config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        return config

    def build(config: dict[str, Any]) -> Any:
        recorder.VllmConfig = with_events
        try:
            return inner_build(config)
        finally:
            recorder.VllmConfig = inner_config

    recorder.build_scheduler = build

    class ExtendedDriver(recorder.Driver):
        with_events = True

        def __init__(self, case: dict[str, Any]) -> None:
            super().__init__(case)
            self._hashes, self._collector = Classes(), Collector()
            self.s.kv_event_publisher = self._collector
            inner_update = self.s.update_from_output

            def update(*args: Any) -> Any:
                self._outputs = inner_update(*args)
                return self._outputs

            self.s.update_from_output = update

        def do_schedule(self, rec: dict[str, Any]) -> Any:
            output = super().do_schedule(rec)
            self._take_events(rec)
            return output

        def do_update(self, so: Any, rec: dict[str, Any]) -> None:
            super().do_update(so, rec)
            self._take_events(rec)
            stats = [o.scheduler_stats for o in self._outputs.values() if o.scheduler_stats is not None]
            if stats:
                rec["stats"] = _statistics(stats)

        def run(self) -> dict[str, Any]:
            result = super().run()
            keys = Classes()
            hashes = [block.block_hash for block in self.bp.blocks if block.block_hash is not None]
            result["final"]["hash_classes"] = [keys.number(h) for h in hashes]
            result["extras"] = [*(["kve"] if self.with_events else []), "stats", "hash_classes"]
            return result

        def _take_events(self, rec: dict[str, Any]) -> None:
            events, self._collector.events = self._collector.events, []
            if events:
                rec.setdefault("kve", []).extend(self._event(event) for event in events)

        def _event(self, event: Any) -> dict[str, Any]:
            told: dict[str, Any] = {"type": type(event).__name__}
            for name in event.__struct_fields__:
                value = getattr(event, name)
                if name == "block_hashes":
                    value = [self._hashes.number(h) for h in value]
                elif name == "lora_id":  # deprecated, and a number that only a server gives
                    continue
                elif name == "parent_block_hash":
                    value = self._hashes.number(value)
                elif name == "token_ids":
                    value = ranges(value)
                elif name == "lookahead_token_ids" and value is not None:
                    value = [ranges(tokens) for tokens in value]
                if value is not None:
                    told[name] = value
            return told

    return ExtendedDriver


def _statistics(stats: list[Any]) -> dict[str, Any]:
    """What the update reports of the scheduler. Absent numbers are 0."""
    (told,) = stats
    row: dict[str, Any] = {"running": told.num_running_reqs, "waiting": told.num_waiting_reqs}
    if getattr(told, "num_skipped_waiting_reqs", 0):
        row["skipped"] = told.num_skipped_waiting_reqs
    row["usage"] = told.kv_cache_usage
    for key, cache in (("prefix", told.prefix_cache_stats), ("connector", told.connector_prefix_cache_stats)):
        if cache is not None and (cache.requests or cache.preempted_requests):
            row[key] = [
                cache.requests, cache.queries, cache.hits,
                cache.preempted_requests, cache.preempted_queries, cache.preempted_hits,
            ]  # fmt: skip
    spec = told.spec_decoding_stats
    if spec is not None:
        row["spec"] = [spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens]
        row["accepted_at"] = list(spec.num_accepted_tokens_per_pos)
        if hasattr(spec, "num_draft_tokens_per_pos"):
            row["drafted_at"] = list(spec.num_draft_tokens_per_pos)
    return row


def write(content: dict[str, Any], path: Path) -> None:
    """Gzip without a time stamp: equal recordings are equal files."""
    data = json.dumps(content, separators=(",", ":")).encode()
    with path.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
        file.write(data)


def main() -> None:
    """The command."""
    recorder_path, out, *rest = sys.argv[1:]
    if rest == ["--serve"]:
        _serve(extended(load_recorder(recorder_path)))
        return
    folder = Path(out)
    raised = folder / "raised"
    raised.mkdir(parents=True, exist_ok=True)
    recorder = load_recorder(recorder_path)
    driver_class = extended(recorder)
    if rest[:1] == ["--campaign"]:
        sys.path.insert(0, str(HERE))
        from generate import make_case

        release, first, count = rest[1], int(rest[2]), int(rest[3])
        cases = (make_case(release, number) for number in range(first, first + count))
    else:
        cases = (_read(Path(path)) for path in rest)
    counts = {"recorded": 0, "raised": 0}
    for case in cases:
        bare = {
            key: value
            for key, value in case.items()
            if key not in ("trace", "final", "extras", "events_error")
        }
        target = folder / f"{case['name']}.json.gz"
        if target.exists() or (raised / f"{case['name']}.json").exists():
            continue
        outcome = _record(driver_class, bare)
        if "error" in outcome:
            (raised / f"{case['name']}.json").write_text(json.dumps({**bare, **outcome}))
        else:
            write({**bare, **outcome}, target)
        counts["raised" if "error" in outcome else "recorded"] += 1
    sys.stdout.write(f"{counts}\n")


def _serve(driver_class: Any) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints
    for line in sys.stdin:
        case = json.loads(line)
        answers.write(json.dumps({**case, **_record(driver_class, case)}) + "\n")
        answers.flush()


def _record(driver_class: Any, case: dict[str, Any]) -> dict[str, Any]:
    """The recorded keys, or the `error` that the real engine raised; `events_error`: it raised only while
    somebody listened to its KV events.
    """
    outcome = _attempt(driver_class, case, with_events=True)
    if "error" in outcome:
        error = outcome["error"]
        outcome = {**_attempt(driver_class, case, with_events=False), "events_error": error}
    return outcome


def _attempt(driver_class: Any, case: dict[str, Any], *, with_events: bool) -> dict[str, Any]:
    driver_class.with_events = with_events
    try:
        driver = driver_class(copy.deepcopy(case))
        told: dict[str, Any] = driver.run()
        driver.s.shutdown()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return told


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


if __name__ == "__main__":
    main()
