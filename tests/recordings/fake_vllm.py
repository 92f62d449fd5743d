"""A package that looks like vLLM as far as importing the recorder goes."""

from __future__ import annotations

from pathlib import Path

LOADS_NOTHING_ELSE = """
import sys
before = set(sys.modules)
from dryserve.recording import RecordingAsyncScheduler, RecordingScheduler
assert RecordingScheduler.__mro__[2].__module__ == "vllm.v1.core.sched.scheduler"
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
others = sorted(loaded - set(sys.stdlib_module_names) - {"dryserve", "vllm"})
assert not others, others
ours = sorted(name for name in sys.modules if name.startswith("dryserve."))
assert all(name.startswith("dryserve.recording") for name in ours), ours
print("recorder loaded alone")
"""


def install(folder: Path) -> None:
    inner = folder / "vllm" / "v1" / "core" / "sched"
    inner.mkdir(parents=True)
    for package in (inner, *inner.parents[:3]):
        (package / "__init__.py").touch()
    (inner / "scheduler.py").write_text("class Scheduler:\n    pass\n")
    (inner / "async_scheduler.py").write_text(
        "from .scheduler import Scheduler\nclass AsyncScheduler(Scheduler):\n    pass\n"
    )
