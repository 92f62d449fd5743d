"""Records cases with the recorder in front of vLLM's own scheduler, in the loop of the public recorders.

    python engine_loop.py FOLDER_OF_RECORD_PY OUT [--patched] CASE.json.gz …

Runs where vLLM is installed and needs nothing else of the tests. `--patched` records a scheduler that from
its sixth step on admits the newest request first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def main(recorder: str, out: str, *rest: str) -> None:
    sys.path[:0] = [recorder, str(Path(__file__).resolve().parents[2])]
    import record
    from dryserve.recording import Recorded, RecordingAsyncScheduler, RecordingScheduler

    class NewestFirst(record.Scheduler):
        step = -1

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.step += 1
            if self.step >= 5 and len(self.waiting) > 1:
                self.waiting.rotate(1)
            return super().schedule(*args, **kwargs)

    class RecordedNewestFirst(Recorded, NewestFirst):
        pass

    model_config = record._model_config

    def without_a_path(max_model_len: int) -> Any:
        config = model_config(max_model_len)
        config.model = "tiny-llama"
        return config

    record._model_config = without_a_path
    record.AsyncScheduler = RecordingAsyncScheduler
    record.Scheduler = RecordedNewestFirst if "--patched" in rest else RecordingScheduler
    os.environ["DRYSERVE_RECORDING_QUEUE"] = "1000000"
    for case in rest:
        if case.startswith("--"):
            continue
        path = Path(out) / Path(case).name.replace(".json.gz", ".jsonl.gz")
        os.environ["DRYSERVE_RECORDING_PATH"] = str(path)
        asked = {key: value for key, value in record.load(case).items() if key not in ("trace", "final")}
        record.record(asked)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
