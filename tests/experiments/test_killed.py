"""Workers and parents are killed in the midst of it: nothing finished is lost, and the results are the same.

`make nightly` sweeps 200 points and kills the parent three times, on two processes and on a Dask cluster.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from sim import InputError, load_scenario
from sim.jobs.options import Progress, RunOptions
from sim.jobs.points import Point, run_points
from tests.cli.helpers import DRYSERVE, SCENARIO, write_scenario
from tests.experiments.clusters import DaskCluster, dask_cluster, loky_workers, wait_until

SMALL = ("workload.duration_s=null", "cluster.replicas=1")


def points(count: int, requests: int) -> list[Point]:
    fields = [*SMALL, f"workload.num_requests={requests}"]
    return [
        Point(load_scenario("quickstart", [*fields, f"workload.rate_per_s={rate}"]), {"rate": rate})
        for rate in range(2, 2 + count)
    ]


def entries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.npz")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    """The entries of twelve points, made in this process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_points(points(12, 150), columns=("ttft_s",), options=RunOptions(workers=1, store=folder))
    return entries(folder)


# --- workers ------------------------------------------------------------------------------------------------


def test_killed_workers_cost_only_what_they_were_at(tmp_path, undisturbed):
    kills = {3, 7}

    def kill(progress: Progress) -> None:
        if progress.done in kills:
            kills.remove(progress.done)
            loky_workers()[0].send_signal(signal.SIGKILL)

    outcomes = run_points(
        points(12, 150), columns=("ttft_s",), options=RunOptions(workers=2, store=tmp_path, on_progress=kill)
    )
    assert not kills
    assert [outcome.error for outcome in outcomes] == [None] * 12
    assert entries(tmp_path) == undisturbed


DEADLY = """\
import os


class Deadly:
    def __init__(self) -> None:
        os._exit(9)

    def choose(self, running, asking):
        return None
"""


