"""Frozen dataclasses to plain dictionaries and back, refusing what does not fit."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from edlm.errors import UserError

T = TypeVar("T")


def to_dict(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as a dictionary that JSON and YAML can hold."""
    return dataclasses.asdict(config)


def from_dict(cls: type[T], values: Any, *, where: str = "config") -> T:
    """Build dataclass `cls` from a dictionary. Unknown and missing keys and wrong types are refused, never dropped."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: expected a mapping of settings, got {type(values).__name__}")
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise UserError(f"{where}: unknown key {key!r}{did_you_mean(key, fields)}")
    hints = typing.get_type_hints(cls)
    required = [f.name for f in fields.values() if f.default is f.default_factory is dataclasses.MISSING]
    for name in required:
        if name not in values:
            raise UserError(f"{where}: key {name!r} is missing")
    return cls(**{key: _convert(hints[key], value, f"{where}.{key}") for key, value in values.items()})


def with_options(config: T, options: Mapping[str, Any]) -> T:
    """The dataclass with some fields changed; a field that it does not have is refused by name."""
    known = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise UserError(f"unknown option {name!r}{did_you_mean(name, known)}")
    return dataclasses.replace(config, **options)  # type: ignore[type-var]


def did_you_mean(word: object, choices: typing.Iterable[str]) -> str:
    """'; did you mean ...?' for the closest choice, or the choices themselves."""
    choices = list(choices)
    close = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; choose from {', '.join(choices)}"


def _convert(hint: Any, value: Any, where: str) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if value is None and type(None) in typing.get_args(hint):
            return None
        hint = next(h for h in typing.get_args(hint) if h is not type(None))
    if dataclasses.is_dataclass(hint):
        return from_dict(hint, value, where=where)  # type: ignore[arg-type]
    if typing.get_origin(hint) is typing.Literal:
        if value not in typing.get_args(hint):
            choices = ", ".join(map(str, typing.get_args(hint)))
            raise UserError(f"{where} must be one of {choices}, got {value!r}")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool)):
        raise UserError(f"{where} must be of type {hint.__name__}, got {value!r}")
    return value
