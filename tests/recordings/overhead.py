"""How much processor time the recorder takes for a step of vLLM's own scheduler with 256 running requests.

    python overhead.py FOLDER_OF_RECORD_PY

Runs where vLLM is installed, on a scripted loop in which requests end and others come all the time. Time is
that of the engine's thread within the recorder, and all of the writing thread's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import thread_time
from typing import Any

RUNNING, OUTPUTS, STEPS, PROMPT = 256, 200, 1500, 1000
STEP_S = 10e-3


def main(recorder: str) -> None:
    sys.path[:0] = [recorder, str(Path(__file__).resolve().parents[2])]
    import record
    from dryserve.recording import RecordingAsyncScheduler, RecordingScheduler, hooks, notes, writer

    record.Scheduler, record.AsyncScheduler = RecordingScheduler, RecordingAsyncScheduler
    os.environ["DRYSERVE_RECORDING_QUEUE"] = "1000000"
    spent: Counter[str] = Counter()
    for what in ("scheduled", "updated", "added", "drafted"):
        setattr(notes.Notes, what, _timed(getattr(notes.Notes, what), spent, "engine"))
    writer.Writer._run = _timed(writer.Writer._run, spent, "writer")
    assert hooks.Notes is notes.Notes
    for spec in (None, {"kind": "ngram", "k": 3}):
        spent.clear()
        with tempfile.TemporaryDirectory() as folder:
            os.environ["DRYSERVE_RECORDING_PATH"] = f"{folder}/a.jsonl.gz"
            _loop(record, spec)
            size = Path(f"{folder}/a.jsonl.gz").stat().st_size
        engine, writing = (1e6 * spent[name] / STEPS for name in ("engine", "writer"))
        what = "with drafts" if spec else "without"
        sys.stdout.write(
            f"{what}: {engine:.0f} µs a step in the engine ({engine / STEP_S / 1e4:.2f} % of 10 ms), "
            f"{writing:.0f} µs in the writer's; {size / STEPS:.0f} bytes a step\n"
        )


def _timed(call: Any, spent: Counter[str], name: str) -> Any:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            spent[name] += thread_time() - start  # type: ignore[assignment]

    return timed


def _loop(record: Any, spec: dict[str, Any] | None) -> None:
    requests = [
        {"prompt": [[3, 300], [100_000 * (i + 1), PROMPT - 300]], "out": 100_000 * (i + 1) + 50_000,
         "max_tokens": OUTPUTS, "accept": [1, 0, 2]}
        for i in range(3 * STEPS * RUNNING // OUTPUTS + RUNNING + 50)
    ]  # fmt: skip
    config = {"max_num_seqs": RUNNING, "max_num_batched_tokens": 4096, "num_blocks": 40_000, "spec": spec}
    driver = record.Driver({"config": config, "requests": requests, "events": [], "max_steps": STEPS})
    driver.mid = {}
    for i in range(RUNNING):
        driver.reqs[i]["max_tokens"] = 2 + i * OUTPUTS // RUNNING
    added = 0
    for step in range(STEPS):
        while len(driver.s.running) + len(driver.s.waiting) < RUNNING + 2:
            driver.add(added)
            added += 1
        driver.t = step
        driver.do_update(driver.do_schedule({}), {})
    driver.s.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
