"""Records what a running vLLM engine decides: `dryserve conform` checks it, `dryserve calibrate` times it.

    vllm serve MODEL --scheduler-cls dryserve.recording.RecordingScheduler
    vllm serve MODEL --scheduler-cls dryserve.recording.RecordingAsyncScheduler   # asynchronous scheduling

A scheduler of your own is recorded by a class in front of it: `class Mine(Recorded, MyScheduler): pass`.

The file holds lengths, counts, classes of equal blocks and times, and never token ids, texts, request ids or
hashes. Importing this needs vLLM and nothing else of dryserve. Whatever goes wrong in here ends the recording
with one line in the log; the engine serves on. Environment variables say where it goes and how large it gets:

* `DRYSERVE_RECORDING_PATH`: file, or folder (default: the working directory);
* `DRYSERVE_RECORDING_MAX_MB` (200), `DRYSERVE_RECORDING_MAX_S` (no limit): where the recording ends;
* `DRYSERVE_RECORDING_QUEUE` (4096): most calls that wait to be written; when more come, the recording ends;
* `DRYSERVE_RECORDING_ANY_RELEASE=1`: record a release that this was not tried with. Without it such an engine
  serves unrecorded, and says so.
"""

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from .hooks import TRIED_WITH, Recorded

__all__ = ["TRIED_WITH", "Recorded", "RecordingAsyncScheduler", "RecordingScheduler"]


class RecordingScheduler(Recorded, Scheduler):  # type: ignore[misc]  # where vLLM is not installed
    """vLLM's scheduler, recorded."""


class RecordingAsyncScheduler(Recorded, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, recorded."""
