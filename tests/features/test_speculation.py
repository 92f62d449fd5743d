"""Speculative decoding: luck of drafts, tokens per step, slots, budget and time; by hand and by theory."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models import Deployment, StepCostModel, StepShape
from scheduler import EngineCore, InvariantError, KVCacheConfig, Request, SchedulerConfig, SpeculativeConfig
from scheduler.invariants import check
from sim.cluster.model_runner import Acceptance, FixedDrafter, SpeculationSpec
from sim.simulation import simulate
from tests.cluster.helpers import FixedTimer, make_table, make_world, token_times_s
from tests.features.helpers import faults_of, make_scenario


def speculating(rates, *, kind="ngram", pass_s=0.0, seed=0, **more):
    """Parts of a world that drafts one token for each rate."""
    return {
        "speculation": SpeculationSpec(
            Acceptance(rates, np.random.default_rng(seed)), FixedDrafter(len(rates), pass_s)
        ),
        "speculative": SpeculativeConfig(kind, len(rates)),
        **more,
    }


# --- luck ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("drafts", [1, 4])
def test_a_step_yields_what_theory_says(rate, drafts):
    """With acceptance a for each of k drafts a step yields (1 - a^(k+1)) / (1 - a) tokens in the mean, k + 1
    for a = 1 (Leviathan, Kalman and Matias 2023, equation 1). 40,000 places: standard error below 0.01.
    """
    luck = Acceptance([rate] * drafts, np.random.default_rng(1))
    tokens = [1 + luck.num_right(request, place) for request in range(40) for place in range(1000)]
    expected = drafts + 1 if rate == 1 else (1 - rate ** (drafts + 1)) / (1 - rate)
    assert np.mean(tokens) == pytest.approx(expected, abs=0.03)


def test_the_number_of_right_drafts_has_the_right_distribution():
    """Rates 0.9, 0.5, 0.2: exactly 0, 1, 2, 3 drafts are right with chances 0.1, 0.45, 0.36, 0.09."""
    luck = Acceptance([0.9, 0.5, 0.2], np.random.default_rng(2))
    counts = np.bincount([luck.num_right(r, p) for r in range(100) for p in range(1000)]) / 100_000
    assert counts == pytest.approx([0.1, 0.45, 0.36, 0.09], abs=0.006)


def test_neighbouring_places_and_requests_are_independent():
    luck = Acceptance([0.5], np.random.default_rng(3))
    right = np.array([[luck.num_right(r, p) for p in range(400)] for r in range(400)], dtype=float)
    along = np.corrcoef(right[:, 1:].ravel(), right[:, :-1].ravel())[0, 1]
    across = np.corrcoef(right[1:].ravel(), right[:-1].ravel())[0, 1]
    assert abs(along) < 0.01
    assert abs(across) < 0.01


def test_luck_belongs_to_a_place_and_to_the_seed():
    one, same, other = (Acceptance([0.5] * 3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    places = [(r, p) for r in range(20) for p in range(20)]
    drawn = [one.num_right(*place) for place in reversed(places)][::-1]
    assert drawn == [same.num_right(*place) for place in places]
    assert drawn != [other.num_right(*place) for place in places]


# --- a run by hand ------------------------------------------------------------------------------------------


def test_right_drafts_come_together_and_wrong_ones_not_at_all():
    """3 drafts, always right: a prompt, then steps of 4 tokens: 1, 2..5 and 6..9 at 1, 2 and 3 s."""
    world = make_world(make_table([0.0], 10, 9), **speculating([1.0] * 3))
    world.run()
    log = world.recorder.requests
    assert token_times_s(world, 0) == [1.0, 2.0, 3.0]
    assert (log.output_tokens[0], log.extra_tokens[0]) == (9, 6)

    wrong = make_world(make_table([0.0], 10, 9), **speculating([0.0] * 3))
    wrong.run()
    assert token_times_s(wrong, 0) == [float(t) for t in range(1, 10)]
    assert wrong.recorder.requests.extra_tokens[0] == 0


def test_what_comes_behind_the_end_of_an_answer_is_cut():
    """5 tokens: the prompt's step gives one, the next four drafts and one more, of which four are wanted."""
    world = make_world(make_table([0.0], 10, 5), **speculating([1.0] * 4))
    world.run()
    assert world.recorder.requests.output_tokens[0] == 5
    assert token_times_s(world, 0) == [1.0, 2.0]


