"""Each published form of trace is told by its first line and read as it is meant."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.workload.helpers import build, replay, tokens_of, trace_faults

AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46.6805900,879,55
"""


def test_azure_2023_has_seven_digits_and_no_zone(tmp_path: Path) -> None:
    table = replay(tmp_path, AZURE_2023).table
    assert table.arrival_s == pytest.approx([0, 4.314579, 60], abs=1e-6)
    assert table.prompt_tokens.tolist() == [374, 396, 879]
    assert table.output_tokens.tolist() == [44, 109, 55]


def test_azure_2024_has_a_zone_and_not_always_a_fraction(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
        "2024-05-10 00:00:01.500000+00:00,76,15\n"
    )
    assert replay(tmp_path, text).table.arrival_s == pytest.approx([0, 0.99007, 1.49007], abs=1e-6)


def test_azure_times_in_another_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00+00:00,1,1\n"
        "2024-05-10 02:00:09.25+02:00,1,1\n"
        "2024-05-10 00:00:10Z,1,1\n"
    )
    assert replay(tmp_path, text).table.arrival_s == pytest.approx([0, 9.25, 10], abs=1e-6)


def test_burstgpt_counts_from_its_first_row_and_leaves_failures_out(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "60,ChatGPT,0,12,12,API log\n"
        "118,GPT-4,417,276,693,Conversation log\n"
    )
    workload = replay(tmp_path, text)
    table = workload.table
    assert table.arrival_s.tolist() == [0, 113]
    assert table.prompt_tokens.tolist() == [472, 417]
    assert [table.class_names[index] for index in table.class_index] == ["ChatGPT", "GPT-4"]
    assert table.session.tolist() == [-1, -1]
    assert workload.notes == ["2 failed requests (no prompt or no response tokens) left out"]


def test_burstgpt_3_has_its_columns_elsewhere_and_sessions(tmp_path: Path) -> None:
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0.5,s7,3.1,GPT-4,10,20,30,Conversation log\n"
        "1.5,,2.0,ChatGPT,11,21,32,API log\n"
        "2.5,s7,1.0,GPT-4,12,22,34,Conversation log\n"
    )
    table = replay(tmp_path, text).table
    assert table.prompt_tokens.tolist() == [10, 11, 12]
    assert table.output_tokens.tolist() == [20, 21, 22]
    assert table.session.tolist() == [0, -1, 0]


def test_vidur_columns(tmp_path: Path) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396,109\n"
    table = replay(tmp_path, text).table
    assert table.arrival_s.tolist() == [0, 4.314579]
    assert table.output_tokens.tolist() == [44, 109]


def test_plain_csv_may_have_class_session_and_priority(tmp_path: Path) -> None:
    text = (
        "arrival_s,prompt_tokens,output_tokens,class,session,priority,colour\n"
        "0,10,1,chat,a,2,red\n"
        "1,20,2,,b,,red\n"
        "2,30,3,code,a,-1,red\n"
    )
    workload = replay(tmp_path, text)
    table = workload.table
    assert [table.class_names[index] for index in table.class_index] == ["chat", "default", "code"]
    assert table.session.tolist() == [0, 1, 0]
    assert table.priority.tolist() == [2, 0, -1]
    assert workload.notes == ["columns ignored: colour"]


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    table = replay(tmp_path, "output_tokens,arrival_s,prompt_tokens\n1,0,10\n2,1,20\n").table
    assert table.prompt_tokens.tolist() == [10, 20]


MOONCAKE = """\
{"timestamp": 0, "input_length": 1200, "output_length": 50, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1500, "output_length": 9, "hash_ids": [0, 1, 9]}
{"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [0]}
"""


def test_mooncake_hash_ids_are_blocks_of_512_tokens_and_the_last_is_partial(tmp_path: Path) -> None:
    table = replay(tmp_path, MOONCAKE, name="t.jsonl").table
    assert table.arrival_s.tolist() == [0, 3, 3]
    first, second, third = (tokens_of(table, index) for index in range(3))
    assert [len(first), len(second), len(third)] == [1200, 1500, 512]
    assert first[:1024] == second[:1024]
    assert first[:512] == third
    assert not set(first[1024:]) & set(second[1024:])
    assert len(table.prompt_ranges(0)) == 1
    assert len(table.prompt_ranges(1)) == 2


def test_mooncake_answers_belong_to_their_request_alone(tmp_path: Path) -> None:
    """Block 3 might be the answer of the first request, but the trace does not say so."""
    text = (
        MOONCAKE + '{"timestamp": 9000, "input_length": 2048, "output_length": 5, "hash_ids": [0, 1, 2, 3]}\n'
    )
    table = replay(tmp_path, text, name="t.jsonl").table
    later = set(tokens_of(table, 3))
    assert not later & set(range(table.output_start(0), table.output_start(0) + 50))


def test_mooncake_without_hash_ids_has_distinct_prompts(tmp_path: Path) -> None:
    text = '{"timestamp": 0, "input_length": 9, "output_length": 5}\n' * 2
    table = replay(tmp_path, text, name="t.jsonl").table
    assert not set(tokens_of(table, 0)) & set(tokens_of(table, 1))


def test_other_block_sizes_and_seconds_in_place_of_milliseconds(tmp_path: Path) -> None:
    text = '{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [4, 5]}\n'
    text += '{"timestamp": 2.5, "input_length": 32, "output_length": 5, "hash_ids": [4, 7]}\n'
    table = replay(tmp_path, text, name="t.jsonl", hash_block_tokens=16, time_scale=1000).table
    assert table.arrival_s.tolist() == [0, 2.5]
    assert tokens_of(table, 0)[:16] == tokens_of(table, 1)[:16]


@pytest.mark.parametrize(
    "text", [AZURE_2023, AZURE_2023.replace("\n", "\r\n"), "\ufeff" + AZURE_2023, "\n" + AZURE_2023 + "\n\n"]
)
def test_line_ends_marks_and_blank_lines_do_not_matter(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    assert len(build({"kind": "trace", "path": str(path)}).table) == 3


def test_a_gzipped_trace_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.dat"
    path.write_bytes(gzip.compress(AZURE_2023.encode()))
    assert len(build({"kind": "trace", "path": str(path)}).table) == 3


def test_a_form_may_be_given(tmp_path: Path) -> None:
    assert len(replay(tmp_path, AZURE_2023, format="azure").table) == 3
    assert trace_faults(tmp_path, AZURE_2023, format="burstgpt") == [
        "t.csv:1: Timestamp: missing column of form burstgpt; did you mean 'TIMESTAMP'?",
        "t.csv:1: Request tokens: missing column of form burstgpt; did you mean 'GeneratedTokens'?",
        "t.csv:1: Response tokens: missing column of form burstgpt; did you mean 'ContextTokens'?",
    ]


def test_shared_prefixes_can_be_put_on_a_trace_of_lengths_but_not_on_one_with_blocks(tmp_path: Path) -> None:
    prefixes = {"prefix_tokens": 7}
    table = replay(tmp_path, AZURE_2023, prefixes=prefixes).table
    assert table.prompt_tokens.tolist() == [381, 403, 886]
    assert tokens_of(table, 0)[:7] == tokens_of(table, 1)[:7]
    assert trace_faults(tmp_path, MOONCAKE, name="t.jsonl", prefixes=prefixes) == [
        "workload.prefixes: the trace says itself which blocks its prompts share"
    ]
