"""Structured output: requests wait for their grammar, workers compile, caches remember."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.cluster.clock import Clock
from sim.cluster.grammars import GrammarCompiler, GrammarSpec
from sim.simulation import simulate
from tests.cluster.helpers import FixedTimer, make_table, make_world, token_times_s
from tests.features.helpers import make_scenario


def with_grammars(table, grammar):
    return replace(table, grammar=np.array(grammar, np.int64))


def compiling(grammar, compile_s, **more):
    return GrammarSpec(np.array(grammar), np.array(compile_s, dtype=float), **more)


def test_a_request_waits_for_its_grammar_and_others_pass_it():
    """Steps of 1 s; the grammar takes 2.5 s. The plain request has its tokens at 1, 2, 3, 4 and 5 s; the
    other joins the step after 2.5 s, the one from 3 to 4 s.
    """
    table = with_grammars(make_table([0.0, 0.0], 10, [2, 5]), [0, -1])
    world = make_world(table, grammars=compiling([0, -1], [2.5]))
    world.run()
    assert token_times_s(world, 1) == [1, 2, 3, 4, 5]
    assert token_times_s(world, 0) == [4, 5]


def test_an_engine_with_nothing_else_to_do_sleeps_until_the_grammar_is_there():
    """And that is no deadlock."""
    table = with_grammars(make_table([0.0], 10, 2), [0])
    world = make_world(table, grammars=compiling([0], [2.5]))
    world.run()
    assert world.stuck is None
    assert token_times_s(world, 0) == [3.5, 4.5]


def test_a_compiled_grammar_is_ready_at_once():
    table = with_grammars(make_table([0.0, 10.0], 10, 1), [0, 0])
    world = make_world(table, grammars=compiling([0, 0], [2.0]))
    world.run()
    assert (token_times_s(world, 0), token_times_s(world, 1)) == ([3.0], [11.0])
    compiler = world.replicas[0].compiler
    assert (compiler.num_asked, compiler.num_compiled, compiler.num_hits) == (2, 1, 1)


def test_without_a_cache_every_request_compiles():
    table = with_grammars(make_table([0.0, 10.0], 10, 1), [0, 0])
    world = make_world(table, grammars=compiling([0, 0], [2.0], cache=False))
    world.run()
    assert (token_times_s(world, 0), token_times_s(world, 1)) == ([3.0], [13.0])


@pytest.mark.parametrize(
    ("workers", "ready_s"), [(1, [2.0, 5.0, 9.0]), (2, [2.0, 3.0, 6.0]), (3, [2.0, 3.0, 4.0])]
)
def test_workers_compile_in_the_order_asked(workers, ready_s):
    """Grammars of 2, 3 and 4 s, asked for at once."""
    env, ready = Clock(), {}
    compiler = GrammarCompiler(
        env,
        compiling([0, 1, 2], [2, 3, 4], workers=workers),
        lambda request_id: ready.update({request_id: env.now}),
    )
    for request_id in range(3):
        compiler.ask(request_id)
    assert compiler.num_waiting == 3
    env.run()
    assert list(ready.values()) == ready_s
    assert compiler.num_waiting == 0


def test_a_grammar_under_way_is_waited_for_not_compiled_twice():
    env, ready = Clock(), {}
    compiler = GrammarCompiler(env, compiling([0, 0], [2.0], workers=2), lambda i: ready.update({i: env.now}))
    compiler.ask(0)
    env.run(until=1.5)
    compiler.ask(1)
    env.run()
    assert ready == {0: 2.0, 1: 2.0}
    assert compiler.num_compiled == 1


def test_every_replica_compiles_for_itself():
    table = with_grammars(make_table([0.0, 10.0], 10, 1), [0, 0])
    world = make_world(table, grammars=compiling([0, 0], [2.0]), num_replicas=2)
    world.run()
    assert token_times_s(world, 1) == [13.0]


def test_grammars_wait_beside_an_engine_that_plans_ahead():
    """With and without the plans of steady decode the same requests have the same times."""
    arrivals = np.arange(60) * 0.37
    grammar = [k % 7 - 1 for k in range(60)]
    times = []
    for plain in (True, False):  # with a front end, requests enter in the middle of turns
        table = with_grammars(make_table(arrivals, 30, 40), grammar)
        spec = compiling(grammar, [0.3, 1.1, 2.7, 0.0, 5.0, 0.9])
        world = make_world(table, grammars=spec, plain=plain, check=False, front_end_s=0.13)
        world.run()
        times.append([token_times_s(world, request) for request in range(60)])
    assert times[0] == times[1]


WORKLOAD = {
    "kind": "poisson",
    "rate_per_s": 5,
    "num_requests": 300,
    "grammar": {"share": 0.5, "num_grammars": 1},
}


def test_only_requests_with_a_grammar_wait_and_only_the_first_ones():
    """One grammar, 10 s: those who come before it is compiled at about 10 s wait for it, nobody after."""
    result = simulate(make_scenario(WORKLOAD, engine={"grammar": {"compile_s": 10}}), check=True)
    requests = result.requests
    wants = result.workload.table.grammar >= 0
    first_s = requests["arrival_s"][wants].min()
    waits_s = requests["first_scheduled_s"] - requests["arrival_s"]
    early = wants & (requests["arrival_s"] < first_s + 9.9)
    assert early.sum() > 10
    assert (requests["first_scheduled_s"][early] >= first_s + 10).all()
    assert waits_s[~wants].max() < 0.5
    assert waits_s[wants & (requests["arrival_s"] > first_s + 10.1)].max() < 0.5
    assert result.summary["grammars_compiled"] == 1
    assert result.summary["grammar_requests"] == wants.sum()
    assert result.summary["grammar_cache_hits"] == wants.sum() - 1


def test_the_same_seed_gives_the_same_run():
    scenario = make_scenario(
        {**WORKLOAD, "grammar": {"share": 0.5, "num_grammars": 20}},
        engine={"grammar": {"compile_s": {"kind": "lognormal", "mean_s": 0.5, "sigma": 1}, "workers": 2}},
    )
    assert simulate(scenario).requests.equals(simulate(scenario).requests)


@pytest.mark.parametrize("front_end_s", [0.0, 0.03])
def test_a_grammar_is_asked_for_in_the_middle_of_a_plan(front_end_s):
    """A long answer is under way, planned many steps of 0.05 s ahead, when a request for a grammar comes at
    5.02 s. It compiles for a second from when it has entered; the step after that computes the prompt.
    """
    first_token_s = []
    for plain in (True, False):
        table = with_grammars(make_table([0.0, 5.02], 10, [400, 2]), [-1, 0])
        spec = compiling([-1, 0], [1.0])
        timer = FixedTimer(0.05)
        world = make_world(table, timer, grammars=spec, plain=plain, check=False, front_end_s=front_end_s)
        world.run()
        assert world.stuck is None
        first_token_s.append(token_times_s(world, 1)[0])
    assert first_token_s[0] == first_token_s[1]
    assert 6.02 + front_end_s + 0.05 <= first_token_s[0] <= 6.02 + front_end_s + 0.1 + 1e-9
