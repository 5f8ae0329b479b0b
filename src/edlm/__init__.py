"""Energy-based diffusion language models."""

from edlm._version import __version__

__all__ = ["__version__"]
