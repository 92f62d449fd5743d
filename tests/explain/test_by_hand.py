"""Books checked by hand: a replica that takes 10 ms for every token of a step, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models import StepShape
from sim.cluster.watched import Watch
from sim.questions.explain.ledger import Ledger, keep_books
from sim.questions.explain.parts import KEYS
from sim.questions.explain.step_phases import StepPhases
from tests.cluster.helpers import FixedTimer, make_table, make_world


def ten_ms_a_token(shape: StepShape) -> float:
    return 0.01 * shape.num_tokens


def books_of(
    arrival_s: list[float], prompt: list[int], output: list[int], *, host_s: float = 0.0, **kwargs: object
) -> Ledger:
    table = make_table(arrival_s, prompt, output)
    watch = Watch(len(table))
    settings = {"max_num_batched_tokens": 100, "caching": False, "check": False} | kwargs
    world = make_world(table, FixedTimer(ten_ms_a_token, host_s), watch=watch, **settings)  # type: ignore[arg-type]
    world.run()
    steps = [StepPhases(watch.replicas[0], world.recorder.steps[0].end_s())]
    everybody = np.ones(len(table), dtype=bool)
    return keep_books(world.recorder, world.recorder.token_times(), watch, steps, everybody, None)


def parts(books: Ledger, request: int, metric: str) -> dict[str, float]:
    """The parts that are not nothing, to the nanosecond."""
    row = (books.ttft if metric == "ttft" else books.e2e)[request]
    return {key: round(value, 9) for key, value in zip(KEYS, row.tolist(), strict=True) if value > 1e-12}


def test_a_lone_request_is_its_own_prefill_and_its_own_decoding():
    books = books_of([0.0], [60], [5])
    assert parts(books, 0, "ttft") == {"prefill": 0.6}
    assert parts(books, 0, "e2e") == {"prefill": 0.6, "decode": 0.04}


def test_the_front_end_comes_first():
    books = books_of([0.0], [60], [1], front_end_s=0.05)
    assert parts(books, 0, "ttft") == {"front_end": 0.05, "prefill": 0.6}


def test_a_synchronous_host_holds_up_every_step():
    books = books_of([0.0], [60], [5], host_s=0.002)
    assert parts(books, 0, "e2e") == {"prefill": 0.6, "decode": 0.04, "host": 0.01}


def test_who_comes_amid_a_step_waits_for_its_end_and_then_pays_for_the_others():
    books = books_of([0.0, 0.1], [60, 60], [3, 1])
    # steps: 0 to 0.6 the first prompt; to 1.21 its second token beside the second prompt; to 1.22 the third
    assert parts(books, 1, "ttft") == {"under_way": 0.5, "prefill": 0.6, "by_decodes": 0.01}
    assert parts(books, 0, "e2e") == {"prefill": 0.6, "by_prefills": 0.6, "decode": 0.02}


def test_a_used_up_budget_is_what_the_third_waits_for():
    books = books_of([0.0] * 3, [60] * 3, [1] * 3)
    # steps: to 1.0 the first prompt and 40 tokens of the second; to 1.8 its other 20 and the third
    assert parts(books, 2, "ttft") == {"token_budget": 1.0, "prefill": 0.6, "by_prefills": 0.2}
    assert parts(books, 1, "ttft") == {"prefill": 0.6, "by_prefills": 1.2}


def test_with_one_place_the_second_waits_for_it():
    books = books_of([0.0] * 2, [10] * 2, [5, 1], max_num_seqs=1)
    assert parts(books, 1, "ttft") == {"seq_slots": 0.14, "prefill": 0.1}


def test_without_blocks_the_head_waits_for_them_and_the_next_behind_it():
    books = books_of([0.0] * 3, [30, 30, 10], [3, 1, 1], num_blocks=4)
    # three blocks: the first request holds two until 0.32; the third would fit, but stands behind the second
    assert parts(books, 1, "ttft") == {"kv_blocks": 0.32, "prefill": 0.3, "by_prefills": 0.1}
    assert parts(books, 2, "ttft") == {"kv_blocks": 0.32, "prefill": 0.1, "by_prefills": 0.3}
    assert books.behind_s.round(9).tolist() == [0.0, 0.0, 0.32]


def test_a_preempted_request_stalls_and_computes_again():
    books = books_of([0.0] * 2, [16] * 2, [20] * 2, num_blocks=4)
    # both prompts to 0.32; then the first takes the last block, and the second gives up its own until 0.51,
    # when it computes 17 tokens of which it knew 16
    assert parts(books, 0, "e2e") == {"prefill": 0.16, "by_prefills": 0.16, "decode": 0.19}
    assert parts(books, 1, "e2e") == {
        "prefill": 0.17,
        "by_prefills": 0.16,
        "preempted": 0.19,
        "recompute": 0.16,
        "decode": 0.18,
    }
    assert books.gap_request.tolist() == [1]
    assert books.gap[0].sum() == pytest.approx(0.19 + 0.17)


def test_a_prompt_is_held_back_by_the_interval_until_its_turn():
    books = books_of([0.0, 0.05], [10, 150], [30, 1], prefill_interval=4)
    # steps: to 0.1 the first prompt; three decodes to 0.13; to 1.13 the first chunk beside a decode; three
    # decodes to 1.16; to 1.68 the other 51 tokens beside a decode
    assert parts(books, 1, "ttft") == {
        "under_way": 0.05,
        "held_back": 0.06,
        "prefill": 1.5,
        "by_decodes": 0.02,
    }
    assert parts(books, 0, "e2e") == {"prefill": 0.1, "by_prefills": 1.5, "decode": 0.29}
