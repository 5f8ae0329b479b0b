"""AdamW, or Muon: momentum whose update is made orthogonal, for the matrices of the blocks; AdamW for the rest.

Muon is Keller Jordan's (2024). `torch.optim.Muon` iterates in bfloat16, which CPUs emulate at a crawl; this one keeps
the gradient's own precision, and shares a step with the AdamW that trains everything else.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from edlm.training.config import OptimConfig

MOMENTUM = 0.95
NUM_ITERATIONS = 5
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315  # steep at zero: five iterations bring singular values near one


def make_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that the settings name; weight decay on matrices only."""
    matrices = {name: p for name, p in model.named_parameters() if p.ndim >= 2}
    vectors = {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}
    settings: dict[str, Any] = {"lr": optim.learning_rate, "betas": (optim.beta1, optim.beta2)}
    if optim.name == "adamw":
        groups = [{"params": list(matrices.values()), "weight_decay": optim.weight_decay}, vectors]
        return torch.optim.AdamW(groups, **settings)
    # Embedding and head are matrices too, but rows of tokens, not maps between hidden states: they stay with AdamW.
    inside = [p for name, p in matrices.items() if "blocks." in name]
    outside = [p for name, p in matrices.items() if "blocks." not in name]
    decay = {"weight_decay": optim.weight_decay}
    return Muon([{"params": inside, "muon": True} | decay, {"params": outside} | decay, vectors], **settings)


def orthogonalise(matrix: Tensor) -> Tensor:
    """The matrix with its singular values moved to about one (0.7 to 1.2), by Newton-Schulz iteration."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = LINEAR * x + (CUBIC * gram + QUINTIC * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.AdamW):
    """AdamW, except in groups marked `"muon": True`, whose matrices move along the orthogonalised momentum.

    The step is scaled to the root mean square of an Adam step, so that one learning rate serves both.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        super().__init__([{"muon": False} | group for group in groups], **settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        assert closure is None, "a closure would see half a step"
        for group in self.param_groups:
            if group["muon"]:
                for weight in cast(list[Tensor], group["params"]):
                    self._move(weight, group["lr"], group["weight_decay"])
        return super().step()

    def _move(self, weight: Tensor, learning_rate: float, weight_decay: float) -> None:
        if weight.grad is None:
            return
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
            state["step"] = torch.zeros(())  # not used here, but AdamW's way of loading a state asks for it
        state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
        update = orthogonalise(weight.grad.lerp(state["momentum"], MOMENTUM))  # looks one step ahead, as Nesterov
        weight.mul_(1 - learning_rate * weight_decay)
        weight.add_(update, alpha=-learning_rate * 0.2 * math.sqrt(max(weight.shape)))
        weight.grad = None  # so that AdamW leaves it alone
