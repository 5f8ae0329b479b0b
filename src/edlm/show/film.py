"""A trace as something to show: a film for each sequence, whose frames are the steps. Needs no torch.

Lines are taken as `trace.Tracer` makes them; those of a file are checked first (`trace_file`).
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from edlm.trace import Line


@dataclass(frozen=True)
class Cell:
    """One token of a frame."""

    text: str
    """Fit to be printed; of a masked token of a candidate, what it proposes; else empty while masked."""
    step: int | None
    """At which step it was revealed: 0 if it was known from the start, None while it is masked."""


@dataclass(frozen=True)
class Candidate:
    """One of the k completions that a step chose from."""

    cells: list[Cell]
    energy: float
    weight: float
    is_chosen: bool


@dataclass(frozen=True)
class Step:
    """What a step saw and did, beside the tokens it revealed."""

    t: float
    s: float
    num_masked: int
    """After it."""
    start: int
    """Where the candidates begin in the text."""
    candidates: Sequence[Sequence[int | None]] = ()
    """Their tokens, None where they leave a mask."""
    energies: Sequence[float] = ()
    weights: Sequence[float] = ()
    chosen: int = 0
    ess: float | None = None
    """Effective sample size of the weights, None where nothing was weighed."""


@dataclass(frozen=True)
class Frame:
    """The text after a step, and what that step chose from."""

    number: int
    """0 is before the first step."""
    cells: list[Cell]
    step: Step | None
    candidates: list[Candidate]

    @property
    def masked_fraction(self) -> float:
        return sum(cell.step is None for cell in self.cells) / len(self.cells)


@dataclass
class Film:
    """How one sequence came about. It grows by a step at a time, so it can be shown while it is drawn."""

    settings: dict[str, Any]
    num_steps: int
    """Steps that the whole film has, or will have."""
    pieces: dict[int, str]
    """Text of each token."""
    tokens: list[int | None]
    revealed_at: list[int | None] = field(init=False)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.revealed_at = [None if token is None else 0 for token in self.tokens]
        self._history: list[list[tuple[int, int | None]]] = [[(0, token)] for token in self.tokens]
        self.num_given = sum(token is not None for token in self.tokens)

    @property
    def is_finished(self) -> bool:
        return None not in self.tokens

    def add(
        self, t: float, s: float, start: int, revealed: Sequence[Sequence[int]], choice: dict[str, Any],
        remasked: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """One more step: positions and tokens it revealed, counted from `start`, and what it chose from.

        `remasked` are positions whose tokens it masked again.
        """
        for position, token in revealed:
            self._change(start + position, token)
        for position in remasked:
            self._change(start + position, None)
        before = self.steps[-1].num_masked if self.steps else len(self.tokens) - self.num_given
        self.steps.append(Step(t, s, before - len(revealed) + len(remasked), start, **choice))
        self.num_steps = max(self.num_steps, len(self.steps))

    def _change(self, position: int, token: int | None) -> None:
        number = len(self.steps) + 1
        self.tokens[position], self.revealed_at[position] = token, None if token is None else number
        self._history[position].append((number, token))

    def frame(self, number: int) -> Frame:
        """The text after so many steps."""
        cells = [self._cell(position, number) for position in range(len(self.tokens))]
        if number == 0:
            return Frame(0, cells, None, [])
        return Frame(number, cells, self.steps[number - 1], list(self._candidates(number)))

    def frames(self) -> Iterator[Frame]:
        return (self.frame(number) for number in range(len(self.steps) + 1))

    def _cell(self, position: int, number: int, token: int | None = None) -> Cell:
        at, known = next(change for change in reversed(self._history[position]) if change[0] <= number)
        shown = known if token is None else token
        return Cell("" if shown is None else self.pieces[shown], None if known is None else at)

    def _candidates(self, number: int) -> Iterator[Candidate]:
        step = self.steps[number - 1]
        for k, tokens in enumerate(step.candidates):
            cells = [self._cell(step.start + position, number, token) for position, token in enumerate(tokens)]
            yield Candidate(cells, step.energies[k], step.weights[k], k == step.chosen)


class Reel:
    """The films of all sequences of a trace, by index."""

    def __init__(self, header: Line) -> None:
        self.header = header
        self.pieces: dict[int, str] = {}
        self.films: dict[int, Film] = {}
        self._learn(header)

    def add(self, line: Line) -> None:
        """One more line of the trace."""
        self._learn(line)
        choice = line.get("choice", {"indices": []})
        rows = {index: row for row, index in enumerate(choice["indices"])}
        for row, index in enumerate(line["indices"]):
            chosen = _choice_of(choice, rows[index]) if index in rows else {}
            remasked = line["remasked"][row] if "remasked" in line else ()
            self.film(index).add(line["t"][row], line["s"][row], line["start"], line["revealed"][row], chosen, remasked)

    def film(self, index: int) -> Film:
        """The film of a sequence, which begins when it is first asked for."""
        if index not in self.films:
            header = self.header
            self.films[index] = Film(header["settings"], header["num_steps"], self.pieces, list(header["tokens"]))
        return self.films[index]

    def _learn(self, line: Line) -> None:
        self.pieces |= {int(token): printable(text) for token, text in line["pieces"].items()}


def _choice_of(choice: Line, row: int) -> dict[str, Any]:
    return {
        "candidates": choice["candidates"][row],
        "energies": choice["energies"][row],
        "weights": choice["weights"][row],
        "chosen": choice["chosen"][row],
        "ess": choice["effective_sample_size"][row],
    }


def printable(text: str) -> str:
    """The text with line ends and tabs as signs, and nothing in it that could steer a terminal or turn a line around.

    A space that a line could end with stays one; other invisible characters become a replacement sign.
    """
    signs = {"\n": "⏎", "\t": "⇥"}
    return "".join(
        signs.get(c) or ("�" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") else c)
        for c in text
    )


def title(settings: dict[str, Any]) -> str:
    """A line that says how the text was drawn, from the settings of a trace."""
    parts = [str(settings.get("model") or "a model")]
    if settings.get("energy"):
        parts.append(f"energy {settings['energy']}, k = {settings.get('candidates')}, w = {settings.get('window')}")
        parts += [f"reveal-first, R = {settings['completions']}"] if settings.get("completions") else []
    if settings.get("kind") != "ar":
        parts.append("first-hitting" if settings.get("first_hitting") else f"{settings.get('steps')} steps")
    return printable(" · ".join([*parts, f"seed {settings.get('seed')}"])[:300])


def summary(film: Film, frame: Frame) -> str:
    """Where the film is, in one line."""
    parts = [f"step {frame.number}/{film.num_steps}", f"masked {frame.masked_fraction:.0%}"]
    if frame.step is not None:
        parts.insert(1, f"t {frame.step.t:.3f} → {frame.step.s:.3f}")
    if frame.step is not None and frame.step.ess is not None:
        parts.append(f"ESS {frame.step.ess:.2f} of {len(frame.candidates)}")
    return " · ".join(parts)
