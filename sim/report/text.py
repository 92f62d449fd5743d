"""A document as plain text for a terminal: tables aligned, paragraphs no wider than the page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from sim.report.document import Block, Bullets, Document, Heading, Paragraph, Picture, Preformatted, Table

WIDTH = 100
"""Columns of the page. Tables and what is preformatted may be wider, and long words are never broken."""


def render(document: Document) -> str:
    """The title and the blocks, parted by empty lines; without a final newline."""
    return "\n\n".join([_paragraph(document.title), *blocks(document.blocks)])


def blocks(shown: Sequence[Block]) -> list[str]:
    """Each block as text, without empty lines around it."""
    return [_block(block) for block in shown]


def _block(block: Block) -> str:
    match block:
        case Heading(_, text):
            return f"{_plain(text)}\n{'-' * len(_plain(text))}"
        case Paragraph(text):
            return _paragraph(text)
        case Bullets(items):
            return "\n".join(_paragraph(item, first="- ", rest="  ") for item in items)
        case Preformatted(text):
            return text
        case Table():
            return _table(block)
        case Picture(name, _, _, _, failure):
            return f"{name} could not be drawn: {failure}" if failure else f"figure: figures/{name}.png"


def _table(table: Table) -> str:
    rows = [[_plain(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.rjust if right else str.ljust for right in table.right]
    lines = [
        "  ".join(side(cell, width) for cell, width, side in zip(row, widths, sides, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines if any(table.header) else lines[1:])


def _paragraph(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        _plain(text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(text: str) -> str:
    """The text without the marks for strong and code."""
    return re.sub(r"`(.+?)`", r"\1", re.sub(r"\*\*(.+?)\*\*", r"\1", text))
