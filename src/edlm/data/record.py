"""What a model was trained on, as the run that made it wrote down."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from edlm.config import from_dict
from edlm.data.config import DataConfig, parse_amount
from edlm.errors import UserError

RUN = "run.yaml"


def read_run(folder: Path) -> dict[str, Any] | None:
    """The run.yaml beside a model, or None if there is none."""
    path = folder / RUN
    if not path.exists():
        return None
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML ({error}); copy the model again") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path} must hold sections of settings, got {type(settings).__name__}; copy the model again")
    return settings


def trained_on(folder: Path) -> DataConfig | None:
    """The data section of the run.yaml beside a model, or None if there is none."""
    data = (read_run(folder) or {}).get("data")
    return None if data is None else from_dict(DataConfig, data, where=str(folder / RUN))


def is_exported(folder: Path) -> bool:
    """Whether the folder's run.yaml was written by an export, which leaves out where files were."""
    return isinstance((read_run(folder) or {}).get("record"), dict)


def portable_data(data: DataConfig) -> DataConfig:
    """The settings without the folders of one machine."""
    return replace(
        data,
        source=portable_source(data.source),
        validation=portable_source(data.validation),
        test=portable_source(data.test),
        tokenizer=last_name(data.tokenizer) if _is_local(data.tokenizer) else data.tokenizer,
        cache="",
        num_workers=0,
    )


def portable_source(spec: str) -> str:
    """A source without the folder of its file: text8:text8.xz for text8:/data/text8.xz. Names and amounts stay."""
    if not spec or spec.startswith("hub:") or parse_amount(spec) is not None:
        return spec
    prefix = re.match(r"text8:|zeroshot:[^:]*:?", spec)
    start = prefix.end() if prefix else 0
    return spec[:start] + last_name(spec[start:])


def portable_name(spec: str) -> str:
    """A model without its folder: ar:text8-ar for ar:runs/text8-ar. A hub name that is no folder here stays."""
    kind, colon, name = spec.rpartition(":")
    return f"{kind}{colon}{last_name(name) if _is_local(name) else name}"


def last_name(path: str) -> str:
    """The part of a path after its last separator."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _is_local(name: str) -> bool:
    """Whether a name can be a path only, not a hub repository's owner/name."""
    return Path(name).expanduser().exists() or not re.fullmatch(r"\w[\w.-]*/[\w.-]+", name)
