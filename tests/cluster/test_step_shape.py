"""SchedulerOutput → StepShape, by token counts alone."""

from __future__ import annotations

from scheduler import Request, SchedulerOutput
from sim.cluster.step_shape import step_shape, token_split


def output_of(*parts: tuple[int, int, bool], high_water: dict[int, int] | None = None) -> SchedulerOutput:
    """A step from (scheduled tokens, computed before, samples) of each request."""
    output = SchedulerOutput(10_000)
    for i, (tokens, before, samples) in enumerate(parts):
        request = Request(i, ((0, before + tokens + (not samples)),), 5)
        request.num_computed_tokens = before
        request.high_water_tokens = (high_water or {}).get(i, 0)
        output.add(request, tokens)
    output.total_num_scheduled_tokens = sum(tokens for tokens, _, _ in parts)
    return output


def test_decodes_are_summed_with_their_new_token():
    shape = step_shape(output_of((1, 99, True), (1, 9, True)))
    assert (shape.num_tokens, shape.num_decodes, shape.num_sampled, shape.num_requests) == (2, 2, 2, 2)
    assert (shape.decode_context_tokens, shape.max_decode_context_tokens) == (110, 100)
    assert shape.prefill_chunks == ()


def test_chunks_keep_their_length_and_prefix_and_do_not_sample_amid_a_prompt():
    shape = step_shape(output_of((1, 49, True), (64, 0, False), (30, 64, True)))
    assert shape.num_tokens == 95
    assert (shape.num_decodes, shape.decode_context_tokens) == (1, 50)
    assert shape.prefill_chunks == ((64, 0), (30, 64))
    assert shape.num_sampled == 2


def test_a_step_of_prefill_alone_has_no_decode_context():
    shape = step_shape(output_of((64, 0, True)))
    assert (shape.num_decodes, shape.decode_context_tokens, shape.max_decode_context_tokens) == (0, 0, 0)


def test_the_last_single_token_of_a_prompt_is_a_decode_by_its_count():
    shape = step_shape(output_of((1, 512, True)))
    assert (shape.num_decodes, shape.prefill_chunks) == (1, ())


def test_contexts_are_cut_to_each_window():
    shape = step_shape(output_of((1, 99, True), (1, 9, True), (50, 0, True)), windows=(20, 1000))
    assert shape.window_context_tokens == (20 + 10, 100 + 10)


def test_tokens_split_into_decode_prefill_and_recompute():
    """Request 1 has computed 40 tokens before a preemption: of its 50 tokens 40 are recomputed."""
    output = output_of((1, 99, True), (50, 0, True), (64, 0, True), high_water={1: 40})
    assert token_split(output, step_shape(output)) == (1, 74, 40)


def test_a_single_recomputed_token_is_no_decode():
    output = output_of((1, 99, True), (1, 9, True), high_water={1: 40})
    assert token_split(output, step_shape(output)) == (1, 0, 1)
