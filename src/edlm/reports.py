"""Results as Markdown tables, and as files beside each other in a folder."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edlm.durable import write_whole


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The rows, of which the first names the columns, aligned: the first column left, the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [[f"{cell:{'<' if n == 0 else '>'}{widths[n]}}" for n, cell in enumerate(row)] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain(value: Any) -> Any:
    """The same for JSON: numbers that it lacks, such as an unknown standard error, become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Report:
    """A table for a person, the numbers behind it, and where both were written."""

    text: str
    results: dict[str, Any]
    files: list[Path]

    def as_text(self) -> str:
        return "\n".join([self.text, *(f"written: {path}" for path in self.files)])

    def as_dict(self) -> dict[str, Any]:
        return self.results | {"files": [str(path) for path in self.files]}


def write_report(
    folder: Path, text: str, results: dict[str, Any], plots: Mapping[str, Callable[[Path], None]] | None = None
) -> Report:
    """results.md, results.json and the plots in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "results.md", text.encode())
    write_whole(folder / "results.json", (json.dumps(plain(results), indent=2, ensure_ascii=False) + "\n").encode())
    for name, draw in (plots or {}).items():
        draw(folder / name)
    return Report(text, results, [folder / name for name in ("results.md", "results.json", *(plots or {}))])
