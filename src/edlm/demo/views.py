"""What the page shows, as text and HTML: everything but the controls. Needs no Gradio."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import zip_longest

from edlm.demo.drawing import Drawing, Measured
from edlm.metrics import Estimate
from edlm.show.curves import curves_html
from edlm.show.film import Film, summary, title
from edlm.show.fragments import candidates_html, legend_html, text_html

EMPTY = '<div class="edlm"><div class="edlm-text edlm-empty">{}</div></div>'


@dataclass(frozen=True)
class View:
    """A frame of a film as pieces of HTML."""

    status: str
    text: str
    candidates: str
    curves: str


def view(film: Film, number: int | None = None) -> View:
    """The frame after so many steps, by default after the last that was made."""
    frame = film.frame(len(film.steps) if number is None else number)
    return View(
        framed(f'<div class="edlm-status">{escape(summary(film, frame))}</div>'),
        framed(text_html(film, frame) + legend_html(film)),
        framed(candidates_html(film, frame)),
        framed(curves_html(film, frame.number)),
    )


def framed(html: str) -> str:
    return f'<div class="edlm">{html}</div>'


def status(text: str) -> str:
    return framed(f'<div class="edlm-status">{escape(text)}</div>')


def now_and_then(films: Iterator[Film], seconds: float = 0.1) -> Iterator[Film]:
    """The first, the last, and in between one film every so many seconds: a page need not show every step at once."""
    shown, film = -math.inf, None
    for film in films:
        if time.monotonic() - shown >= seconds:
            shown = time.monotonic()
            yield film
    if film is not None:
        yield film


def side_by_side(first: Drawing, second: Drawing) -> Iterator[Film]:
    """Two drawings in turn, a step of each, so that one can be watched beside the other."""
    for films in zip_longest(first.steps(), second.steps()):
        yield from (film for film in films if film is not None)


def race_html(drawing: Drawing) -> str:
    """One side of a comparison: its settings, where it is, and its first text."""
    film = drawing.film
    about = f"<h2>{escape(drawing.order.label)}</h2>"
    about += f'<div class="edlm-status">{escape(title(film.settings))}</div>'
    frame = film.frame(len(film.steps))
    place = f'<div class="edlm-status">{escape(summary(film, frame))} · {drawing.seconds:.2f} s</div>'
    return framed(about + text_html(film, frame) + place)


def table_html(rows: list[tuple[str, Measured]], num: int) -> str:
    """What was measured on both sides."""
    head = "".join(f"<th scope='col'>{escape(label)}</th>" for label, _ in rows)
    sides = [measured for _, measured in rows]
    judged = [shown(side.perplexity) if side.perplexity else "no oracle" for side in sides]
    lines = [
        ("oracle perplexity", judged),
        ("entropy of tokens, nats", [shown(side.entropy) for side in sides]),
        ("seconds of drawing", [f"{side.seconds:.2f}" for side in sides]),
        ("denoiser passes", [str(side.denoiser_passes) for side in sides]),
        ("energy passes", [str(side.energy_passes) for side in sides]),
    ]
    body = "".join(
        f"<tr><th scope='row'>{name}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"
        for name, values in lines
    )
    samples = "1 sample each" if num == 1 else f"{num} samples each, ± standard error over them"
    note = f"{samples}. Seconds are this machine's; one number alone can be gamed, so read them together."
    return framed(
        f'<table class="edlm-table"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'<p class="edlm-none">{note}</p>'
    )


def shown(value: Estimate) -> str:
    error = "" if math.isnan(value.standard_error) else f" ± {value.standard_error:.2f}"
    return f"{value.mean:.2f}{error}"
