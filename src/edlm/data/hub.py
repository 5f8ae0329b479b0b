"""Data sets of the Hugging Face hub (or a local folder that `datasets` understands), read document by document."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edlm.data.config import DataConfig
from edlm.data.documents import Piece, whole_document
from edlm.data.files import require_field, require_text
from edlm.data.source import Source
from edlm.errors import UserError

if TYPE_CHECKING:
    import datasets

SPEC = re.compile(r"hub:(?P<name>[^:@]+)(:(?P<config>[^@]+))?(@(?P<split>.+))?")


def hub_source(spec: str, config: DataConfig) -> Source:
    """The source for `hub:NAME[:CONFIG][@SPLIT]`; the split is `train` unless named."""
    match = SPEC.fullmatch(spec)
    if match is None:
        raise UserError(
            f"source {spec!r} must look like hub:NAME[:CONFIG][@SPLIT]; for example hub:roneneldan/TinyStories"
        )
    name, split = match["name"], match["split"] or "train"
    builder = _builder(spec, name, match["config"])
    size = builder.info.splits[split].num_examples if split in (builder.info.splits or {}) else None
    return Source(
        f"{spec}, split {split}" if match["split"] is None else spec,
        identity={
            "hub": name,
            "config": builder.config_id,
            "hash": builder.hash,
            "split": split,
            "field": config.text_field,
        },
        pieces=lambda: _read(spec, builder, split, config),
        total=size or None,
        total_unit=" documents",
    )


def _builder(spec: str, name: str, config_name: str | None) -> "datasets.DatasetBuilder":
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"source {spec!r} needs the datasets package; run: pip install datasets") from error
    _require_reachable(spec, name)
    try:
        return datasets.load_dataset_builder(name, config_name)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"cannot open {spec!r}: {_one_line(error)}; check its name, config and access") from error


def _require_reachable(spec: str, name: str) -> None:
    """Ask once with a short timeout: `datasets` itself would retry for half a minute before it gave up."""
    if Path(name).exists() or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().dataset_info(name, timeout=10)
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(f"no data set {name!r} on the hub, and no such folder; check the name in {spec!r}") from error
    except HfHubHTTPError as error:
        raise UserError(f"the hub refuses {spec!r}: {_one_line(error)}; check your access") from error
    except Exception as error:  # the hub's client raises those of its own network library
        remedy = "connect, or set HF_HUB_OFFLINE=1 if the set is already in the local cache"
        raise UserError(f"cannot reach the hub for {spec!r} ({_one_line(error)}); {remedy}") from error


def _read(spec: str, builder: "datasets.DatasetBuilder", split: str, config: DataConfig) -> Iterator[Piece]:
    rows = _rows(spec, builder, split, config.streaming)
    for number, row in enumerate(rows):
        where = f"{spec}, row {number}"
        require_field(list(row), config.text_field, where)
        yield from whole_document(require_text(row[config.text_field], config.text_field, where), where, number + 1)


def _rows(spec: str, builder: "datasets.DatasetBuilder", split: str, streaming: bool) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        if streaming:
            yield from builder.as_streaming_dataset(split=split)
        else:
            builder.download_and_prepare()
            yield from builder.as_dataset(split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"cannot read {spec!r}: {_one_line(error)}; check its split, access and free disk") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
