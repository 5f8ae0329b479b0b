"""Reading trace files. They may come from anywhere: all of a line is checked before any of it is used."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edlm.errors import UserError
from edlm.show.film import Film, Reel
from edlm.trace import FORMAT, Line

REMEDY = "make a new one with `edlm sample --trace FILE`"


def read_film(path: Path, index: int | None = None) -> Film:
    """The film of one sequence of a trace file, by default of its first."""
    films = read_trace(path).films
    if not films:
        raise UserError(f"{path} ends before its first step; {REMEDY}")
    index = min(films) if index is None else index
    if index not in films:
        raise UserError(f"{path} has no sequence {index}; it has {', '.join(map(str, sorted(films)[:20]))}")
    return films[index]


def read_trace(path: Path) -> Reel:
    """All films of a trace file."""
    reel, number = None, 0
    try:
        with path.open(encoding="utf-8") as file:
            for text in file:
                number += 1
                reel = _extended(reel, _parse(text))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a trace: it is not text; {REMEDY}") from error
    except Wrong as error:
        raise UserError(f"{path}, line {number}: {error}; {REMEDY}") from error
    if reel is None:
        raise UserError(f"{path} is empty; {REMEDY}")
    return reel


class Wrong(Exception):  # noqa: N818
    """What is wrong with a line."""


def _parse(text: str) -> Line:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong("it is not JSON" + ("" if text.endswith("\n") else " and the file ends in it: cut off?")) from error
    if not isinstance(line, dict):
        raise Wrong(f"expected an object, got {shown(line)}")
    return line


def _extended(reel: Reel | None, line: Line) -> Reel:
    """The reel with one more line, which is its header if there is none yet."""
    if reel is None:
        _check_header(line)
        return Reel(line)
    _check_line(line, reel)
    reel.add(line)
    return reel


def _check_header(line: Line) -> None:
    if line.get("edlm_trace") != FORMAT:
        raise Wrong(f"not the header of a trace of format {FORMAT}")
    if not isinstance(line.get("settings"), dict):
        raise Wrong(f"settings must be an object, got {shown(line.get('settings'))}")
    _whole(line, "num_steps", 0, 10**9)
    tokens = _list(line, "tokens")
    if not tokens:
        raise Wrong("there are no tokens")
    _known((token for token in tokens if token is not None), _ids(line))


def _check_line(line: Line, reel: Reel) -> None:
    length = len(reel.header["tokens"])
    start = _whole(line, "start", 0, length - 1)
    ids = _ids(line) | reel.pieces.keys()
    indices = _list(line, "indices")
    if len(set(map(repr, indices))) < len(indices) or not all(is_whole(index, 0, 2**63) for index in indices):
        raise Wrong("indices must be different whole numbers")
    for name in ("t", "s"):
        _numbers(_list(line, name, len(indices)), name, 0, 1)
    hidden = _list(line, "remasked", len(indices)) if "remasked" in line else [[] for _ in indices]
    for index, revealed, remasked in zip(indices, _list(line, "revealed", len(indices)), hidden, strict=True):
        known = reel.films[index].tokens if index in reel.films else reel.header["tokens"]
        _check_revealed(revealed, known[start:], ids)
        _check_remasked(remasked, known[start:])
    if "choice" in line:
        _check_choice(line["choice"], indices, length - start, ids)


def _check_revealed(revealed: Any, known: list[int | None], ids: set[int]) -> None:
    if not isinstance(revealed, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in revealed):
        raise Wrong("revealed must hold pairs of position and token")
    positions = [position for position, _ in revealed]
    if not all(is_whole(position, 0, len(known) - 1) for position in positions):
        raise Wrong(f"a position is not among the {len(known)} of the sequence")
    if len(set(positions)) < len(positions) or any(known[position] is not None for position in positions):
        raise Wrong("a token is revealed twice")
    _known((token for _, token in revealed), ids)


def _check_remasked(remasked: Any, known: list[int | None]) -> None:
    if not isinstance(remasked, list) or not all(is_whole(position, 0, len(known) - 1) for position in remasked):
        raise Wrong(f"remasked must hold positions among the {len(known)} of the sequence")
    if len(set(remasked)) < len(remasked) or any(known[position] is None for position in remasked):
        raise Wrong("a token is masked again that is not known")


def _check_choice(choice: Any, indices: list[int], length: int, ids: set[int]) -> None:
    if not isinstance(choice, dict):
        raise Wrong(f"choice must be an object, got {shown(choice)}")
    rows = _list(choice, "indices")
    if len(set(map(repr, rows))) < len(rows) or not all(row in indices for row in rows):
        raise Wrong("choice: indices must be different ones of the line")
    _numbers(_list(choice, "effective_sample_size", len(rows)), "effective_sample_size", 0, math.inf)
    columns = [_list(choice, name, len(rows)) for name in ("candidates", "energies", "weights", "chosen")]
    for candidates, energies, weights, chosen in zip(*columns, strict=True):
        if not isinstance(candidates, list) or not is_whole(chosen, 0, len(candidates) - 1):
            raise Wrong("choice: chosen must be one of the candidates")
        for name, values, low, high in (("energies", energies, -math.inf, math.inf), ("weights", weights, 0, 1 + 1e-6)):
            if not isinstance(values, list) or len(values) != len(candidates):
                raise Wrong(f"choice: {name} must have one number per candidate")
            _numbers(values, name, low, high)
        for tokens in candidates:
            if not isinstance(tokens, list) or not len(tokens) <= length:
                raise Wrong(f"choice: a candidate must be a list of at most {length} tokens")
            _known((token for token in tokens if token is not None), ids)


def _ids(line: Line) -> set[int]:
    """The tokens whose text a line brings."""
    pieces = line.get("pieces")
    is_right = isinstance(pieces, dict) and all(isinstance(text, str) for text in pieces.values())
    # Ids as Python writes them: int() would also take '+1', ' 1' or digits of other scripts.
    if not is_right or not all(id.isascii() and id.isdigit() and len(id) < 19 for id in pieces or ()):
        raise Wrong("pieces must map token ids to their text")
    return {int(id) for id in pieces or ()}


def _known(tokens: Iterable[Any], ids: set[int]) -> None:
    for token in tokens:
        if not is_whole(token, 0, 2**63) or token not in ids:
            raise Wrong(f"token {shown(token)} has no text in pieces")


def _list(line: Line, name: str, length: int | None = None) -> list[Any]:
    value = line.get(name)
    if not isinstance(value, list) or length not in (None, len(value)):
        about = "a list" if length is None else f"a list of {length}, one per sequence"
        raise Wrong(f"{name} must be {about}, got {shown(value)}")
    return value


def _whole(line: Line, name: str, low: int, high: int) -> int:
    value = line.get(name)
    if not is_whole(value, low, high):
        raise Wrong(f"{name} must be a whole number from {low} to {high}, got {shown(value)}")
    assert isinstance(value, int)
    return value


def _numbers(values: list[Any], name: str, low: float, high: float) -> None:
    for value in values:
        is_number = isinstance(value, float) or is_whole(value, -(2**53), 2**53)
        if not (is_number and low <= value <= high):
            raise Wrong(f"{name} must be numbers from {low:g} to {high:g}, got {shown(value)}")


def is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def shown(value: Any) -> str:
    """A value in an error message: short, and on one line."""
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."
