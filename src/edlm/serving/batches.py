"""Sequences of several requests in one batch of a sampler, each at its own step, and each free to leave at any time.

Legend: B rows, L positions.

Every row draws from a stream of its own, so its text does not depend on who else is in the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import torch
from torch import Tensor

from edlm import causal_sampler, sampler
from edlm.causal_sampler import Reading
from edlm.generation import require_denoiser
from edlm.importance import ImportanceSampling, make_importance
from edlm.models.autoregressive import Autoregressive
from edlm.randomness import make_generator
from edlm.sampler import State
from edlm.schedule import uniform_times
from edlm.serving.orders import Task


@dataclass(frozen=True)
class Row:
    """Where one sequence is after a step."""

    tokens: list[int]
    num_final: int
    """Tokens before the first mask."""


class Batch(Protocol):
    """Tasks of one key that are drawn together."""

    @property
    def is_open(self) -> bool:
        """Whether more tasks can join."""

    def __len__(self) -> int: ...

    def add(self, task: Task) -> None:
        """One more row, behind the others."""

    def step(self) -> None:
        """One step of the sampler for every row."""

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows."""

    def rows(self) -> Iterator[Row]:
        """Where each row is."""


def make_batch(task: Task) -> Batch:
    """An empty batch that the task can join."""
    return CausalBatch(task) if task.model.is_causal else DiffusionBatch(task)


@final
class DiffusionBatch:
    """Rows of one length and one setting. They may have different numbers of steps, and join between any two."""

    is_open = True

    def __init__(self, like: Task) -> None:
        self._denoiser, self._temperature = require_denoiser(like.model.model), like.settings.temperature
        self._importance = importance_of(like)
        self._tasks: list[Task] = []
        self._steps: list[int] = []
        self._state: State | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Task) -> None:
        new = init_rows([task], len(task.fixed))
        self._state = new if self._state is None else join(self._state, new)
        self._tasks.append(task)
        self._steps.append(0)

    @torch.no_grad()
    def step(self) -> None:
        assert self._state is not None
        times = [uniform_times(task.steps)[n : n + 2] for task, n in zip(self._tasks, self._steps, strict=True)]
        t, s = torch.stack(times, dim=1)  # (B,) each
        self._state, _ = sampler.step(
            self._state, self._denoiser, t, s, temperature=self._temperature, importance=self._importance
        )
        self._steps = [n + 1 for n in self._steps]

    def keep(self, rows: Sequence[int]) -> None:
        assert self._state is not None
        self._tasks, self._steps = [self._tasks[i] for i in rows], [self._steps[i] for i in rows]
        self._state = select(self._state, rows)

    def rows(self) -> Iterator[Row]:
        assert self._state is not None
        return read_rows(self._state.x, self._denoiser.mask_id)


@final
class CausalBatch:
    """Rows of one prompt length, which read and write in step; nobody joins once they have begun."""

    def __init__(self, like: Task) -> None:
        assert isinstance(like.model.model, Autoregressive)
        self._model, self._temperature = like.model.model, like.settings.temperature
        self._tasks: list[Task] = []
        self._state: State | None = None
        self._reading: Reading | None = None

    @property
    def is_open(self) -> bool:
        return self._state is None

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: Task) -> None:
        self._tasks.append(task)

    def step(self) -> None:
        if self._state is None:
            self._state = init_rows(self._tasks, max(len(task.fixed) for task in self._tasks))
        if self._reading is None:
            self._reading = causal_sampler.begin(self._state, self._model)
        self._state, _, self._reading = causal_sampler.step(
            self._state, self._model, self._reading, temperature=self._temperature
        )

    def keep(self, rows: Sequence[int]) -> None:
        self._tasks = [self._tasks[i] for i in rows]
        if self._state is not None and self._reading is not None:
            self._state = select(self._state, rows)
            self._reading = self._reading.select(torch.as_tensor(rows, device=self._state.x.device))

    def rows(self) -> Iterator[Row]:
        assert self._state is not None
        return read_rows(self._state.x, self._model.start_id)


def importance_of(task: Task) -> ImportanceSampling | None:
    settings = task.settings
    if settings.energy is None:
        return None
    energy = task.model.energies[settings.energy]
    return make_importance(energy, settings.candidates, settings.window, completions=settings.completions)


def init_rows(tasks: Sequence[Task], length: int) -> State:
    """The tasks before their first step, all lengthened by masks to `length`."""
    model = tasks[0].model
    fixed = torch.full((len(tasks), length), model.mask_id)
    for row, task in zip(fixed, tasks, strict=True):
        row[: len(task.fixed)] = task.fixed
    generators = [make_generator(task.seed, task.index) for task in tasks]
    device = next(model.model.parameters()).device
    return sampler.init(length, generators, model.mask_id, fixed=fixed, device=device)


def join(state: State, other: State) -> State:
    """The rows of both. How many steps were made is not a number that they share."""
    return replace(
        state,
        x=torch.cat([state.x, other.x]),
        generators=[*state.generators, *other.generators],
        denoiser_evaluations=together(state.denoiser_evaluations, other.denoiser_evaluations),
        energy_evaluations=together(state.energy_evaluations, other.energy_evaluations),
        is_fixed=together(state.is_fixed, other.is_fixed),
    )


def together(first: Tensor | None, second: Tensor | None) -> Tensor:
    assert first is not None and second is not None
    return torch.cat([first, second])


def select(state: State, rows: Sequence[int]) -> State:
    """Some of the rows."""
    assert state.denoiser_evaluations is not None and state.energy_evaluations is not None
    assert state.is_fixed is not None
    which = torch.as_tensor(rows, dtype=torch.long)
    return replace(
        state,
        x=state.x[which.to(state.x.device)],
        generators=[state.generators[i] for i in rows],
        denoiser_evaluations=state.denoiser_evaluations[which],
        energy_evaluations=state.energy_evaluations[which],
        is_fixed=state.is_fixed[which.to(state.x.device)],
    )


def read_rows(x: Tensor, mask_id: int) -> Iterator[Row]:
    """Each row's tokens, and how many come before its first mask."""
    is_masked = x == mask_id
    first = torch.where(is_masked.any(-1), is_masked.int().argmax(-1), x.shape[1])
    return (Row(*row) for row in zip(x.tolist(), first.tolist(), strict=True))
