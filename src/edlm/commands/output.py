"""How commands print results: a short table for a person, or one JSON document for a machine."""

import json
import math
from typing import Any


def print_json(value: Any) -> None:
    """One JSON document on standard output; numbers that JSON lacks become null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_table(rows: dict[str, Any]) -> None:
    """Two aligned columns."""
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
