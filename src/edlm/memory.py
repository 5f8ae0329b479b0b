"""How much memory is free, so that work can be cut into pieces that fit."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

SHARE = 4
"""A piece may take one part in so many of what is free."""
PASS_TOKENS = {"cpu": 1 << 10, "cuda": 1 << 16}
"""Tokens that one pass through a network may have: enough to keep the processor busy. On a CPU what a layer hands on
should stay near it: with more tokens the same arithmetic takes longer."""
TOKEN_BYTES = 1 << 17
"""Memory that a token in a pass may need, generously: a few hidden states of a large network."""
MEMINFO = Path("/proc/meminfo")
UNKNOWN = 1 << 60
_IS_WHOLE = ContextVar("is_whole", default=False)


def free_memory(device: torch.device) -> int:
    """Bytes that could be had now: on a GPU also what PyTorch holds without using it. Very many if nobody knows."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu" and MEMINFO.is_file():
        lines = MEMINFO.read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), UNKNOWN)
    return UNKNOWN


def fitting(wanted: int, size: int, device: torch.device) -> int:
    """How many things of `size` bytes to make at a time: as many as are `wanted`, or fewer where memory is short."""
    return max(1, min(wanted, free_memory(device) // SHARE // size))


def pass_tokens(device: torch.device) -> int:
    """Tokens of one pass: a fixed number, or fewer if little memory is left."""
    return fitting(PASS_TOKENS.get(device.type, PASS_TOKENS["cpu"]), TOKEN_BYTES, device)


@contextmanager
def whole_passes() -> Iterator[None]:
    """Inside, nothing is cut into passes: processes that share a network's weights must make the same ones, and into
    how many the work of each would be cut depends on what it holds."""
    before = _IS_WHOLE.set(True)
    try:
        yield
    finally:
        _IS_WHOLE.reset(before)


def in_one_pass() -> bool:
    """Whether everything goes through a network at once: inside `whole_passes`, and while gradients are recorded, since
    the backward pass keeps all of it anyway."""
    return torch.is_grad_enabled() or _IS_WHOLE.get()
