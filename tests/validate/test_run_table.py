"""Reading a table of measured runs: what a cell means, and how its slips are told."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sim.errors import InputError
from sim.evidence.validate.requests_file import parse_filter
from sim.evidence.validate.run_table import read_runs
from tests.validate.helpers import PLAIN, one_run, write_runs


def test_blank_means_unknown_and_columns_may_be_missing(tmp_path: Path) -> None:
    run = one_run(tmp_path)
    assert (run.gpu, run.tp, run.num_requests) == ("h100-sxm", 1, 4)
    assert run.max_num_seqs is None
    assert run.async_scheduling is None
    assert run.measured == {}


def test_a_row_without_an_id_or_a_source_gets_its_line_and_the_file(tmp_path: Path) -> None:
    row = {name: cell for name, cell in PLAIN.items() if name != "run_id"}
    first, second = read_runs(write_runs(tmp_path, row, row)).runs
    assert [first.run_id, second.run_id] == ["row2", "row3"]
    assert first.source == "runs"


def test_cells_become_values_of_their_kind(tmp_path: Path) -> None:
    run = one_run(
        tmp_path,
        max_num_seqs="256.0",
        async_scheduling="1",
        prefix_caching="0",
        rate_per_s="2.5",
        ttft_mean_ms="61.5",
        assumed="gpu max_num_seqs",
        req_tput_rps="3",
    )
    assert run.max_num_seqs == 256
    assert run.async_scheduling is True
    assert run.prefix_caching is False
    assert run.rate_per_s == 2.5
    assert run.measured == {"ttft_mean_ms": 61.5, "req_tput_rps": 3.0}
    assert run.assumed == ("gpu", "max_num_seqs")


def test_a_note_that_begins_with_check_takes_numbers_out_of_the_score(tmp_path: Path) -> None:
    run = one_run(
        tmp_path,
        note="check: ttft tput; the cache was warm",
        ttft_mean_ms="10",
        tpot_mean_ms="5",
        out_tput_tok_s="100",
    )
    assert not run.scores("ttft_mean_ms")
    assert not run.scores("out_tput_tok_s")
    assert run.scores("tpot_mean_ms")
    assert not run.scores("e2e_mean_ms"), "not measured at all"


def test_check_all_takes_everything_out(tmp_path: Path) -> None:
    run = one_run(tmp_path, note="check: all; seconds, not ms", tpot_mean_ms="5")
    assert not run.scores("tpot_mean_ms")


def test_a_note_that_only_mentions_a_check_takes_nothing_out(tmp_path: Path) -> None:
    assert one_run(tmp_path, note="lengths to check: ttft", tpot_mean_ms="5").scores("tpot_mean_ms")


def test_all_slips_of_all_rows_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    path = write_runs(
        tmp_path,
        PLAIN | {"run_id": "a", "max_num_seqs": "many", "prompt": "fixed:-1"},
        PLAIN | {"run_id": "b"},
        PLAIN | {"run_id": "b", "load": "open", "ignore_eos": "yes", "gpu_memory_utilization": "90"},
        PLAIN | {"run_id": "c", "note": "check: speed; why not", "rate_per_s": "0"},
    )
    with pytest.raises(InputError) as caught:
        read_runs(path)
    told = [str(fault).removeprefix(f"{path}:") for fault in caught.value.faults]
    assert [line.split(": ")[0:2] for line in told] == [
        ["2", "prompt"],
        ["2", "max_num_seqs"],
        ["4", "load"],
        ["4", "ignore_eos"],
        ["4", "gpu_memory_utilization"],
        ["4", "run_id"],
        ["5", "rate_per_s"],
        ["5", "note"],
    ]


def test_a_row_of_too_few_cells_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("run_id,gpu,model\na,h100-sxm\n")
    with pytest.raises(InputError, match=r"runs\.csv:2: 2 cells under 3 columns"):
        read_runs(path)


def test_a_line_number_counts_lines_of_the_file_not_rows(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text('run_id,note,tp\na,"two\nlines",1\n\nb,,none\n')
    with pytest.raises(InputError, match=r"runs\.csv:5: tp"):
        read_runs(path)


def test_a_file_that_is_no_run_table_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("time,price\n1,2\n")
    with pytest.raises(InputError, match="no known column"):
        read_runs(path)
    with pytest.raises(InputError, match="No such file"):
        read_runs(tmp_path / "absent.csv")


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\x7fELF\x00\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8 text"):
        read_runs(path)


def test_columns_that_nothing_reads_are_named(tmp_path: Path) -> None:
    table = read_runs(write_runs(tmp_path, PLAIN | {"max_num_seq": "4"}))
    assert table.unread_columns == ("max_num_seq",)


def test_filters_are_values_or_ranges() -> None:
    assert parse_filter("exp=20260217-155451-llama;idx=0..2999") == (
        ("exp", "20260217-155451-llama"),
        ("idx", (0, 2999)),
    )
    with pytest.raises(ValueError, match="column=value"):
        parse_filter("idx")


def test_the_measured_runs_all_read(shared_dir: Path) -> None:
    """Every row of the published table is read as a run of its own, and none of its columns is unknown."""
    place = shared_dir / "validation" / "runs.csv"
    with place.open(encoding="utf-8", newline="") as file:
        names = [row["run_id"] for row in csv.DictReader(file)]
    table = read_runs(place)
    assert len(names) > 300
    assert [run.run_id for run in table.runs] == names
    assert table.unread_columns == ()
    assert len(set(names)) == len(names)
