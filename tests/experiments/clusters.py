"""A Dask cluster of processes on this machine, and processes to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

DASK = (sys.executable, "-m", "dask")
PATIENCE_S = 120.0


def wait_until(happened: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not happened():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


class DaskCluster:
    """A scheduler and two workers, of one thread and of two, every one a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start(
            *("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
            *("--scheduler-file", self._file),
        )
        wait_until(self._file.exists)
        for threads in (1, 2):
            self._start(
                *("worker", "--scheduler-file", self._file, "--nthreads", threads, "--no-dashboard"),
                *("--local-directory", folder, "--host", "127.0.0.1"),
            )

    def _start(self, *arguments: object) -> None:
        log = (self._folder / f"{len(self._processes)}.log").open("wb")
        with log:
            self._processes.append(
                subprocess.Popen([*DASK, *map(str, arguments)], stdout=log, stderr=log, cwd=self._folder)
            )

    @property
    def address(self) -> str:
        address: str = json.loads(self._file.read_text(encoding="utf-8"))["address"]
        return address

    def kill_worker(self) -> None:
        """Kill the process that computes: the nanny that looks after it starts another."""
        children = psutil.Process(self._processes[1].pid).children()
        (worker,) = (child for child in children if "spawn_main" in " ".join(child.cmdline()))
        worker.send_signal(signal.SIGKILL)

    def kill_scheduler(self) -> None:
        self._processes[0].kill()

    def close(self) -> None:
        for process in reversed(self._processes):
            for each in [*_children(process.pid), process]:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            process.wait()


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


@contextlib.contextmanager
def dask_cluster(folder: Path) -> Iterator[DaskCluster]:
    cluster = DaskCluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def loky_workers() -> list[psutil.Process]:
    """The processes that simulate for this one."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "popen_loky" in " ".join(child.cmdline())
    ]
