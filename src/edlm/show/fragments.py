"""Pieces of HTML that show a frame. Everything that comes from a trace passes through `escape`."""

from html import escape
from itertools import groupby
from pathlib import Path

from edlm.show.film import Candidate, Cell, Film, Frame
from edlm.show.palette import hexadecimal, ink, step_colour

MASK = "·"
STYLE = Path(__file__).with_name("show.css")


def text_html(film: Film, frame: Frame) -> str:
    """The text, each token in the colour of its step."""
    cells = "".join(cell_html(cell, frame.number, film.num_steps) for cell in frame.cells)
    return f'<div class="edlm-text">{cells}</div>'


def cell_html(cell: Cell, number: int, num_steps: int) -> str:
    if cell.step is None:
        return f'<span class="mask">{MASK}</span>'
    if cell.step == 0:
        return f'<span class="given" title="given">{escape(cell.text)}</span>'
    new = " new" if cell.step == number else ""
    about = f'class="token{new}" data-step="{cell.step}" title="step {cell.step}"'
    return f'<span {about} style="{colours(cell.step, num_steps)}">{escape(cell.text)}</span>'


def colours(step: int, num_steps: int) -> str:
    background = step_colour(step, num_steps)
    return f"background:{hexadecimal(background)};color:{hexadecimal(ink(background))}"


def legend_html(film: Film) -> str:
    """What the colours mean."""
    stops = ",".join(hexadecimal(step_colour(1 + i, 9)) for i in range(9))
    given = '<span class="given">given</span>' if film.num_given else ""
    ramp = f'<span class="ramp" style="background:linear-gradient(90deg,{stops})"></span>'
    masked = f'<span><span class="mask">{MASK}</span> masked</span>'
    return f'<div class="edlm-legend"><span>step 1 {ramp} {film.num_steps}</span>{masked}{given}</div>'


def candidates_html(film: Film, frame: Frame) -> str:
    """The candidates of a step, heaviest first, with weights and energies; the chosen one is marked."""
    if frame.step is None or not frame.candidates:
        why = "before the first step" if frame.step is None else "nothing was weighed in this step"
        return f'<p class="edlm-none">No candidates: {why}.</p>'
    ranked = sorted(frame.candidates, key=lambda candidate: -candidate.weight)
    rows = "".join(candidate_html(candidate, frame.number, film.num_steps) for candidate in ranked)
    return f'<div class="edlm-candidates">{rows}</div>'


def candidate_html(candidate: Candidate, number: int, num_steps: int) -> str:
    chosen = ' chosen" aria-current="true' if candidate.is_chosen else ""
    mark = '<b class="mark">◆ chosen</b>' if candidate.is_chosen else ""
    bar = f'<span class="bar"><span style="width:{min(1.0, candidate.weight):.1%}"></span></span>'
    numbers = f"<span>weight {candidate.weight:.3f}</span>{bar}<span>energy {candidate.energy:.2f}</span>{mark}"
    runs = "".join(
        run_html(kind, "".join(cell.text or MASK for cell in cells), number, num_steps)
        for kind, cells in groupby(candidate.cells, key=lambda cell: kind_of(cell, number))
    )
    return f'<div class="candidate{chosen}"><div class="numbers">{numbers}</div><div class="words">{runs}</div></div>'


def kind_of(cell: Cell, number: int) -> str:
    """What a step does with a token of a candidate: it was known, it is revealed, or it stays masked."""
    return "stays" if cell.step is None else "now" if cell.step == number else "known"


def run_html(kind: str, text: str, number: int, num_steps: int) -> str:
    style = f' style="{colours(number, num_steps)}"' if kind == "now" else ""
    return f'<span class="{kind}"{style}>{escape(text)}</span>'
