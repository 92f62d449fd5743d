"""What a report says, before it is Markdown or HTML: headings, paragraphs, tables and pictures in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module


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
class Preformatted:
    """Text that is shown as it stands, such as a command or columns that the writer has set."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; columns marked in `right` are numbers, set flush right."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure as the bytes of a PNG, or why it could not be drawn; `width_in` is its width in inches."""

    name: str
    width_in: float
    caption: str
    png: bytes = b""
    failure: str = ""


Block = Heading | Paragraph | Bullets | Preformatted | Table | Picture


@dataclass(frozen=True, slots=True)
class Plate:
    """A figure to be drawn: its file name, a sentence on what it shows, what draws it and its size in inches.

    `draw` takes the Figure to fill, or an Axes where one is enough, or None to make a figure of its own; an
    answer's returns its Axes. Without a size the figure is as large as most are.
    """

    name: str
    shows: str
    draw: Callable[..., object]
    size_in: tuple[float, float] | tuple[()] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A page: its title and its blocks."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def table_of_columns(columns: Iterable[tuple[str, Sequence[str]]], left: Collection[str] = ()) -> Table:
    """A table from columns, each a head and its cells; all are set right but those named in `left`."""
    names, cells = zip(*columns, strict=True)
    return Table(names, tuple(zip(*cells, strict=True)), tuple(name not in left for name in names))


def key_values(rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and values without a header."""
    return Table(("", ""), tuple(rows), (False, False))


def drawing(module: str, *tables: object, function: str = "", **options: object) -> Callable[..., object]:
    """What draws these tables with `plot_<module>` of a module of `sim.figures`, or with another `function`
    of it. The module, and Matplotlib with it, are loaded when it draws.
    """

    def draw(ax: object = None) -> object:
        loaded = import_module(f"..figures.{module}", __package__)
        plot: Callable[..., object] = getattr(loaded, function or f"plot_{module}")
        return plot(*tables, ax, **options)

    return draw


def draw_plate(plate: Plate, about: str = "") -> Picture:
    """Draw one figure; whatever goes wrong is told in the picture, because the others are still wanted.

    `about` ends the caption.
    """
    from io import BytesIO

    from sim.figures.style import blank_figure, save_png

    try:
        figure, png = blank_figure(*plate.size_in), BytesIO()
        plate.draw(figure)
        save_png(figure, png)
    except Exception as error:
        return Picture(plate.name, 0.0, "", failure=f"{type(error).__name__}: {error}")
    return Picture(plate.name, figure.get_figwidth(), f"{plate.shows} {about}".strip(), png.getvalue())
