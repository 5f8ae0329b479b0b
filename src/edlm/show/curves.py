"""The three curves of a film as SVG: masked fraction, energies, effective sample size."""

import math
from collections.abc import Sequence
from html import escape

from edlm.show.film import Film

WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 308, 26, 126
"""The box that is drawn in, with room for a title and two numbers on each axis."""
Point = tuple[float, float]


def curves_html(film: Film, number: int) -> str:
    """All curves that the film has, with a line at the frame that is shown."""
    panels = [masked_panel(film, number)]
    if any(step.candidates for step in film.steps):
        panels += [energy_panel(film, number), ess_panel(film, number)]
    return f'<div class="edlm-curves">{"".join(panels)}</div>'


def masked_panel(film: Film, number: int) -> str:
    length = len(film.tokens)
    masked = [length - film.num_given, *(step.num_masked for step in film.steps)]
    axes = Axes(film.num_steps, 0.0, 1.0)
    marks = axes.line([(step, count / length) for step, count in enumerate(masked)])
    return axes.panel("masked fraction", marks, number)


def energy_panel(film: Film, number: int) -> str:
    """A dot for every candidate, a filled diamond for the chosen one."""
    weighed = [(n, step) for n, step in enumerate(film.steps, start=1) if step.candidates]
    finite = [energy for _, step in weighed for energy in step.energies if math.isfinite(energy)]
    axes = Axes(film.num_steps, *(limits(finite)))
    dots = [(n, e) for n, step in weighed for k, e in enumerate(step.energies) if k != step.chosen and math.isfinite(e)]
    chosen = [(n, step.energies[step.chosen]) for n, step in weighed if math.isfinite(step.energies[step.chosen])]
    title = "energies, nats (◆ chosen)"
    return axes.panel(title, axes.line(chosen, "faint") + axes.dots(dots) + axes.diamonds(chosen), number)


def ess_panel(film: Film, number: int) -> str:
    weighed = [(n, step) for n, step in enumerate(film.steps, start=1) if step.ess is not None]
    k = max(len(step.candidates) for _, step in weighed)
    axes = Axes(film.num_steps, 1.0, float(max(2, k)))
    points = [(n, float(step.ess or 0)) for n, step in weighed]
    return axes.panel(f"effective sample size of k = {k}", axes.line(points) + axes.dots(points, "solid"), number)


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value, apart even if they are equal."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if low < high else (low - 1, high + 1)


class Axes:
    """Steps from 0 to `num_steps` across, values from `low` to `high` upwards."""

    def __init__(self, num_steps: int, low: float, high: float) -> None:
        self.num_steps, self.low, self.high = max(1, num_steps), low, high

    @property
    def step_width(self) -> float:
        return (RIGHT - LEFT) / self.num_steps

    def place(self, point: Point) -> str:
        share = min(1.0, max(0.0, (point[1] - self.low) / (self.high - self.low)))
        return f"{LEFT + point[0] * self.step_width:.1f},{BOTTOM - share * (BOTTOM - TOP):.1f}"

    def line(self, points: Sequence[Point], kind: str = "line") -> str:
        return f'<polyline class="{kind}" points="{" ".join(map(self.place, points))}"/>'

    def dots(self, points: Sequence[Point], kind: str = "dots") -> str:
        path = "".join(f"M{self.place(point)}m-2,0a2,2 0 1,0 4,0a2,2 0 1,0 -4,0" for point in points)
        return f'<path class="{kind}" d="{path}"/>'

    def diamonds(self, points: Sequence[Point]) -> str:
        path = "".join(f"M{self.place(point)}m0,-4l4,4l-4,4l-4,-4z" for point in points)
        return f'<path class="chosen" d="{path}"/>'

    def panel(self, title: str, marks: str, number: int) -> str:
        """The marks in their box, with title, numbers at the axes and the line of the frame that is shown."""
        low, high = (f"{value:.4g}" for value in (self.low, self.high))
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
            f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>'
            f'<path class="frame" d="M{LEFT},{TOP}V{BOTTOM}H{RIGHT}"/>'
            f'<text class="end" x="{LEFT - 6}" y="{TOP + 8}">{high}</text>'
            f'<text class="end" x="{LEFT - 6}" y="{BOTTOM}">{low}</text>'
            f'<text x="{LEFT}" y="{BOTTOM + 15}">0</text>'
            f'<text class="end" x="{RIGHT}" y="{BOTTOM + 15}">step {self.num_steps}</text>'
            f'<line class="cursor" x1="{LEFT}" x2="{LEFT}" y1="{TOP}" y2="{BOTTOM}" '
            f'data-width="{self.step_width:.3f}" transform="translate({number * self.step_width:.1f})"/>{marks}</svg>'
        )
