"""Weights in fewer bits: how they are stored. A model that is loaded has float32 weights whatever the file holds."""

import torch
from torch import Tensor, nn

from edlm.errors import UserError

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def rounded(weights: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    """The weights in a precision of `PRECISIONS`; one that would not be finite there is refused, never clipped."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}; choose {', '.join(PRECISIONS)}")
    result = {name: tensor.detach().to(PRECISIONS[precision]) for name, tensor in weights.items()}
    for name, tensor in result.items():
        if not torch.isfinite(tensor).all():
            largest = weights[name].abs().max().item()
            remedy = "store it as bfloat16 or float32" if torch.isfinite(weights[name]).all() else "train it again"
            raise UserError(f"{name} has a weight of size {largest:g}, which {precision} cannot hold; {remedy}")
    return result


def round_weights(model: nn.Module, precision: str) -> None:
    """Give a model the values that its weights would have after being stored and loaded again."""
    model.load_state_dict(rounded(model.state_dict(), precision))
