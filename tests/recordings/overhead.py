"""How much processor time the recorder adds to a step of vLLM's own scheduler with 256 running requests.

    python overhead.py FOLDER_OF_RECORD_PY

Runs where vLLM is installed, on a scripted loop in which requests end and others come all the time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUNNING, OUTPUTS, STEPS, PROMPT = 256, 200, 2000, 1000


def main(recorder: str) -> None:
    sys.path[:0] = [recorder, str(Path(__file__).resolve().parents[2])]
    import record
    from dryserve.recording import RecordingAsyncScheduler, RecordingScheduler

    plain = (record.Scheduler, record.AsyncScheduler)
    recording = (RecordingScheduler, RecordingAsyncScheduler)
    os.environ["DRYSERVE_RECORDING_QUEUE"] = "1000000"
    for spec in (None, {"kind": "ngram", "k": 3}):
        times = {}
        for name, classes in (("plain", plain), ("recorded", recording)) * 2:
            record.Scheduler, record.AsyncScheduler = classes
            with tempfile.TemporaryDirectory() as folder:
                os.environ["DRYSERVE_RECORDING_PATH"] = f"{folder}/a.jsonl.gz"
                times[name] = min(times.get(name, 1.0), _loop(record, spec))
                size = Path(f"{folder}/a.jsonl.gz").stat().st_size if name == "recorded" else 0
        added = times["recorded"] - times["plain"]
        what = "speculation" if spec else "no speculation"
        sys.stdout.write(
            f"{what}: {1e6 * times['plain']:.0f} µs a step alone, {1e6 * added:.0f} µs added, "
            f"{100 * added / 10e-3:.2f} % of a step of 10 ms, {size / STEPS:.0f} bytes a step\n"
        )


def _loop(record: Any, spec: dict[str, Any] | None) -> float:
    """Processor time of a step, all threads together."""
    requests = [
        {"prompt": [[3, 300], [100_000 * (i + 1), PROMPT - 300]], "out": 100_000 * (i + 1) + 50_000,
         "max_tokens": OUTPUTS, "accept": [1, 0, 2]}
        for i in range(STEPS * RUNNING // OUTPUTS + RUNNING + 50)
    ]  # fmt: skip
    config = {"max_num_seqs": RUNNING, "max_num_batched_tokens": 4096, "num_blocks": 40_000, "spec": spec}
    driver = record.Driver({"config": config, "requests": requests, "events": [], "max_steps": STEPS})
    driver.mid = {}
    for i in range(RUNNING):
        driver.reqs[i]["max_tokens"] = 2 + i * OUTPUTS // RUNNING
    added, start = 0, 0.0
    for step in range(STEPS + 200):
        if step == 200:
            start = time.process_time()
        while len(driver.s.running) + len(driver.s.waiting) < RUNNING + 2 and added < len(requests):
            driver.add(added)
            added += 1
        driver.t = step
        driver.do_update(driver.do_schedule({}), {})
    driver.s.shutdown()
    return (time.process_time() - start) / STEPS


if __name__ == "__main__":
    main(*sys.argv[1:])