def test_a_step_spends_budget_on_drafts_and_samples_a_row_for_each():
    """Two requests, two drafts each: 6 tokens in 6 rows; each request is one decode with one context."""
    timer = FixedTimer(1.0)
    make_world(make_table([0.0, 0.0], [10, 20], 4), timer, **speculating([0.0, 0.0])).run()
    prompts, first = timer.shapes[0], timer.shapes[1]
    assert prompts.prefill_chunks == ((10, 0), (20, 0))
    assert (first.num_tokens, first.num_decodes, first.num_sampled) == (6, 2, 6)
    assert first.decode_context_tokens == 13 + 23
    assert first.max_decode_context_tokens == 23
    assert first.prefill_chunks == ()


def test_the_budget_cuts_drafts():
    """Budget 4 for two requests with two drafts each: 3 tokens for the first, 1 for the second."""
    timer = FixedTimer(1.0)
    limits = {"max_num_batched_tokens": 4, "max_num_seqs": 4}
    make_world(make_table([0.0, 0.0], [2, 2], 3), timer, **speculating([0.0, 0.0]), **limits).run()
    assert timer.shapes[1].num_tokens == 4
    assert timer.shapes[1].num_sampled == 4


@pytest.mark.parametrize(("kind", "blocks"), [("ngram", 3), ("draft_model", 4)])
def test_a_drafter_writes_ahead_into_slots_of_its_own(kind, blocks):
    """Blocks of 4, a prompt of 8, 3 drafts: a decode step needs 8 + 1 + 3 = 12 slots, 3 blocks; a drafting
    model 3 more slots, a fourth block.
    """
    world = make_world(make_table([0.0], 8, 3), block_size=4, **speculating([0.0] * 3, kind=kind))
    world.run()
    used = world.recorder.steps[0].kept()[2][:, 5].tolist()
    assert used[1] == blocks


def test_drafting_takes_its_time_after_each_step():
    """A step of 1 s and three drafted tokens of 0.1 s each."""
    world = make_world(make_table([0.0], 10, 3), **speculating([0.0] * 3, pass_s=0.1))
    world.run()
    assert token_times_s(world, 0) == pytest.approx([1.3, 2.6, 3.9])


# --- whole runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kind", ["draft_model", "eagle"])
def test_steps_follow_from_theory_and_every_token_has_its_place(kind, asynchronous):
    """Answers of 601 tokens: one from the prompt's step, 600 from steps of 2.773 tokens (a = 0.7, k = 4). The
    world checks its laws after each step.
    """
    world = make_world(
        make_table(np.arange(40) * 0.5, 20, 601),
        **speculating([0.7] * 4, kind=kind, async_scheduling=asynchronous),
    )
    world.run()
    bursts = [len(token_times_s(world, request)) - 1 for request in range(40)]
    per_step = (1 - 0.7**5) / (1 - 0.7)
    assert np.mean(bursts) == pytest.approx(600 / per_step, rel=0.02)
    assert np.std(bursts) > 3
    assert list(world.recorder.requests.output_tokens) == [601] * 40


def test_luck_does_not_depend_on_the_company():
    """Alone or among twenty, in sync or async, a request takes the same steps: common random numbers."""

    def bursts(**more):
        table = make_table([0.0] * 20, 20, 100)
        world = make_world(table, **speculating([0.6] * 3, kind="eagle", **more))
        world.run()
        return [len(token_times_s(world, request)) for request in range(20)]

    assert bursts() == bursts(max_num_seqs=3) == bursts(async_scheduling=True)


def test_speculation_survives_preemptions():
    """A pool of 30 blocks for 8 requests of up to 100 tokens: they push one another out, and lose nothing."""
    world = make_world(
        make_table([0.0] * 8, 20, 80),
        num_blocks=31,
        block_size=8,
        **speculating([0.7] * 4, kind="draft_model"),
    )
    world.run()
    assert world.replicas[0].engine.num_preemptions > 0
    assert list(world.recorder.requests.output_tokens) == [80] * 8


