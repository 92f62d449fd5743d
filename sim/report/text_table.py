"""Columns of text for screens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence


def columns_of_text(
    columns: Iterable[tuple[str, Sequence[str]]], left: Collection[str] = ()
) -> Iterator[str]:
    """Lines of a table, each column with its head; columns are set right but for those named in `left`."""
    names, cells = zip(*columns, strict=True)
    widths = [max(len(name), *map(len, column), 0) for name, column in zip(names, cells, strict=True)]
    sides = [str.ljust if name in left else str.rjust for name in names]
    for row in (names, *zip(*cells, strict=True)):
        placed = (side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True))
        yield "  ".join(placed).rstrip()
