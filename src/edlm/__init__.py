"""Energy-based diffusion language models."""

from pathlib import Path
from typing import TYPE_CHECKING

from edlm._version import __version__

if TYPE_CHECKING:
    from edlm.models.autoregressive import Autoregressive
    from edlm.models.denoiser import Denoiser
    from edlm.models.energy_network import EnergyNetwork

__all__ = ["__version__", "load"]


def load(name: str | Path, *, revision: str | None = None) -> "Denoiser | Autoregressive | EnergyNetwork":
    """The model called `name`: a folder, a training run, a built-in model, a file or a hub repository, in this order.

    It is in eval mode, float32, on the CPU, with its tokenizer as `model.tokenizer`. `revision` is of a hub repository.
    Built-in are text8-nano-denoiser and its like; `edlm info` lists them. A file is a checkpoint in a public form.
    """
    from edlm.models.load import load_model  # here, so that importing edlm does not load torch

    return load_model(name, revision=revision)
