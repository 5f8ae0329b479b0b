"""Noise schedules: how many tokens are still clean at time t.

Time runs from t = 0 (clean) to t = 1 (all masked). A schedule gives

    alpha(t)   the chance that a token is still clean,
    rate(t)    -alpha'(t) / (1 - alpha(t)), the weight of time t in the continuous-time bound (paper eq. 13),
    time(a)    the inverse of alpha, for estimators that choose the masked fraction first.

Every schedule here runs exactly from alpha(0) = 1 to alpha(1) = 0, so the all-masked sequence is the true end of the
forward process and no bound needs a prior term. Public code often stops at alpha(1) = eps instead; the reveal
probability of a step does not change when 1 - alpha is multiplied by a constant, so the two samplers are the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from edlm.errors import UserError


class Schedule(Protocol):
    """What the forward process, the bounds and the samplers ask of a schedule. All functions are elementwise."""

    def alpha(self, t: Tensor) -> Tensor: ...

    def rate(self, t: Tensor) -> Tensor: ...

    def time(self, alpha: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LogLinear:
    """alpha(t) = 1 - t: the log of the clean fraction's complement is linear in log t. MDLM's default, and ours."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t

    def rate(self, t: Tensor) -> Tensor:
        return 1 / t

    def time(self, alpha: Tensor) -> Tensor:
        return 1 - alpha


@dataclass(frozen=True)
class Linear:
    """The noise level -log(alpha) grows linearly up to `level`, rescaled to reach alpha(1) = 0 exactly."""

    level: float = 10.0

    def __post_init__(self) -> None:
        if not self.level > 0:
            raise UserError(f"level of the linear schedule must be positive, got {self.level}")

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - torch.expm1(-self.level * t) / math.expm1(-self.level)

    def rate(self, t: Tensor) -> Tensor:
        return self.level / torch.expm1(self.level * t)

    def time(self, alpha: Tensor) -> Tensor:
        return -torch.log1p((1 - alpha) * math.expm1(-self.level)) / self.level


@dataclass(frozen=True)
class Cosine:
    """alpha(t) = 1 - sin(pi t / 2): reveals few tokens in the early reverse steps, when little context is known."""

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - torch.sin(t * math.pi / 2)

    def rate(self, t: Tensor) -> Tensor:
        return (math.pi / 2) / torch.tan(t * math.pi / 2)

    def time(self, alpha: Tensor) -> Tensor:
        return torch.asin(1 - alpha) * 2 / math.pi


@dataclass(frozen=True)
class Polynomial:
    """alpha(t) = 1 - t**exponent."""

    exponent: float = 2.0

    def __post_init__(self) -> None:
        if not self.exponent > 0:
            raise UserError(f"exponent of the polynomial schedule must be positive, got {self.exponent}")

    def alpha(self, t: Tensor) -> Tensor:
        return 1 - t**self.exponent

    def rate(self, t: Tensor) -> Tensor:
        return self.exponent / t

    def time(self, alpha: Tensor) -> Tensor:
        return (1 - alpha) ** (1 / self.exponent)


SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "log-linear": LogLinear,
    "linear": Linear,
    "cosine": Cosine,
    "polynomial": Polynomial,
}


def make_schedule(name: str) -> Schedule:
    """The schedule of that name with its default parameters."""
    if name not in SCHEDULES:
        *others, last = SCHEDULES
        raise UserError(f"unknown schedule {name!r}; choose {', '.join(others)} or {last}")
    return SCHEDULES[name]()


def reveal_probability(schedule: Schedule, t: Tensor, s: Tensor) -> Tensor:
    """Chance that one masked token is revealed in the reverse step t -> s.

    rho = (alpha(s) - alpha(t)) / (1 - alpha(t)). At s = 0 it is exactly one: the last step reveals everything.
    """
    return (schedule.alpha(s) - schedule.alpha(t)) / (1 - schedule.alpha(t))


def uniform_times(num_steps: int) -> Tensor:
    """The grid 1 = t_0 > t_1 > ... > t_T = 0 with equal steps, in float64: (T + 1,)."""
    if num_steps < 1:
        raise UserError(f"steps must be at least 1, got {num_steps}")
    return torch.linspace(1, 0, num_steps + 1, dtype=torch.float64)
