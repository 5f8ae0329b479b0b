"""What a long evaluation has done so far, so that it can be killed at any moment and go on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from edlm.data.cache import key_of
from edlm.durable import whole_lines


@final
class Journal:
    """Values of blocks, appended as JSON lines to one file a process; `key` is all that they depend on.

    A line is written at once and whole, so what a killed process leaves is all of its lines but perhaps the last.
    """

    def __init__(self, folder: Path, key: dict[str, Any], rank: int = 0) -> None:
        self._name = f"likelihood-{key_of(key)}"
        self._folder, self._path = folder, folder / f"{self._name}.{rank}.jsonl"

    def read(self) -> dict[int, list[float]]:
        """Block to values, from all processes that took part so far; call it before any of them goes on.

        What a killed process left of its last line is cut off, so that the next one starts a line of its own.
        """
        done: dict[int, list[float]] = {}
        for path in self._files():
            for line in whole_lines(path):
                entry = json.loads(line)
                done.update(zip(entry["blocks"], entry["nats"], strict=True))
        return done

    def append(self, blocks: Sequence[int], nats: list[list[float]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"blocks": list(blocks), "nats": nats}) + "\n")

    def remove(self) -> None:
        """Forget everything: the result is known."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._name}.*.jsonl"))
