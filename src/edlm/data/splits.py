"""Where train ends and validation and test begin, in tokens of one flat file."""

import numpy as np

from edlm.data.config import GRAMMAR, Amount
from edlm.errors import UserError


def cut_splits(
    document_ends: np.ndarray, *, unit: str, validation: Amount | None, test: Amount | None
) -> dict[str, tuple[int, int]]:
    """The range of tokens of each split: train, then validation, then test at the very end.

    Shares are shares of the whole. An amount of documents never cuts a document; tokens and characters may.
    """
    stop = int(document_ends[-1])
    ranges: dict[str, tuple[int, int]] = {}
    for name, amount in (("test", test), ("validation", validation)):
        if amount is not None:
            start = _start(name, amount, document_ends, stop, unit)
            ranges[name] = (start, stop)
            stop = start
    return {"train": (0, stop)} | dict(reversed(ranges.items()))


def _start(name: str, amount: Amount, document_ends: np.ndarray, stop: int, unit: str) -> int:
    if amount.unit == "characters" and unit != "character":
        raise UserError(f"{name} is set in characters, but the data is tokens; {GRAMMAR}")
    if amount.unit == "documents":
        num_before = int(np.searchsorted(document_ends, stop, side="right"))
        num_kept = num_before - amount.of(len(document_ends))
        start = int(document_ends[num_kept - 1]) if num_kept > 0 else 0
        has = f"{num_before} documents"
    else:
        start = stop - amount.of(int(document_ends[-1]))
        has = f"{stop} {unit}s"
    if start <= 0:
        wanted = amount.of(len(document_ends) if amount.unit == "documents" else int(document_ends[-1]))
        raise UserError(f"{name} would take {wanted} {amount.unit} of {has} and leave nothing to train on; take less")
    return start
