"""What a report says, before it is Markdown or HTML: headings, paragraphs, tables and pictures in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading; level 1 is the page's title."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text, in which `**…**` is strong and a pair of backticks is code."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list; each item as in `Paragraph`."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; columns marked in `right` are numbers, set flush right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as the bytes of a PNG, or why it could not be drawn; `width_in` is its natural width."""

    name: str
    width_in: float
    caption: str
    png: bytes = b""
    failure: str = ""


Block = Heading | Paragraph | Bullets | Table | Picture


@dataclass(frozen=True, slots=True)
class Plate:
    """A figure to be drawn: file name, size in inches, and what draws it and says what it shows."""

    name: str
    size_in: tuple[float, float]
    draw: Callable[[Figure], str]


@dataclass(frozen=True, slots=True)
class Document:
    """A page: its title and its blocks."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def key_values(rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values without a header."""
    return Table(("", ""), tuple(rows), (False, False))


def draw_plate(plate: Plate, about: str) -> Picture:
    """Draw one figure; whatever goes wrong is told in the picture, because the others are still wanted."""
    from io import BytesIO

    from sim.figures.style import blank_figure, save_png

    try:
        figure, png = blank_figure(*plate.size_in), BytesIO()
        shows = plate.draw(figure)
        save_png(figure, png)
    except Exception as error:
        return Picture(plate.name, plate.size_in[0], "", failure=f"{type(error).__name__}: {error}")
    return Picture(plate.name, plate.size_in[0], f"{shows} {about}".strip(), png.getvalue())
