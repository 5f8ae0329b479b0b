"""How commands print results: a short table for a person, or one JSON document for a machine."""

import json
import math
from collections.abc import Iterator
from typing import Any


def print_json(value: Any) -> None:
    """One JSON document on standard output; numbers that JSON lacks become null."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(rows: dict[str, Any]) -> None:
    """Two aligned columns; a value that is itself a table becomes rows named after it."""
    rows = dict(_flat(rows, ""))
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def _flat(rows: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in rows.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