BUSY = {
    "kind": "poisson",
    "rate_per_s": 10,
    "num_requests": 100,
    "lengths": {"kind": "fixed", "prompt_tokens": 200, "output_tokens": 100},
}


def spec(method="eagle", drafts=3, acceptance=0.7, **more):
    return {
        "speculative_config": {
            "method": method,
            "num_speculative_tokens": drafts,
            "acceptance": acceptance,
            **more,
        }
    }


def test_the_summary_has_the_numbers_of_vllm_bench_serve():
    summary = simulate(make_scenario(BUSY, engine=spec(acceptance=(0.8, 0.6, 0.5))), check=True).summary
    drafts, tokens = summary["spec_decode_num_drafts"], summary["spec_decode_draft_tokens"]
    accepted = summary["spec_decode_accepted_tokens"]
    assert tokens == pytest.approx(3 * drafts, rel=0.001)
    assert summary["spec_decode_acceptance_rate"] == pytest.approx(100 * accepted / tokens)
    assert summary["spec_decode_acceptance_length"] == pytest.approx(1 + accepted / drafts)
    rates = summary["spec_decode_per_position_acceptance_rates"]
    assert rates == pytest.approx([0.8, 0.48, 0.24], abs=0.03)
    assert sum(rates) == pytest.approx(accepted / drafts, rel=1e-6)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_laws_hold_wherever_in_a_step_the_clock_stops(asynchronous):
    """Drafts in flight count as computed before anybody knows whether they are right."""
    engine = spec(acceptance=0.1) | {"async_scheduling": asynchronous}
    for horizon_s in np.linspace(0.5, 0.6, 7):
        scenario = make_scenario(BUSY, engine=engine, horizon_s=float(horizon_s))
        summary = simulate(scenario, check=True).summary
        assert summary["num_in_flight"] > 0
        assert summary["spec_decode_draft_tokens"] > 0


def test_drafts_beyond_those_in_flight_are_not_let_pass():
    engine = EngineCore(SchedulerConfig(speculative=SpeculativeConfig("ngram", 3)), KVCacheConfig(64))
    request = Request(0, ((0, 20),), 10)
    engine.add_request(request)
    output = engine.schedule()
    engine.update(output, lambda _: [[1]])
    engine.propose_drafts(output, [3])
    drafts = engine.schedule().scheduled_spec_decode_tokens
    assert drafts == {0: 3}
    check(engine, drafts)
    for fewer in ({}, {0: 2}):
        with pytest.raises(InvariantError, match=r"has 24 computed tokens of 2[13] known or in flight"):
            check(engine, fewer)


def test_tokens_that_come_together_make_itl_longer_than_tpot():
    """100 tokens in bursts of 2.53 (a = 0.7, k = 3): gaps are that much longer than times per token."""
    summary = simulate(make_scenario(BUSY, engine=spec(method="ngram"))).summary
    per_step = (1 - 0.7**4) / (1 - 0.7)
    assert summary["mean_itl_ms"] / summary["mean_tpot_ms"] == pytest.approx(per_step, rel=0.03)
    assert summary["std_itl_ms"] > 0


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    one, two, other = (simulate(make_scenario(BUSY, engine=spec(), seed=seed)).requests for seed in (4, 4, 5))
    assert one.equals(two)
    assert not one["last_token_s"].equals(other["last_token_s"])


def test_a_drafting_model_takes_its_own_time():
    """Steps of one decode: the target's time at 1 + k rows and k passes of the drafter, each as the cost
    model says of that model alone.
    """
    lengths = {"kind": "fixed", "prompt_tokens": 16, "output_tokens": 3}
    one = {"kind": "burst", "num_requests": 1, "lengths": lengths}
    engine = spec("draft_model", 2, 0.0, model="Qwen/Qwen3-0.6B") | {"async_scheduling": False}
    steps = simulate(make_scenario(one, engine=engine, model="Qwen/Qwen3-8B")).steps
    target = StepCostModel(Deployment.of("Qwen/Qwen3-8B", "h100-sxm", async_scheduling=False))
    draft = StepCostModel(Deployment.of("Qwen/Qwen3-0.6B", "h100-sxm", async_scheduling=False))
    verify = StepShape(3, 1, 19, 19, num_sampled=3, num_requests=1)
    first = StepShape(3, 1, 19, 19, num_sampled=1, num_requests=1)
    cost = target.step(verify)
    expected_s = cost.gpu_s + cost.host_s + draft.step(first).gpu_s + draft.decode_step(1, 18, 18).gpu_s
    assert steps["step_time_s"].iloc[1] == pytest.approx(expected_s, rel=1e-6)


