"""How much memory is free, so that work can be cut into pieces that fit."""

from pathlib import Path

import torch

SHARE = 4
"""A piece may take one part in so many of what is free."""
MEMINFO = Path("/proc/meminfo")
UNKNOWN = 1 << 60


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
