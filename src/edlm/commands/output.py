"""How commands print results: a short table for a person, or one JSON document for a machine."""

import json
from collections.abc import Iterator
from typing import Any

from edlm.reports import plain


def print_json(value: Any) -> None:
    """One JSON document on standard output; numbers that JSON lacks become null."""
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))


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