def test_a_drafting_model_takes_its_own_memory():
    """Qwen3-0.6B: 28 layers, hidden 1024, 16 heads and 8 KV heads of 128, FFN 3072, vocabulary 151,936, tied.
    Weights in bf16: 0.596 G parameters; KV: 2 · 28 · 8 · 128 · 2 B a token.
    """

    def plan(**engine):
        return simulate(
            make_scenario({"kind": "burst", "num_requests": 1}, engine=engine, model="Qwen/Qwen3-8B")
        ).setup.plan

    alone, beside = plan(), plan(**spec("draft_model", 2, 0.5, model="Qwen/Qwen3-0.6B"))
    assert beside.bytes_per_token - alone.bytes_per_token == 2 * 28 * 8 * 128 * 2
    assert beside.weights_bytes - alone.weights_bytes == pytest.approx(2 * 0.596e9, rel=0.02)
    left = alone.kv_cache_bytes - (beside.weights_bytes - alone.weights_bytes)
    assert beside.num_gpu_blocks == int(left // (16 * beside.bytes_per_token))


def test_an_eagle_layer_shares_the_embedding_of_its_target():
    """One layer of Llama-3.1-8B: 2·4096² + 2·4096·1024 + 3·4096·14336 parameters and two norms."""

    def plan(**engine):
        return simulate(make_scenario({"kind": "burst", "num_requests": 1}, engine=engine)).setup.plan

    alone, beside = plan(), plan(**spec("eagle"))
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert beside.weights_bytes - alone.weights_bytes == 2 * layer
    assert beside.bytes_per_token == alone.bytes_per_token * 33 // 32


def test_ngram_takes_no_memory_and_is_not_scheduled_ahead_by_default():
    result = simulate(make_scenario({"kind": "burst", "num_requests": 1}, engine=spec("ngram")))
    plain = simulate(make_scenario({"kind": "burst", "num_requests": 1}))
    assert result.setup.plan == plain.setup.plan
    assert result.setup.engine.async_scheduling is False
    assert plain.setup.engine.async_scheduling is True


# --- what vLLM refuses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        (
            spec("ngram") | {"async_scheduling": True},
            "engine.async_scheduling: vLLM 0.16.0 makes ngram drafts on the host and cannot schedule ahead "
            "of them; use eagle or draft_model, or leave it out",
        ),
        (
            spec() | {"pipeline_parallel_size": 2},
            "engine.pipeline_parallel_size: speculative decoding does not work with pipeline stages",
        ),
        (
            spec("draft_model", model="Qwen/Qwen3-0.6B"),
            "engine.speculative_config.model: has a vocabulary of 151936 tokens and meta-llama/Llama-3.1-8B "
            "one of 128256; they must be the same",
        ),
        (spec("draft_model"), "engine.speculative_config: method draft_model needs a model"),
        (
            spec("ngram", model="Qwen/Qwen3-0.6B"),
            "engine.speculative_config: method ngram takes no model",
        ),
        (
            spec(acceptance=(0.5, 0.5)),
            "engine.speculative_config: acceptance has 2 rates for num_speculative_tokens 3; give one for "
            "each, or one for all",
        ),
        (
            spec(acceptance=1.2),
            "engine.speculative_config.acceptance: must be from 0 to 1 (got 1.2)",
        ),
        (
            spec(drafts=0),
            "engine.speculative_config.num_speculative_tokens: must be at least 1 (got 0)",
        ),
        (
            spec("draft_model", model="meta-llama/Meta-Llama-3-8B") | {"version": "0.13.0"},
            "engine.speculative_config.method: vLLM 0.13.0 knows no draft models",
        ),
    ],
)
def test_what_vllm_refuses_is_refused(engine, fault):
    assert faults_of({"kind": "burst", "num_requests": 1}, engine=engine) == [fault]
