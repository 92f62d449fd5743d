"""How every figure of the project looks: colours, sizes, spines, grid, and how a PNG is written.

Colour says which policy or configuration, line style says which metric, simulated curves are dashed where a
measured one (solid) lies beside them. The palette is Okabe and Ito's, which colour-blind readers tell apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import blended_transform_factory

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, YELLOW = "#E69F00", "#56B4E9", "#000000", "#F0E442"
OKABE_ITO: tuple[str, ...] = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, YELLOW)
"""Okabe and Ito's colours in the order in which configurations take them."""

DECODE, PREFILL, RECOMPUTE = BLUE, VERMILLION, "#F2B48C"
QUEUED, STALLED = "#C8C8C8", PURPLE
MUTED = "#666666"
"""Grey of limits, targets and notes: whatever is not data."""

WIDTH_IN, HEIGHT_IN = 5.0, 3.0
COLUMN_IN = 85.0 / 25.4
"""Width of one column of a printed page; every figure is legible at it, drawn so and not shrunk."""
DPI = 150

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=OKABE_ITO),
    "axes.formatter.useoffset": False,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.0,
    "hatch.linewidth": 0.6,
    "figure.figsize": (WIDTH_IN, HEIGHT_IN),
    "figure.dpi": 100,
    "savefig.dpi": DPI,
    "path.simplify": True,
}

TIGHT: dict[str, Any] = {
    "columnspacing": 1.1,
    "handlelength": 1.2,
    "handletextpad": 0.5,
    "borderaxespad": 0.2,
}

P = ParamSpec("P")
T = TypeVar("T")


def styled(plot: Callable[P, T]) -> Callable[P, T]:
    """Run a figure function under the house style, whatever the caller's rcParams are."""

    @functools.wraps(plot)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with mpl.rc_context(RC):
            return plot(*args, **kwargs)

    return run


def new_figure(width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN) -> Figure:
    """A pyplot figure (so that notebooks show it) of the given size, laid out to fit its labels."""
    import matplotlib.pyplot as plt

    with mpl.rc_context(RC):
        return plt.figure(figsize=(width_in, height_in), layout="constrained")


def blank_figure(width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN) -> Figure:
    """A figure outside pyplot, for writing to a file: it needs no display and no closing."""
    with mpl.rc_context(RC):
        return Figure(figsize=(width_in, height_in), layout="constrained")


def axes_for(where: Axes | Figure | None) -> Axes:
    """The Axes to draw into: the one given, a new one filling the figure given, or one in a new figure."""
    if isinstance(where, Axes):
        return tidy(where)
    return tidy((where or new_figure()).subplots())


def panels_for(where: Figure | None, rows: int, row_height_in: float = 1.1) -> list[Axes]:
    """`rows` Axes one above the other, sharing both axes, in `where` or in a new figure of fitting height."""
    figure = where or new_figure(height_in=max(HEIGHT_IN, row_height_in * rows + 0.5))
    column = figure.subplots(rows, 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    return [tidy(ax) for ax in column]


def tidy(ax: Axes) -> Axes:
    """Give an Axes the spines and the grid of the house, also if it was made under other rcParams."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, color=str(RC["grid.color"]), linewidth=0.6)
    ax.set_axisbelow(True)
    return ax


def legend_above(ax: Axes, columns: int = 6) -> None:
    """A legend above the Axes, where no data lie; nothing if no artist has a label.

    It has at most `columns` columns, and fewer where they would not fit the Axes with its labels. Of a lone
    Axes in its figure it may begin at the figure's left edge.
    """
    handles, labels = ax.get_legend_handles_labels()
    if not handles:
        return
    whole = figure_of(ax).get_figure(root=True)
    abreast = len({round(other.get_position().x0, 2) for other in whole.axes})
    label = ax.yaxis.get_tightbbox(_renderer(whole))
    beside = 0.0 if label is None else max(0.0, ax.bbox.x0 - label.x0)
    edge = blended_transform_factory(whole.transFigure, ax.transAxes)
    for count in range(columns, 0, -1):
        legend = ax.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=count, **TIGHT
        )
        width = legend.get_window_extent(_renderer(whole)).width
        if count == 1 or width <= 0.97 * (whole.bbox.width / abreast - beside):
            return
        if abreast == 1 and width <= 0.98 * whole.bbox.width:
            legend.set_bbox_to_anchor((0.01, 1.0), transform=edge)
            return


def figure_legend(figure: Figure | SubFigure, legend: Mapping[str, Any], columns: int = 6) -> None:
    """A legend above all Axes of a figure, of at most `columns` columns and as many as fit."""
    whole = figure.get_figure(root=True)
    for count in range(columns, 0, -1):
        made = figure.legend(
            list(legend.values()), list(legend), loc="outside upper left", ncols=count, **TIGHT
        )
        if count == 1 or made.get_window_extent(_renderer(whole)).width <= 0.97 * whole.bbox.width:
            return
        made.remove()


def _renderer(figure: Figure) -> Any:
    """What measures texts before anything is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    return FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]


def plain_log(axis: Axis) -> None:
    """Numbers in full on a log axis, at 1, 2 and 5 of each decade where there are few decades."""
    low, high = sorted(axis.get_view_interval())
    subs = (1.0, 2.0, 5.0) if high < 300.0 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def limit_line(ax: Axes, at: float, text: str) -> None:
    """A dashed horizontal line at a limit, named above its right end."""
    ax.axhline(at, color=MUTED, ls="--", lw=1.0)
    ax.annotate(
        text,
        xy=(0.995, at),
        xycoords=ax.get_yaxis_transform(),
        xytext=(0, 1.5),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=MUTED,
        fontsize=7.5,
    )


def figure_of(ax: Axes) -> Figure | SubFigure:
    """The figure that holds an Axes."""
    figure = ax.figure
    if figure is None:
        raise ValueError("the Axes belongs to no figure")
    return figure


def columns_of(ax: Axes) -> int:
    """Pixel columns of an Axes when saved at the house resolution: how finely a curve can be seen."""
    box = ax.get_position()
    return max(200, int(figure_of(ax).get_figure(root=True).get_figwidth() * box.width * DPI))


def colours(count: int) -> Sequence[str]:
    """The first `count` colours of the cycle, beginning again after the eighth."""
    return [OKABE_ITO[i % len(OKABE_ITO)] for i in range(count)]


def save_png(figure: Figure, path: Path | IO[bytes], dpi: int = DPI) -> None:
    """Write a figure as PNG with the same bytes on every run: no software name, no date."""
    with mpl.rc_context(RC):
        figure.savefig(path, dpi=dpi, format="png", metadata={"Software": None})
