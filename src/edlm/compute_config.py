"""Where and how networks compute: settings only, so that the command line can show them without loading torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ComputeConfig:
    """Where and how networks compute."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the networks' weights and hidden states; auto is bfloat16 on GPUs that have it, else float32. Log-probabilities, energies and the weights of candidates are float32 or float64 in any case."""  # noqa: E501
    compile: bool = False
    """Compile the networks with torch.compile: the first passes take long, the later ones less. For GPUs: on a CPU
    compiled networks take slower matrix products."""


FULL = ComputeConfig(precision="float32")
"""For numbers that are to be compared: float32 wherever they are made."""
