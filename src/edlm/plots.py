"""Plots of one style: colours that colour-blind readers can tell apart, names beside the lines, files written whole.

Figures are objects of their own; nothing here touches matplotlib's global state or needs a display.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edlm.durable import write_whole
from edlm.extras import require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too light for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "p", "h")
DASHES = ("-", "--", ":")  # once the colours are used up
GREY, DARK = "#8a8a8a", "#333333"
STYLE = {
    "font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY, "axes.labelcolor": DARK,
    "xtick.color": DARK, "ytick.color": DARK, "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.7,
    "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 6, "savefig.dpi": 160,
    "savefig.facecolor": "white", "svg.hashsalt": "edlm",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A measured pair with its standard errors; NaN where unknown."""

    x: float
    y: float
    x_error: float = float("nan")
    y_error: float = float("nan")
    label: str = ""


@dataclass(frozen=True)
class Line:
    """The points of one method, in order."""

    name: str
    points: Sequence[Point]


@contextmanager
def figure(columns: int = 1, *, width: float = 7.2, height: float = 4.8) -> "Iterator[tuple[Figure, list[Axes]]]":
    """An empty figure of `columns` panels in the house style, which holds inside the block."""
    require_extra("eval", "matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        made = Figure(figsize=(width * columns, height), layout="constrained")
        axes = [made.add_subplot(1, columns, column + 1) for column in range(columns)]
        yield made, axes


def save(made: "Figure", path: Path) -> None:
    """Write a PNG, whole or not at all; the same figure gives the same bytes."""
    buffer = BytesIO()
    made.savefig(buffer, format="png", metadata={"Software": None})
    write_whole(path, buffer.getvalue())


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of line number `index`."""
    turn, place = divmod(index, len(COLOURS))
    return {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": DASHES[turn % len(DASHES)]}


def draw_lines(ax: "Axes", lines: Sequence[Line]) -> None:
    """Lines with markers and error bars, and each point's label beside it."""
    for index, line in enumerate(lines):
        style = look(index)
        x, y = [p.x for p in line.points], [p.y for p in line.points]
        x_errors, y_errors = [finite(p.x_error) for p in line.points], [finite(p.y_error) for p in line.points]
        ax.errorbar(
            x, y, xerr=x_errors, yerr=y_errors, **style, markeredgecolor="white", markeredgewidth=0.8,
            elinewidth=0.8, ecolor=style["color"] + "70",
        )  # fmt: skip
        for point in line.points:
            # Lines tend to fall to the left, so labels stand across that, neighbouring lines' on opposite sides.
            offset, side = ((6, -10), "left") if index % 2 == 0 else ((-6, 5), "right")
            note(ax, point.label, point.x, point.y, style["color"], offset=offset, size=8, ha=side)


def name_lines(ax: "Axes", lines: Sequence[Line]) -> None:
    """The names of the lines in their colours, right of the panel, each at the height of its line's last point.

    A name is moved down as far as needed to stay clear of the one above it.
    """
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]  # heights are known only after layout
    to_panel = ax.transData + ax.transAxes.inverted()
    ends = [(line.points[-1].x, line.points[-1].y) for line in lines]
    heights = [min(1.0, max(0.0, float(to_panel.transform(end)[1]))) for end in ends]  # some may leave the panel
    above, gap = 1.06, 0.06
    for index in sorted(range(len(lines)), key=lambda index: -heights[index]):
        above = min(heights[index], above - gap)
        colour = look(index)["color"]
        ax.annotate(
            lines[index].name, (ends[index][0], heights[index]), (1.03, above), xycoords=("data", "axes fraction"),
            textcoords="axes fraction", color=colour, va="center", fontsize=9, annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "alpha": 0.3, "linewidth": 0.7, "shrinkB": 6, "relpos": (0, 0.5)
            },
        )  # fmt: skip


def note(
    ax: "Axes", text: str, x: float, y: float, colour: str = DARK, *, offset: tuple[float, float] = (6, 5),
    size: float = 9, **more: Any,
) -> None:  # fmt: skip
    """A few words beside a point of the data, readable on top of lines."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2, foreground="white")]
    ax.annotate(
        text, (x, y), offset, textcoords="offset points", color=colour, fontsize=size, path_effects=halo, **more
    )


def finite(value: float) -> float:
    """Zero for an unknown error, which matplotlib cannot draw."""
    return value if value == value else 0.0


def frontier(
    panels: Mapping[str, Sequence[Line]], path: Path, *, reference: Mapping[str, Point] | None = None,
    unit: str = "token",
) -> None:  # fmt: skip
    """Generative perplexity against entropy: one panel per oracle, one line per method, points labelled by steps.

    Good is right and down. A sampler that buys perplexity with entropy moves left and down instead, which is why the
    two are always on one plot. `reference` is held-out text, where a perfect sampler would be.
    """
    with figure(len(panels)) as (made, axes):
        for ax, (oracle, lines) in zip(axes, panels.items(), strict=True):
            draw_lines(ax, lines)
            if reference is not None:
                star = reference[oracle]
                ax.plot(star.x, star.y, marker="*", color=DARK, markersize=13, linestyle="none")
                note(ax, "held-out text", star.x, star.y, offset=(0, 10), ha="center")
            ax.set_yscale("log")
            ax.margins(0.12)
            plain_numbers(ax)
            ax.set(xlabel="entropy of a sample's tokens, nats", ylabel=f"generative perplexity per {unit}")
            ax.set_title(f"Oracle: {oracle}")
            name_lines(ax, lines)
        save(made, path)


def plain_numbers(ax: "Axes") -> None:
    """Ordinary numbers on a logarithmic axis, 20 and not 2 x 10^1, at few enough places to be read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = ax.get_ylim()
    fine, coarse = (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7)
    places = fine if high / low < 2.5 else coarse if high / low < 30 else (1, 2, 5)
    ax.yaxis.set_major_locator(LogLocator(subs=[float(place) for place in places]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
