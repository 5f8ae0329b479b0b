"""Plots of one style: colours that colour-blind readers can tell apart, names beside the lines, files written whole.

Figures are objects of their own; nothing here touches matplotlib's global state or needs a display.
"""

import math
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
    from matplotlib.axis import Axis
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


@dataclass(frozen=True)
class Dot:
    """One named value with its standard error; NaN where unknown."""

    name: str
    value: float
    error: float = float("nan")


@contextmanager
def figure(
    columns: int = 1, *, rows: int = 1, width: float = 7.2, height: float = 4.8
) -> "Iterator[tuple[Figure, list[Axes]]]":
    """An empty figure of `rows` by `columns` panels, row by row, in the house style, which holds inside the block.

    Width and height are one panel's.
    """
    require_extra("eval", "matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        made = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = [made.add_subplot(rows, columns, place + 1) for place in range(rows * columns)]
        yield made, axes


def save(made: "Figure", path: Path) -> None:
    """Write a PNG, whole or not at all; the same figure gives the same bytes."""
    buffer = BytesIO()
    made.savefig(buffer, format="png", metadata={"Software": None})
    write_whole(path, buffer.getvalue())


def look(index: int) -> dict[str, Any]:
    """Colour, marker and dashes of line number `index`."""
    turn, place = divmod(index, len(COLOURS))
    marker = MARKERS[(place + 3 * turn) % len(MARKERS)]
    return {"color": COLOURS[place], "marker": marker, "linestyle": DASHES[turn % len(DASHES)]}


def draw_lines(ax: "Axes", lines: Sequence[Line], *, is_joined: bool = True) -> None:
    """Lines with markers and error bars, and each point's label beside it; not joined, the points alone."""
    for index, line in enumerate(lines):
        style = look(index) | ({} if is_joined else {"linestyle": "none"})
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

    Names that would touch move apart; a line without any known point has none.
    """
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]  # heights are known only after layout
    to_panel = ax.transData + ax.transAxes.inverted()
    known = {index: [p for p in line.points if math.isfinite(p.y)] for index, line in enumerate(lines)}
    ends = {index: (points[-1].x, points[-1].y) for index, points in known.items() if points}
    # Some lines may leave the panel: their names stay beside it.
    heights = {index: min(1.0, max(0.0, float(to_panel.transform(end)[1]))) for index, end in ends.items()}
    for index, place in _spread(heights).items():
        colour = look(index)["color"]
        ax.annotate(
            lines[index].name, (ends[index][0], heights[index]), (1.03, place), xycoords=("data", "axes fraction"),
            textcoords="axes fraction", color=colour, va="center", fontsize=9, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.3, "linewidth": 0.7, "shrinkB": 6,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def _spread(heights: Mapping[int, float]) -> dict[int, float]:
    """Places in [0, 1] near the given heights, in their order, that leave each name its own line if there is room."""
    gap = min(0.06, 1 / max(1, len(heights) - 1))
    falling = sorted(heights, key=lambda index: -heights[index])
    places: dict[int, float] = {}
    for rank, index in enumerate(falling):
        above = places[falling[rank - 1]] - gap if rank else 1.0
        below = gap * (len(falling) - 1 - rank)  # what those that follow need
        places[index] = max(min(heights[index], above), below)
    return places


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
            plain_numbers(ax.yaxis)
            ax.set(xlabel="entropy of a sample's tokens, nats", ylabel=f"generative perplexity per {unit}")
            ax.set_title(f"Oracle: {oracle}")
            name_lines(ax, lines)
        save(made, path)


def plain_numbers(axis: "Axis") -> None:
    """Ordinary numbers on a logarithmic axis, 20 and not 2 x 10^1, at few enough places to be read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    fine, coarse = (1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 5, 7)
    places = fine if high / low < 2.5 else coarse if high / low < 30 else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=[float(place) for place in places]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_band(ax: "Axes", index: int, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
    """The space between two lines, in the colour of line number `index`."""
    ax.fill_between(x, low, high, color=look(index)["color"], alpha=0.16, linewidth=0)


def draw_heat_map(
    ax: "Axes", values: Sequence[Sequence[float]], labels: Sequence[Sequence[str]], *, x: Sequence[str],
    y: Sequence[str], is_low_good: bool = True,
) -> None:  # fmt: skip
    """A cell for each value with its label inside; darker is better. The first row is at the bottom."""
    ax.set_axisbelow(False)  # the white lines between cells lie on top
    ax.imshow(values, cmap="Blues_r" if is_low_good else "Blues", origin="lower", aspect="auto", alpha=0.85)
    ax.grid(False)
    ax.set_xticks(range(len(x)), x)
    ax.set_yticks(range(len(y)), y)
    ax.set_xticks([place + 0.5 for place in range(len(x) - 1)], minor=True)
    ax.set_yticks([place + 0.5 for place in range(len(y) - 1)], minor=True)
    ax.grid(which="minor", color="white", linewidth=2)
    ax.tick_params(which="both", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    flat = [value for row in values for value in row]
    low, span = min(flat), (max(flat) - min(flat)) or 1.0
    for row, cells in enumerate(labels):
        for column, label in enumerate(cells):
            share = (values[row][column] - low) / span
            is_dark = (1 - share if is_low_good else share) > 0.6
            ax.text(column, row, label, ha="center", va="center", color="white" if is_dark else DARK, fontsize=10)


def dots_height(groups: Mapping[str, Sequence[Dot]]) -> float:
    """Inches that a chart of dots needs, a line each, headings included."""
    return 1.1 + 0.23 * sum(len(dots) + 1.5 for dots in groups.values())


def draw_dots(ax: "Axes", groups: Mapping[str, Sequence[Dot]], *, quoted: str = "") -> None:
    """Named values below each other, each with its number beside it, under a heading for every group in its colour.

    The group `quoted`, of values from elsewhere, is grey.
    """
    ticks, names, y = [], [], 0.0
    for index, (heading, dots) in enumerate(groups.items()):
        style = look(index) | {"linestyle": "none"} | ({"color": GREY} if heading == quoted else {})
        ax.text(0.012, y, heading, color=style["color"], weight="bold", va="center", transform=ax.get_yaxis_transform())
        for dot in dots:
            y -= 1
            ax.errorbar(dot.value, y, xerr=finite(dot.error), **style, elinewidth=1.2)
            text = f"{dot.value:.3f} ± {dot.error:.3f}" if dot.error == dot.error else f"{dot.value:.2f}"
            note(ax, text, dot.value + finite(dot.error), y, style["color"], offset=(7, 0), size=8, va="center")
            ticks.append(y)
            names.append(dot.name)
        y -= 1.5
    ax.set_yticks(ticks, names)
    ax.set_ylim(y + 0.7, 0.8)
    ax.grid(visible=False, axis="y")
    ax.margins(x=0.06)
    low, high = ax.get_xlim()
    ax.set_xlim(low, high + 0.14 * (high - low))  # room for the numbers
