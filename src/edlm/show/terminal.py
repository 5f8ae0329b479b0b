"""Frames in a terminal: the text with a colour per step, and below it what the step chose from."""

import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterator
from typing import TextIO

from edlm.show.film import Candidate, Cell, Film, Frame, summary
from edlm.show.palette import ink, step_colour, terminal_colour

MASK = "·"
RESET = "\x1b[0m"


class Screen:
    """Draws a film's last frame over the one before; where nothing can be drawn over, one below the other."""

    def __init__(self, stream: TextIO | None = None, *, least_seconds: float = 0.05) -> None:
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty()
        self.colour = self.is_terminal and not os.environ.get("NO_COLOR")
        self.least_seconds = least_seconds if self.is_terminal else 0.0
        """How long a frame stays at least."""
        self._height = 0

    def show(self, film: Film, number: int | None = None) -> None:
        """The frame after so many steps, by default after the last that was made."""
        number = len(film.steps) if number is None else number
        columns, rows = shutil.get_terminal_size()
        lines = list(frame_lines(film, film.frame(number), columns, colour=self.colour))
        if self.is_terminal and len(lines) >= rows:
            lines = [*lines[: rows - 2], "…"]
        over = f"\x1b[{self._height}F\x1b[J" if self._height and self.is_terminal else ""
        self.stream.write(over + "".join(f"{line}\n" for line in lines))
        self.stream.flush()
        self._height = 0 if number == film.num_steps else len(lines)  # the next film starts below
        time.sleep(self.least_seconds)


def frame_lines(film: Film, frame: Frame, columns: int, *, colour: bool) -> Iterator[str]:
    """A frame as lines of a terminal."""
    yield summary(film, frame)[:columns]
    yield from wrapped(frame.cells, columns, film.num_steps, frame.number, colour=colour)
    for candidate in frame.candidates:
        yield candidate_line(candidate, frame.number, columns)


def wrapped(cells: list[Cell], columns: int, num_steps: int, number: int, *, colour: bool) -> Iterator[str]:
    """The cells in lines of so many columns; a token may be cut by the end of a line."""
    line, used = "", 0
    for cell in cells:
        for character in MASK if cell.step is None else cell.text:
            width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
            if used + width > columns:
                yield line
                line, used = "", 0
            line += painted(character, cell, num_steps, number) if colour else character
            used += width
    yield line


def painted(text: str, cell: Cell, num_steps: int, number: int) -> str:
    """A cell's text in its colour; what the last step revealed is underlined, masks are faint."""
    if cell.step is None:
        return f"\x1b[2m{text}{RESET}"
    if cell.step == 0:
        return f"\x1b[1m{text}{RESET}"
    background = step_colour(cell.step, num_steps)
    codes = f"38;5;{terminal_colour(ink(background))};48;5;{terminal_colour(background)}"
    return f"\x1b[{codes}{';1;4' if cell.step == number else ''}m{text}{RESET}"


def candidate_line(candidate: Candidate, number: int, columns: int) -> str:
    """Weight, energy, and the tokens that the step would have revealed, the chosen candidate marked."""
    revealed = "".join(cell.text for cell in candidate.cells if cell.step == number)
    mark = "▶" if candidate.is_chosen else " "
    return f"{mark} weight {candidate.weight:.3f}  energy {candidate.energy:9.2f}  {revealed}"[:columns]
