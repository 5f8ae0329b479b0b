"""Energy-based diffusion language models."""

from edlm._version import __version__
from edlm.api import load, sample, score

__all__ = ["__version__", "load", "sample", "score"]
