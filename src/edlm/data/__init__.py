"""Text in, blocks of tokens out. Only the settings are loaded at once; the rest, and numpy with it, when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edlm.data.config import DataConfig

if TYPE_CHECKING:
    from edlm.data.blocks import Blocks
    from edlm.data.corpus import Corpus, prepare

__all__ = ["Blocks", "Corpus", "DataConfig", "prepare"]

_HOMES = {"Blocks": "edlm.data.blocks", "Corpus": "edlm.data.corpus", "prepare": "edlm.data.corpus"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edlm.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
