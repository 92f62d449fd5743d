"""A replica that serves one request at a time is a single-server queue: waiting times must match theory.

One prompt, one token, one sequence: each request is one step, and the step time is the service time.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.cluster.helpers import FixedTimer, make_table, make_world, times_of


def run_queue(service, load: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrival, service and waiting times of a single-server queue with Poisson arrivals."""
    rng = np.random.default_rng(seed)
    prompts = service.prompts(rng, n)
    arrival_s = np.cumsum(rng.exponential(service.mean_s / load, n))
    world = make_world(
        make_table(arrival_s, prompt=prompts),
        FixedTimer(lambda shape: service.time_s(shape.num_tokens)),
        max_num_seqs=1,
        num_blocks=200,
        check=False,
        keep_steps=False,
    )
    world.run()
    served_s = np.array([service.time_s(p) for p in prompts])
    return arrival_s, served_s, times_of(world).e2e_s - served_s


class Deterministic:
    mean_s, second_moment = 1.0, 1.0

    def prompts(self, rng, n):
        return np.full(n, 10)

    def time_s(self, num_tokens):
        return 1.0


class TwoPoint:
    """Service 0.2 s with probability 0.9 (prompt 20) and 8.2 s with probability 0.1 (prompt 820): mean 1
    s.
    """

    mean_s, second_moment = 1.0, 0.9 * 0.2**2 + 0.1 * 8.2**2

    def prompts(self, rng, n):
        return np.where(rng.random(n) < 0.9, 20, 820)

    def time_s(self, num_tokens):
        return num_tokens / 100.0


def batch_means_error(waits: np.ndarray, batches: int = 20) -> float:
    """Half width of a 99.9 % interval for the mean, from batch means (t of 19 degrees of freedom: 3.88)."""
    means = [part.mean() for part in np.array_split(waits, batches)]
    return 3.88 * np.std(means, ddof=1) / np.sqrt(batches)


@pytest.mark.parametrize("service", [Deterministic(), TwoPoint()], ids=["M/D/1", "M/G/1"])
def test_every_single_wait_is_that_of_lindleys_recursion(service):
    """W(n+1) = max(0, W(n) + S(n) − A(n)), with S the service and A the gap to the next arrival."""
    arrival_s, served_s, waits = run_queue(service, 0.85, 4000, seed=7)
    expected = np.zeros(len(waits))
    for i, gap_s in enumerate(np.diff(arrival_s)):
        expected[i + 1] = max(0.0, expected[i] + served_s[i] - gap_s)
    assert expected.max() > 5.0
    np.testing.assert_allclose(waits, expected, atol=1e-8)


@pytest.mark.parametrize(
    ("service", "load"),
    [(Deterministic(), 0.4), (Deterministic(), 0.7), (TwoPoint(), 0.4)],
    ids=["M/D/1 at 40 %", "M/D/1 at 70 %", "M/G/1 at 40 %"],
)
def test_the_mean_wait_is_that_of_pollaczek_and_khinchine(service, load):
    _, _, waits = run_queue(service, load, 15_000, seed=11)
    theory_s = load / service.mean_s * service.second_moment / (2 * (1 - load))
    error_s = batch_means_error(waits)
    assert error_s < 0.35 * theory_s, "the run is too short to tell"
    assert waits.mean() == pytest.approx(theory_s, abs=error_s)


def test_in_an_md1_queue_the_share_of_requests_that_do_not_wait_is_the_idle_share():
    """Poisson arrivals see time averages: P(wait = 0) = 1 − load."""
    _, _, waits = run_queue(Deterministic(), 0.7, 15_000, seed=5)
    assert (waits < 1e-6).mean() == pytest.approx(0.3, abs=0.02)


def test_utilization_is_load_times_service():
    rng = np.random.default_rng(2)
    arrival_s = np.cumsum(rng.exponential(1 / 0.6, 4000))
    world = make_world(make_table(arrival_s), FixedTimer(1.0), max_num_seqs=1, check=False)
    end_s = world.run()
    busy_s = world.recorder.steps[0].totals().busy_s
    assert busy_s == pytest.approx(4000 * 1.0, rel=1e-9)
    assert busy_s / end_s == pytest.approx(0.6, rel=0.05)


def test_littles_law_holds_on_a_batched_engine():
    """Mean number in the system, integrated over the recorded steps, = arrival rate × mean time in system."""
    rng = np.random.default_rng(4)
    n = 3000
    arrival_s = np.cumsum(rng.exponential(0.0118, n))
    table = make_table(arrival_s, prompt=rng.integers(10, 300, n), output=rng.integers(1, 60, n))
    timer = FixedTimer(lambda shape: 0.004 + 2e-5 * shape.num_tokens)
    world = make_world(table, timer, max_num_seqs=16, check=False)
    end_s = world.run()
    start_s, step_end_s, counts = world.recorder.steps[0].kept()
    number_in_system = ((counts[:, 3] + counts[:, 4]) * (step_end_s - start_s)).sum() / end_s
    # Records see a request from the first step that begins after its arrival.
    unseen_s = start_s[np.searchsorted(start_s, arrival_s)] - arrival_s
    time_in_system_s = (times_of(world).e2e_s - unseen_s).mean()
    assert number_in_system == pytest.approx(n / end_s * time_in_system_s, rel=1e-9)
    assert number_in_system > 16
    assert unseen_s.mean() < 0.01
