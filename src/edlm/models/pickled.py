"""PyTorch checkpoint files of others, read without running anything that is in them.

A pickle is a program: it may call any function that it can name. `torch.load(weights_only=True)` runs one on a machine
that knows tensors and plain containers only, and stops at the first other name. That alone would refuse the public
Lightning checkpoints, which keep an OmegaConf tree and a tokenizer beside their weights. So names from the packages
that such checkpoints use (`PACKAGES`) are given to that machine as classes of ours that do nothing: one can be made
and keeps its state, and no code of the real class is imported or called. What is in the tree can then be looked up
(`lookup`). A file with any other name, `os.system` or `builtins.exec` or a class nobody knows, is refused as a whole.
"""

import builtins
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edlm.errors import UserError

# fmt: off
PACKAGES = frozenset([
    "antlr4", "argparse", "collections", "copyreg", "datetime", "enum", "functools", "hydra", "lightning", "numpy",
    "lightning_fabric", "omegaconf", "pathlib", "pytorch_lightning", "tokenizers", "torch", "torchmetrics",
    "transformers", "typing",
])
# fmt: on
"""Packages whose names a checkpoint may hold; of `builtins` it may hold types."""


class Inert:
    """Stands for an object of a class that is not loaded: what it was made with is ignored, its state only kept."""

    state: Any

    def __new__(cls, *_: Any, **__: Any) -> "Inert":
        self = object.__new__(cls)
        self.state = None
        return self

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The dictionary that `torch.save` wrote to a file; its tensors are mapped from the file, not read before used."""
    _check_archive(path)
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        _require_harmless(path, unknown)
        with torch.serialization.safe_globals([(_stand_in(name), name) for name in unknown]):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UserError:
        raise
    except Exception as error:  # a damaged or hostile pickle can fail in any way
        text = " ".join(str(error).split())
        reason = (text.partition("WeightsUnpickler error: ")[2] or text)[:160] or type(error).__name__
        raise UserError(f"{path} is damaged or no plain checkpoint ({reason}); fetch it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, expected a dictionary with state_dict")
    return content


def require_tensors(values: Any, where: str) -> dict[Any, Tensor]:
    """A dictionary of ordinary tensors, refused if a value is anything else.

    Sparse tensors, tensors without storage and views that repeat a few numbers could stand for more numbers than any
    memory holds.
    """
    if not isinstance(values, dict):
        raise UserError(f"{where} is missing or no dictionary; it is not a checkpoint of a model")
    for name, value in values.items():
        is_ordinary = isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"
        if not is_ordinary or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UserError(f"{where}: {name} is not an ordinary tensor; fetch the file again")
    return values


def lookup(tree: Any, *path: str) -> Any:
    """The value at a path of keys in nested dictionaries, plain ones or OmegaConf's; None if there is none."""
    for key in path:
        tree = _content(tree)
        tree = tree.get(key) if isinstance(tree, dict) else None
    return _content(tree)


def _content(value: Any) -> Any:
    """What an OmegaConf node holds: a container's dictionary or list, a leaf's value; any other value itself."""
    if not isinstance(value, Inert):
        return value
    state = value.state if isinstance(value.state, dict) else {}
    return state.get("_content", state.get("_val"))


def _require_harmless(path: Path, names: list[str]) -> None:
    """Refuse a file that names anything which weights and settings have no use for."""
    for name in sorted(names):
        package, _, rest = name.partition(".")
        if package not in PACKAGES and not (package == "builtins" and isinstance(getattr(builtins, rest, None), type)):
            remedy = "nothing of it was run; do not load it with other programs, and fetch it from who made it"
            raise UserError(f"{path} names {name}, which no weights or settings need; {remedy}")


def _stand_in(name: str) -> Any:
    if name == "collections.defaultdict":
        return _empty_dict  # the machine puts items into plain dictionaries only
    return type(name.rpartition(".")[2], (Inert,), {})


def _empty_dict(*_: Any) -> dict[Any, Any]:
    return {}


def _check_archive(path: Path) -> None:
    """Refuse what is not a whole archive of plain, uncompressed records, before anything of it is unpacked."""
    if not path.is_file():
        raise UserError(f"there is no checkpoint file {path}; check the name")
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except PermissionError:
        raise
    except Exception as error:  # zipfile has many words for a directory that makes no sense
        remedy = "fetch it again; one from before PyTorch 1.6 has to be saved anew with a later PyTorch"
        raise UserError(f"{path} is truncated, damaged or no PyTorch checkpoint ({error}); {remedy}") from error
    is_packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
    if is_packed or sum(record.file_size for record in records) > path.stat().st_size:
        raise UserError(f"{path} unpacks to more than its size, which no PyTorch checkpoint does; fetch it again")
