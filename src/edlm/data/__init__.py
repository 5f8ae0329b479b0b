"""Text in, blocks of tokens out."""

from edlm.data.blocks import Blocks
from edlm.data.config import DataConfig
from edlm.data.corpus import Corpus, prepare

__all__ = ["Blocks", "Corpus", "DataConfig", "prepare"]