def test_a_point_that_kills_its_workers_is_given_up_and_told_from_the_others(tmp_path, monkeypatch):
    (tmp_path / "deadly_policy.py").write_text(DEADLY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    policy = "engine.victim_policy={kind: deadly_policy.Deadly}"
    deadly = load_scenario("quickstart", [*SMALL, "workload.num_requests=20", policy])
    asked = [*points(2, 20), Point(deadly, {}), *points(5, 30)]
    outcomes = run_points(asked, options=RunOptions(workers=2, store=tmp_path / "store", allow_plugins=True))
    assert [outcome.error is None for outcome in outcomes] == [True, True, False, *[True] * 5]
    assert "its worker was killed 3 times" in outcomes[2].error


# --- the parent ---------------------------------------------------------------------------------------------


def kill_and_resume(
    tmp_path: Path, arguments: list[object], total: int, kills: int, seed: int
) -> tuple[Path, list[str]]:
    """Start the same sweep over and over, kill it at random moments, and let the last one finish."""
    moments = random.Random(seed)
    cache, out = tmp_path / "killed-cache", tmp_path / "killed"
    env = {"DRYSERVE_CACHE": str(cache)}
    command = [*DRYSERVE, "sweep", *arguments, "--out", out]
    for part in range(kills):
        enough = total * (part + moments.random()) / (kills + 1)
        process = subprocess.Popen(
            list(map(str, command)),
            env=os.environ | env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda enough=enough: len(list(cache.rglob("*.npz"))) >= enough, patience_s=1800.0)
            time.sleep(moments.random() * 0.05)
            assert process.poll() is None, "it was over before it could be killed"
            workers = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
            process.wait()
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive  # they end with their parent
        assert not out.exists() or not list(out.glob("[!.]*"))  # no half-written results
    told = to_the_end(arguments, out, cache)
    (folder,) = out.glob("[!.]*")
    return folder, told


def to_the_end(arguments: list[object], out: Path, cache: Path) -> list[str]:
    """Let a sweep finish, however long it takes; the lines it wrote to stderr."""
    done = subprocess.run(
        [*DRYSERVE, "sweep", *map(str, arguments), "--out", str(out)],
        env=os.environ | {"DRYSERVE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def undisturbed_sweep(tmp_path: Path, arguments: list[object]) -> Path:
    out = tmp_path / "undisturbed-sweep"
    to_the_end(arguments, out, tmp_path / "undisturbed-cache")
    (folder,) = out.iterdir()
    return folder


def assert_same(one: Path, other: Path) -> None:
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert names == sorted(str(path.relative_to(other)) for path in other.rglob("*") if path.is_file())
    assert one.name == other.name
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_killed_sweep_goes_on_and_ends_like_one_that_was_not(tmp_path):
    scenario = write_scenario(tmp_path, SCENARIO.replace("num_requests: 40", "num_requests: 80"))
    grid = ["--grid", "engine.max_num_seqs=4..256", "--replications", 3, "--no-figures", "--workers", 2]
    folder, told = kill_and_resume(tmp_path, [scenario, *grid], total=21, kills=2, seed=1)
    found = int(told[-1].split(" runs made, ")[1].split(" found")[0])
    assert 7 <= found < 21
    assert_same(folder, undisturbed_sweep(tmp_path, [scenario, *grid]))
    assert not list((tmp_path / "killed").glob(".*"))


def test_ctrl_c_says_how_to_go_on(tmp_path):
    scenario = write_scenario(tmp_path, SCENARIO.replace("num_requests: 40", "num_requests: 400"))
    cache = tmp_path / "cache"
    process = subprocess.Popen(
        [*DRYSERVE, "sweep", str(scenario), "--rate", "1:30", "--out", str(tmp_path / "out")],
        env=os.environ | {"DRYSERVE_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: list(cache.rglob("*.npz")))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1].startswith("interrupted: ")
    assert "the same command goes on from there" in stderr


# --- a cluster ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


def test_a_cluster_gives_the_same_bytes_though_a_worker_is_killed(
    tmp_path, undisturbed, cluster: DaskCluster
):
    kills = {3}

    def kill(progress: Progress) -> None:
        if progress.done in kills:
            kills.remove(progress.done)
            cluster.kill_worker()

    outcomes = run_points(
        points(12, 150),
        columns=("ttft_s",),
        options=RunOptions(backend="dask", address=cluster.address, store=tmp_path, on_progress=kill),
    )
    assert not kills
    assert [outcome.error for outcome in outcomes] == [None] * 12
    assert entries(tmp_path) == undisturbed


def test_a_cluster_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr("sim.jobs.dask_cluster.CONNECT_S", 1)
    with pytest.raises(InputError, match="no Dask scheduler answers there"):
        run_points(points(1, 10), options=RunOptions(backend="dask", address="tcp://127.0.0.1:9", store=None))


def test_a_cluster_that_goes_away_leaves_what_it_finished(tmp_path):
    (tmp_path / "dask").mkdir()
    with dask_cluster(tmp_path / "dask") as cluster:

        def kill(progress: Progress) -> None:
            if progress.done == 1:
                cluster.kill_scheduler()

        with pytest.raises(InputError, match="does not answer any more"):
            run_points(
                points(40, 3000),
                options=RunOptions(
                    backend="dask",
                    address=cluster.address,
                    store=tmp_path / "store",
                    on_progress=kill,
                ),
            )
    assert 1 <= len(entries(tmp_path / "store")) < 40


def test_ray_gives_the_same_bytes_too(tmp_path, undisturbed):
    ray = pytest.importorskip("ray", reason="needs ray, which is an extra: pip install 'dryserve[ray]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        run_points(
            points(12, 150), columns=("ttft_s",), options=RunOptions(backend="ray", store=tmp_path / "store")
        )
    finally:
        ray.shutdown()
    assert entries(tmp_path / "store") == undisturbed


# --- all of it, at length -----------------------------------------------------------------------------------

TWO_HUNDRED = ["max_num_seqs=2..1024", "--rate", "5:50:5", "--replications", 2, "--no-figures"]


@pytest.fixture(scope="module")
def long_scenario(tmp_path_factory):
    text = SCENARIO.replace("num_requests: 40", "num_requests: 250")
    return write_scenario(tmp_path_factory.mktemp("long"), text)


@pytest.fixture(scope="module")
def long_sweep(tmp_path_factory, long_scenario):
    return undisturbed_sweep(tmp_path_factory.mktemp("undisturbed"), [long_scenario, *TWO_HUNDRED])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
def test_two_hundred_points_killed_three_times(tmp_path, long_scenario, long_sweep, seed):
    arguments = [long_scenario, *TWO_HUNDRED, "--workers", 2]
    folder, _ = kill_and_resume(tmp_path, arguments, total=200, kills=3, seed=seed)
    assert_same(folder, long_sweep)


@pytest.mark.nightly
def test_two_hundred_points_killed_three_times_on_a_cluster(tmp_path, long_scenario, long_sweep):
    """The parent dies three times, and meanwhile a worker every few seconds."""
    (tmp_path / "dask").mkdir()
    with dask_cluster(tmp_path / "dask") as cluster:
        arguments = [long_scenario, *TWO_HUNDRED, "--backend", "dask", "--address", cluster.address]
        over = threading.Event()

        def kill_workers() -> None:
            while not over.wait(7.0):
                with contextlib.suppress(ValueError):  # one is just being replaced
                    cluster.kill_worker()

        killer = threading.Thread(target=kill_workers)
        killer.start()
        try:
            folder, _ = kill_and_resume(tmp_path, arguments, total=200, kills=3, seed=3)
        finally:
            over.set()
            killer.join()
    assert_same(folder, long_sweep)
