"""Rows of a table: worked out many at a time, each as if alone."""

from __future__ import annotations

import numpy as np

from cost_models.forward import RowTable
from cost_models.operators.roofline import Floats


class Seconds:
    """Terms of 1, 2, 3 and 4 times the count; remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, counts: Floats) -> Floats:
        self.asked.append([int(count) for count in counts])
        return np.outer(np.array([1.0, 2.0, 3.0, 4.0]), counts)


def test_a_row_has_the_terms_of_its_count_and_their_sum():
    row = RowTable(Seconds()).row(7)
    terms = (row.compute_s, row.weights_s, row.comm_s, row.latency_s)
    assert (terms, row.total_s) == ((7.0, 14.0, 21.0, 28.0), 70.0)


def test_a_block_is_worked_out_once():
    seconds = Seconds()
    table = RowTable(seconds)
    assert [table.row(count).compute_s for count in (513, 1024, 600, 512)] == [513.0, 1024.0, 600.0, 512.0]
    assert [(asked[0], asked[-1]) for asked in seconds.asked] == [(513, 1024), (1, 512)]


def test_nothing_takes_no_time():
    assert RowTable(Seconds()).row(0).total_s == 0.0


def test_counts_up_to_the_largest_size_are_padded():
    seconds = Seconds()
    table = RowTable(seconds, (1, 2, 4, 8))
    assert [table.row(count).compute_s for count in (0, 1, 3, 8, 9)] == [1.0, 1.0, 4.0, 8.0, 9.0]
    assert seconds.asked[0] == [1, 2, 4, 8]
    assert table.row(5).compute_s == 8.0
