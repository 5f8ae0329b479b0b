"""A film as an animated GIF, for slides and web pages."""

import io
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from edlm.show.film import Cell, Film, Frame, summary, title
from edlm.show.palette import RAMP, Colour, ink, step_colour

SIZE, LINE, MARGIN = 17, 28, 22
"""Height of letters, of lines, and the border, in pixels."""
PAPER, TEXT, MUTED, MASKED, NEW = (255, 255, 255), (28, 35, 51), (91, 100, 120), (233, 236, 242), (176, 74, 0)
SECONDS, LAST_SECONDS = 6.0, 2.5


def gif_bytes(film: Film, *, columns: int = 64) -> bytes:
    """One picture per frame, from the first masks to the text, which stays a while before it begins again."""
    pictures = [draw(film, frame, columns) for frame in film.frames()]
    palette = pictures[-1].quantize(128)
    small = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    each = max(40, round(1000 * SECONDS / len(pictures) / 10) * 10)
    durations = [each] * (len(pictures) - 1) + [round(1000 * LAST_SECONDS)]
    file = io.BytesIO()
    small[0].save(
        file, "GIF", save_all=True, append_images=small[1:], duration=durations, loop=0, optimize=False
    )  # fmt: skip
    return file.getvalue()


def draw(film: Film, frame: Frame, columns: int) -> Image.Image:
    """One picture: the text, a bar of what is masked, and where the film is."""
    font, small = mono_font(SIZE), mono_font(13)
    advance = font.getlength("m")
    places, rows = place(film.frame(len(film.steps)).cells, columns)
    width, height = round(columns * advance) + 2 * MARGIN, rows * LINE + 2 * MARGIN + 52
    image = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((MARGIN, MARGIN - 8), cut(title(film.settings), width - 2 * MARGIN, small), MUTED, small)
    for cell, at in zip(frame.cells, places, strict=True):
        draw_cell(pen, cell, at, film.num_steps, frame.number, font, advance)
    draw_foot(pen, film, frame, height, width, small)
    return image


def place(cells: list[Cell], columns: int) -> tuple[list[list[tuple[int, int]]], int]:
    """Column and row of every character of every cell in the finished text, so that nothing moves; and the rows."""
    places, column, row = [], 0, 0
    for cell in cells:
        at = []
        for _ in cell.text or " ":
            if column == columns:
                column, row = 0, row + 1
            at.append((column, row))
            column += 1
        places.append(at)
    return places, row + 1


def draw_cell(
    pen: ImageDraw.ImageDraw, cell: Cell, at: list[tuple[int, int]], num_steps: int, number: int, font: Any,
    advance: float,
) -> None:  # fmt: skip
    """A token on the colour of its step; a grey field while it is masked."""
    background: Colour = MASKED if cell.step is None else PAPER if cell.step == 0 else step_colour(cell.step, num_steps)
    for (column, row), character in zip(at, cell.text or "·" * len(at), strict=True):
        left, top = MARGIN + column * advance, MARGIN + 18 + row * LINE
        box = (round(left), top, round(left + advance) - 1, top + LINE - 6)
        pen.rectangle(box, fill=background)
        colour = MUTED if cell.step is None else TEXT if cell.step == 0 else ink(background)
        pen.text((left, top + 1), character, colour, font)
        if cell.step == number and number:
            pen.rectangle((box[0], box[3] + 1, box[2], box[3] + 3), fill=NEW)
        elif cell.step == 0:
            pen.rectangle((box[0], box[3], box[2], box[3] + 1), fill=MUTED)


def draw_foot(pen: ImageDraw.ImageDraw, film: Film, frame: Frame, height: int, width: int, font: Any) -> None:
    """The line that says where the film is, above a bar that fills up in the colours of the steps."""
    pen.text((MARGIN, height - MARGIN - 22), cut(summary(film, frame), width - 2 * MARGIN, font), TEXT, font)
    left, right, top = MARGIN, width - MARGIN, height - MARGIN + 2
    pen.rectangle((left, top, right, top + 5), fill=MASKED)
    shades = 8 * len(RAMP)
    done = (right - left) * frame.number / max(1, film.num_steps)
    for i in range(shades):
        edge = left + (right - left) * i / shades, left + min(done, (right - left) * (i + 1) / shades)
        if edge[0] < edge[1]:
            pen.rectangle((edge[0], top, edge[1], top + 5), fill=step_colour(1 + i, shades))


def cut(text: str, width: float, font: Any) -> str:
    """The beginning of a text that fits."""
    while text and font.getlength(text) > width:
        text = text[:-2].rstrip("…") + "…" if len(text) > 2 else ""
    return text


@cache
def mono_font(size: int) -> Any:
    """DejaVu Sans Mono, from the system or as matplotlib brings it; else what Pillow has."""
    for name in font_files():
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def font_files() -> Iterator[str]:
    spec = find_spec("matplotlib")
    if spec is not None and spec.origin is not None:
        yield str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSansMono.ttf")
    yield "DejaVuSansMono.ttf"
