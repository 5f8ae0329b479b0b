"""Blocks: a split of the token file, seen as consecutive non-overlapping rows of equal length.

B batch, L positions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex, final

import numpy as np

from edlm.errors import UserError


@final
class Blocks:
    """Tokens `start` to `stop` of a flat file, in rows of `length`; only the final partial row is dropped.

    With `wrap_id`, a row is that token, `length - 2` tokens of the file, and that token again. Works as a map-style
    data set of torch; what is sent to a worker process is the file's name, not its content.
    """

    def __init__(
        self,
        path: Path,
        dtype: str,
        start: int,
        stop: int,
        length: int,
        *,
        name: str = "split",
        wrap_id: int | None = None,
    ) -> None:
        self.path, self.dtype, self.start, self.stop = path, dtype, start, stop
        self.length, self.name, self.wrap_id = length, name, wrap_id
        self._stride = length if wrap_id is None else length - 2
        if self.num_tokens < self._stride:
            raise UserError(
                f"the {name} split has {self.num_tokens} tokens, not enough for one block of length {length}; "
                f"length must be at most {self.num_tokens + length - self._stride}, or the split larger"
            )
        self._rows = self._open()

    def _open(self) -> np.ndarray:
        flat = np.memmap(self.path, dtype=self.dtype, mode="r")[self.start : self.stop]
        return flat[: len(self) * self._stride].reshape(len(self), self._stride)

    @property
    def num_tokens(self) -> int:
        """Tokens of the split, those of the dropped partial row included."""
        return self.stop - self.start

    def __len__(self) -> int:
        return self.num_tokens // self._stride

    def __getitem__(self, index: SupportsIndex) -> np.ndarray:
        position = index.__index__()
        if not -len(self) <= position < len(self):
            raise IndexError(f"block {position} of {len(self)}")  # also what ends a plain for loop
        return self.get([position])[0]

    def get(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """The rows at `indices`, int64."""
        rows = self._rows[np.asarray(indices, dtype=np.int64)].astype(np.int64)  # (B, L), or (B, L - 2) before wrapping
        if self.wrap_id is None:
            return rows
        return np.pad(rows, ((0, 0), (1, 1)), constant_values=self.wrap_id)  # (B, L)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_rows"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._rows = self._open()
