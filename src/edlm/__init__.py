"""Energy-based diffusion language models."""

from pathlib import Path
from typing import TYPE_CHECKING

from edlm._version import __version__

if TYPE_CHECKING:
    from edlm.models.load import AnyModel

__all__ = ["__version__", "load"]


def load(name: str | Path, *, revision: str | None = None) -> "AnyModel":
    """The model called `name`: a folder, a training run, a built-in model, a file or a hub repository, in this order.

    It is in eval mode, float32, on the CPU, with its tokenizer as `model.tokenizer`. `revision` is of a hub repository.
    Built-in are text8-nano-denoiser and its like; `edlm info` lists them. Checkpoints in MDLM's public forms become
    models of ours. Masked and causal models of `transformers` are found in the same way, the one as a denoiser, the
    other as what energies are made of; `mlm:` in front of a name says that it is a masked one. GGUF and llama2.c files
    are causal.
    """
    from edlm.models.load import load_model  # here, so that importing edlm does not load torch

    return load_model(name, revision=revision)
