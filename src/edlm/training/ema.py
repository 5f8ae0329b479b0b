"""A moving average of the weights: what is evaluated and shipped."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


class MovingAverage:
    """Averages the parameters of a model, with a short memory at first: decay_n = min(decay, (1 + n) / (10 + n))."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.average: dict[str, Tensor] = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after optimizer step number `step` (counted from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [p.detach() for p in self.model.parameters()]
        torch._foreach_lerp_(list(self.average.values()), current, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, bit for bit."""
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._write(self.average)
        try:
            yield
        finally:
            self._write(own)

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Set the average to whole tensors, which are split like the parameters if those are sharded."""
        for name, average in self.average.items():
            whole = weights[name].to(average.device)
            if isinstance(average, DTensor):
                whole = distribute_tensor(whole, average.device_mesh, average.placements)
            average.copy_(whole)

    @torch.no_grad()
    def _write(self, weights: dict[str, Tensor]) -> None:
        for name, p in self.model.named_parameters():
            p.copy_(weights[name])
