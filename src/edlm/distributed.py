"""Several processes that share out a list of work, as started by torchrun; one process is the plain case."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def agree(self, value: T) -> T:
        """The first process's value, for all."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Every process's value, for all."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


@contextmanager
def join_world() -> Iterator[World]:
    """The processes that torchrun started, or this one alone. Values travel over the CPU, whatever computes them."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield World()
        return
    if torch.cuda.is_available():  # one GPU each
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    dist.init_process_group("gloo")
    try:
        yield World(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
