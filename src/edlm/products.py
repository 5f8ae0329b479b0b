"""Matrix products in float32 on a CPU: those of a linear layer, and of attention.

PyTorch leaves them to MKL, which on processors of other makers than Intel does not use the widest instructions, and so
half of what they can do. oneDNN, which PyTorch also has, uses them everywhere. Each function here is the PyTorch
function that it is named after, with the same result up to rounding; where oneDNN has nothing to give (GPUs, half
precision, tiny products, a PyTorch without it) it is that function.

Legend: n rows, I inputs, O outputs, B batch, H heads, L positions, D/H width of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEAST_WORK = 1 << 21
"""Multiplications from which on oneDNN's longer way to begin pays."""
LEAST_ATTENTION = 1 << 23
"""The same for the logits of one head, which PyTorch's own attention never writes down: from 512 positions on."""
QUERIES = 256
"""Queries that look at their keys together: the logits of one head stay near the processor."""
_is_on = True


@contextmanager
def of_pytorch() -> Iterator[None]:
    """Inside, all products are PyTorch's own: to compare with."""
    global _is_on
    before, _is_on = _is_on, False
    try:
        yield
    finally:
        _is_on = before


def _has_onednn() -> bool:
    """Whether this PyTorch would take MKL, and could take oneDNN."""
    built = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return built and hasattr(torch.ops.mkldnn, "_linear_pointwise")


HAS_ONEDNN = _has_onednn()


class Linear(nn.Linear):
    """A linear layer, if need be with a GELU behind it (its tanh form)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, gelu: bool = False) -> None:
        super().__init__(in_features, out_features, bias)
        self.gelu = gelu

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, gelu=self.gelu)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, gelu: bool = False) -> Tensor:
    """x W^T + b, (..., I) to (..., O), if need be with a GELU behind it."""
    if not _takes_onednn(x, weight, is_enough=x.numel() * weight.shape[0] >= LEAST_WORK):
        y = F.linear(x, weight, bias)
        return F.gelu(y, approximate="tanh") if gelu else y
    if not torch.is_grad_enabled():
        return _product(x.contiguous(), weight, bias, gelu=gelu)
    y = _Linear.apply(x.contiguous(), weight, bias)
    return F.gelu(y, approximate="tanh") if gelu else y


class _Linear(torch.autograd.Function):
    """The same with its gradients, which are products too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat, grad = x.view(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1]).contiguous()
        of_x = _product(grad, weight.t()).view(x.shape) if ctx.needs_input_grad[0] else None
        of_weight = _product(grad.t(), flat.t()) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, gelu: bool = False) -> Tensor:
    """x W^T + b. Both must lie in memory as they are or transposed: for anything else oneDNN is slow beyond use."""
    name, form = ("gelu", "tanh") if gelu else ("none", "")
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], form)


def _takes_onednn(x: Tensor, weight: Tensor, *, is_enough: bool) -> bool:
    if not (HAS_ONEDNN and _is_on and is_enough) or torch.compiler.is_compiling():
        return False
    is_plain = all(type(w) in (Tensor, nn.Parameter) and w.device.type == "cpu" for w in (x, weight))
    return is_plain and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def attention(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, attn_mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D/H)) v of queries, keys and values (B, H, L, D/H), in their shape."""
    length, width = q.shape[-2:]
    is_enough = attn_mask is None and min(length, QUERIES) * k.shape[-2] * width >= LEAST_ATTENTION
    if torch.is_grad_enabled() or not _takes_onednn(q, k, is_enough=is_enough):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=is_causal)
    y = q.new_empty(len(q), length, q.shape[1], width)  # what follows joins the heads: so it need not copy
    q, k, v = q * width**-0.5, k.contiguous(), v.contiguous()
    later = q.new_full((QUERIES, QUERIES), -torch.inf).triu(1) if is_causal else None
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for start in range(0, length, QUERIES):
                stop = min(start + QUERIES, length)
                seen = stop if is_causal else k.shape[-2]
                logits = _product(q[b, h, start:stop], k[b, h, :seen])
                if later is not None:
                    logits[:, start:] += later[: stop - start, : stop - start]
                y[b, start:stop, h] = _product(logits.softmax(-1), v[b, h, :seen].t())
    return y.transpose(1, 2)
