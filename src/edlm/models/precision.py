"""Weights in fewer bits, on disk or in use. A model of ours is loaded as float32 whatever the file holds."""

import torch
from torch import Tensor, nn

from edlm.errors import UserError

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def rounded(weights: dict[str, Tensor], precision: str) -> dict[str, Tensor]:
    """The weights in a precision of `PRECISIONS`; one that would not be finite there is refused, never clipped."""
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}; choose {', '.join(PRECISIONS)}")
    for name, tensor in weights.items():
        _require_finite(name, tensor, precision, "store it as bfloat16 or float32")
    return {name: tensor.detach().to(PRECISIONS[precision]) for name, tensor in weights.items()}


def require_holdable(model: nn.Module, precision: str) -> None:
    """Refuse a precision in which a weight of the model would not be finite."""
    for name, weight in model.named_parameters():
        _require_finite(name, weight, precision, "choose bfloat16 or float32")


def _require_finite(name: str, tensor: Tensor, precision: str, remedy: str) -> None:
    if not torch.isfinite(tensor.detach().to(PRECISIONS[precision])).all():
        largest = tensor.abs().max().item()
        remedy = remedy if torch.isfinite(tensor).all() else "train it again"
        raise UserError(f"{name} has a weight of size {largest:g}, which {precision} cannot hold; {remedy}")


def round_weights(model: nn.Module, precision: str) -> None:
    """Give a model the values that its weights would have after being stored and loaded again."""
    model.load_state_dict(rounded(model.state_dict(), precision))
