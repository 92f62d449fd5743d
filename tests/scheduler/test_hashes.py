"""Block keys are equal exactly when the texts up to the end of the block are."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from scheduler import Request
from scheduler.kv_cache.hashes import BlockHasher

ranges = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=6)


def spelled_out(prompt: list[tuple[int, int]]) -> list[int]:
    return [start + i for start, count in prompt for i in range(count)]


@settings(max_examples=150)
@given(prompts=st.lists(ranges, min_size=2, max_size=8), size=st.integers(1, 5), data=st.data())
def test_equal_keys_mean_equal_texts(
    prompts: list[list[tuple[int, int]]], size: int, data: st.DataObject
) -> None:
    hasher = BlockHasher(size)
    texts_of_key: dict[int, set[tuple[object, ...]]] = {}
    keys_of_text: dict[tuple[object, ...], set[int]] = {}
    for prompt in prompts:
        lora = data.draw(st.sampled_from([None, None, "a"]))
        salt = data.draw(st.sampled_from([None, None, "s"]))
        tokens = spelled_out(prompt)
        cut = data.draw(st.integers(1, len(tokens)))  # the rest comes token by token, as outputs do
        head = [(token, 1) for token in tokens[:cut]]
        request = Request(0, head, 5, lora_name=lora, cache_salt=salt)
        hasher.extend(request)
        for token in tokens[cut:]:
            request.tokens.append(request.num_tokens, token)
            request.num_tokens += 1
            hasher.extend(request)
        assert len(request.block_keys) == len(tokens) // size
        for i, key in enumerate(request.block_keys):
            text = (lora, salt, *tokens[: (i + 1) * size])
            texts_of_key.setdefault(key, set()).add(text)
            keys_of_text.setdefault(text, set()).add(key)
    assert all(len(texts) == 1 for texts in texts_of_key.values())
    assert all(len(keys) == 1 for keys in keys_of_text.values())


def test_a_prompt_that_shares_nothing_needs_no_numbers() -> None:
    hasher = BlockHasher(16)
    requests = [Request(i, ((1_000_000 * i, 50_000),), 5) for i in range(3)]
    for request in requests:
        hasher.extend(request)
    assert len({key for request in requests for key in request.block_keys}) == 3 * 3125
    assert hasher.num_numbered == 0
