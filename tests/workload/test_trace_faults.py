"""A trace that cannot be used says why, at its line, with all its faults; never with a traceback."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sim.errors import InputError
from tests.workload.helpers import build, replay, trace_faults

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
JSON_ROW = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'

CSV_FAULTS = {
    "an empty file": ("", "t.csv:1: the file is empty"),
    "blank lines only": ("\n\n", "t.csv:1: the file is empty"),
    "a header without rows": (HEADER, "t.csv: no request to replay"),
    "no header": ("0.0,10,20\n1.0,10,20\n", "t.csv:1: no known header (azure: TIMESTAMP,ContextTokens,"),
    "a header nobody knows": ("time,in,out\n0,1,2\n", "t.csv:1: no known header (azure: TIMESTAMP,"),
    "a misspelt column": (
        "arrival_s,promt_tokens,output_tokens\n0,1,2\n",
        "t.csv:1: prompt_tokens: missing column of form csv; did you mean 'promt_tokens'?",
    ),
    "a missing column": (
        "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,1\n",
        "t.csv:1: GeneratedTokens: missing column of form azure; did you mean 'ContextTokens'?",
    ),
    "a column twice": (
        "arrival_s,prompt_tokens,output_tokens,prompt_tokens\n0,1,2,3\n",
        "t.csv:1: prompt_tokens: the header has this column twice",
    ),
    "text for a number": (HEADER + "0,x,5\n", "t.csv:2: prompt_tokens: is not a number (got 'x')"),
    "an empty cell": (HEADER + "0,,5\n", "t.csv:2: prompt_tokens: is empty"),
    "a fraction of a token": (
        HEADER + "0,1.5,5\n",
        "t.csv:2: prompt_tokens: must be a whole number (got 1.5)",
    ),
    "a negative length": (HEADER + "0,-904,5\n", "t.csv:2: prompt_tokens: must be 1 to 8388608 (got -904)"),
    "a prompt of no tokens": (HEADER + "0,0,5\n", "t.csv:2: prompt_tokens: must be 1 to 8388608 (got 0)"),
    "an answer of no tokens": (HEADER + "0,5,0\n", "t.csv:2: output_tokens: must be 1 to 8388608 (got 0)"),
    "a length beyond all contexts": (
        HEADER + "0,5,99999999999999999999\n",
        "t.csv:2: output_tokens: must be 1 to 8388608 (got 99999999999999999999)",
    ),
    "NaN for a length": (HEADER + "0,5,NaN\n", "t.csv:2: output_tokens: is not a number (got 'NaN')"),
    "NaN for a time": (HEADER + "nan,5,5\n", "t.csv:2: arrival_s: is not a number (got 'nan')"),
    "infinity for a time": (HEADER + "inf,5,5\n", "t.csv:2: arrival_s: is not a number (got 'inf')"),
    "a negative time": (HEADER + "0,1,1\n-2,5,5\n", "t.csv:3: arrival_s: must not be negative (got -2)"),
    "too few fields": (HEADER + "0,5\n", "t.csv:2: 2 fields where the header has 3"),
    "too many fields": (HEADER + "0,5,6,7\n", "t.csv:2: 4 fields where the header has 3"),
    "a comma in a number": (
        HEADER + '0,"1,200",6\n',
        "t.csv:2: prompt_tokens: is not a number (got '1,200')",
    ),
    "a time that is none": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\nyesterday,1,1\n",
        "t.csv:3: TIMESTAMP: is not a time (got 'yesterday')",
    ),
    "a day that does not exist": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-02-30 18:15:46,1,1\n",
        "t.csv:2: TIMESTAMP: is not a time (got '2023-02-30 18:15:46')",
    ),
    "a time left out": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n,1,1\n",
        "t.csv:3: TIMESTAMP: is empty",
    ),
    "a priority that is none": (
        HEADER.replace("\n", ",priority\n") + "0,1,1,high\n",
        "t.csv:2: priority: is not a number (got 'high')",
    ),
    "only failed requests": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,0,472,API log\n",
        "t.csv: no request to replay",
    ),
}

JSON_FAULTS = {
    "a broken line": (JSON_ROW + "\n{\n", "t.csv:2: not a JSON object on a line of its own: "),
    "a list for an object": (JSON_ROW + "\n[1]\n", "t.csv:2: must be a JSON object"),
    "a missing field": (
        '{"timestamp": 0, "input_len": 5, "output_length": 5}\n',
        "t.csv:1: input_length: is missing; did you mean 'input_len'?",
    ),
    "text for a number": (
        JSON_ROW.replace("600", '"600"'),
        "t.csv:1: input_length: is not a number (got '600')",
    ),
    "NaN": (JSON_ROW.replace("600", "NaN"), "t.csv:1: input_length: must be a finite number (got nan)"),
    "an answer of no tokens": (
        JSON_ROW.replace(": 5", ": 0"),
        "t.csv:1: output_length: must be 1 to 8388608 (got 0)",
    ),
    "a negative time": (
        JSON_ROW.replace(": 0,", ": -3,"),
        "t.csv:1: timestamp: must not be negative (got -3)",
    ),
    "too few blocks": (
        JSON_ROW.replace("[0, 1]", "[0]"),
        "t.csv:1: hash_ids: 1 ids, but 600 tokens need 2 blocks",
    ),
    "too many blocks": (
        JSON_ROW.replace("[0, 1]", "[0, 1, 2]"),
        "t.csv:1: hash_ids: 3 ids, but 600 tokens need 2 blocks",
    ),
    "a block that is no number": (
        JSON_ROW.replace("[0, 1]", "[0, null]"),
        "t.csv:1: hash_ids: must be a list of whole numbers from 0",
    ),
}


@pytest.mark.parametrize("story", CSV_FAULTS)
def test_a_faulty_csv_names_the_line_and_the_column(story: str, tmp_path: Path) -> None:
    text, expected = CSV_FAULTS[story]
    said = trace_faults(tmp_path, text)
    assert len(said) == 1
    assert said[0].startswith(expected)


@pytest.mark.parametrize("story", JSON_FAULTS)
def test_a_faulty_json_line_names_the_line_and_the_field(story: str, tmp_path: Path) -> None:
    text, expected = JSON_FAULTS[story]
    said = trace_faults(tmp_path, text)
    assert len(said) == 1
    assert said[0].startswith(expected)


def test_all_faults_are_told_in_the_order_of_lines(tmp_path: Path) -> None:
    text = HEADER + "0,10,5\nx,0,5\n\n2,3\n-1,4,nan\n"
    assert trace_faults(tmp_path, text) == [
        "t.csv:3: arrival_s: is not a number (got 'x')",
        "t.csv:3: prompt_tokens: must be 1 to 8388608 (got 0)",
        "t.csv:5: 2 fields where the header has 3",
        "t.csv:6: arrival_s: must not be negative (got -1)",
        "t.csv:6: output_tokens: is not a number (got 'nan')",
    ]


def test_thousands_of_faults_are_counted_and_twenty_shown(tmp_path: Path) -> None:
    said = trace_faults(tmp_path, HEADER + "0,0,5\n" * 5000)
    assert len(said) == 21
    assert said[0] == "t.csv:2: prompt_tokens: must be 1 to 8388608 (got 0)"
    assert said[-1] == "t.csv: and 4,980 more"


def test_a_missing_file_is_told_at_the_scenario_with_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "azure_conv.csv").touch()
    with pytest.raises(InputError) as caught:
        build({"kind": "trace", "path": str(tmp_path / "azure_cnv.csv")})
    (fault,) = caught.value.faults
    assert fault.path == "workload.path"
    assert fault.message == f"no such file: {tmp_path}/azure_cnv.csv; did you mean 'azure_conv.csv'?"


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workload\.path: is a folder"):
        build({"kind": "trace", "path": str(tmp_path)})


BYTES = {
    "not text": (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", "t.csv: not UTF-8 text"),
    "Latin-1": (HEADER.encode() + "0,1,1é\n".encode("latin-1"), "t.csv: not UTF-8 text"),
    "zeros": (b"\x00" * 64, "t.csv:1: no known header"),
    "half a gzip file": (gzip.compress(HEADER.encode() * 100)[:30], "t.csv: broken gzip file"),
    "no gzip file inside": (b"\x1f\x8b\x08nonsense", "t.csv: broken gzip file"),
    "a gzip file with a wrong sum": (gzip.compress(b"x")[:-8] + b"\0" * 8, "t.csv: broken gzip file"),
}


@pytest.mark.parametrize("story", BYTES)
def test_bytes_that_are_no_text_are_refused(story: str, tmp_path: Path) -> None:
    data, expected = BYTES[story]
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        build({"kind": "trace", "path": str(path)})
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(expected)


WINDOWS = {
    "a window past the end": ({"start_s": 100}, "t.csv: no request to replay; its times run from 0 to 9 s"),
    "a window between requests": (
        {"start_s": 2, "end_s": 8},
        "t.csv: no request to replay; its times run from",
    ),
    "a window that ends before it starts": (
        {"start_s": 5, "end_s": 4},
        "workload.end_s: must be after start_s 5",
    ),
    "a rate for requests of one moment": (
        {"rate_per_s": 3, "num_requests": 2},
        "workload.rate_per_s: all requests of the trace arrive at one time",
    ),
    "two ways to scale time": (
        {"time_scale": 2, "rate_scale": 2},
        "workload.rate_scale: not together with time_scale; give one of time_scale, rate_scale, rate_per_s",
    ),
}


@pytest.mark.parametrize("story", WINDOWS)
def test_options_that_leave_nothing_to_replay_are_refused(story: str, tmp_path: Path) -> None:
    options, expected = WINDOWS[story]
    said = trace_faults(tmp_path, HEADER + "0,1,1\n0,1,1\n9,1,1\n", **options)
    assert len(said) == 1
    assert said[0].startswith(expected)


def test_faults_past_what_is_read_do_not_matter(tmp_path: Path) -> None:
    """A trace of millions of rows is read no further than it is wanted, in pieces of 65,536 rows."""
    text = HEADER + "".join(f"{second},1,1\n" for second in range(140_000)) + "x,y,z\n"
    assert len(replay(tmp_path, text, num_requests=10).table) == 10
    assert len(replay(tmp_path, text, end_s=5).table) == 5
    assert trace_faults(tmp_path, text)[0].startswith("t.csv:140002: arrival_s")


def test_a_quote_that_never_closes_swallows_no_rows(tmp_path: Path) -> None:
    text = 'arrival_s,prompt_tokens,output_tokens,class\n0,10,5,"a\n1,10,5,b\n'
    assert trace_faults(tmp_path, text) == ["t.csv:3: not CSV: unexpected end of data"]
    assert trace_faults(tmp_path, '"arrival_s,prompt\n') == ["t.csv:1: not CSV: unexpected end of data"]


def test_a_json_key_given_twice_and_a_line_nested_without_end(tmp_path: Path) -> None:
    twice = '{"timestamp": 0, "timestamp": 5, "input_length": 600, "output_length": 5}'
    first, second = trace_faults(tmp_path, f"{twice}\n" + '{"a":' * 5000 + "\n")
    assert first == "t.csv:1: timestamp: given twice"
    assert second.startswith("t.csv:2: not a JSON object on a line of its own")


@pytest.mark.parametrize("time", ["0001-01-01 00:00:00", "9999-12-31 23:59:59"])
def test_a_date_beyond_the_clock_does_not_wrap_around(time: str, tmp_path: Path) -> None:
    rows = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n{time},1,1\n"
    assert trace_faults(tmp_path, rows) == [f"t.csv:3: TIMESTAMP: is not a time (got '{time}')"]


def test_arrivals_after_the_end_of_the_clock(tmp_path: Path) -> None:
    (line,) = trace_faults(tmp_path, HEADER + "0,1,1\n1e12,1,1\n1e300,1,1\n")
    assert line.endswith("t.csv:3 arrives at 1e+12 s; the clock goes to 1e+09 s")
    with pytest.raises(InputError, match="the clock goes to"):
        build({"kind": "poisson", "rate_per_s": 1e-300, "num_requests": 5})


def test_a_path_that_no_file_can_have() -> None:
    with pytest.raises(InputError, match="no file name has a null character"):
        build({"kind": "trace", "path": "a\0b"})
