"""What sampling costs on paper: how much arithmetic a setting needs, and how long a machine of known speed takes.

Legend: B batch, K candidates, L positions, D width, V vocabulary, T steps.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from edlm.scoring import LEAST_SHARED, PASS_TOKENS


@dataclass(frozen=True)
class Setting:
    """One way to sample, with networks of one size for denoiser and energy."""

    num_layers: int
    width: int
    vocab_size: int
    length: int
    batch_size: int
    steps: int
    candidates: int = 1
    window: float = 1.0
    energy: str = "coar"

    @property
    def label(self) -> str:
        text = f"T={self.steps}"
        if self.candidates > 1:
            text += f", k={self.candidates}, w={self.window:g}"
        return text if self.batch_size == 1 else f"{text}, batch {self.batch_size}"


@dataclass(frozen=True)
class Work:
    """Arithmetic in floating-point operations, and how often a network is called."""

    network: float = 0.0
    vocabulary: float = 0.0
    calls: float = 0.0

    @property
    def total(self) -> float:
        return self.network + self.vocabulary

    def __add__(self, other: "Work") -> "Work":
        return Work(self.network + other.network, self.vocabulary + other.vocabulary, self.calls + other.calls)

    def __mul__(self, times: float) -> "Work":
        return Work(times * self.network, times * self.vocabulary, times * self.calls)


@dataclass(frozen=True)
class Speed:
    """A machine: operations per second inside the network and in the vocabulary's projection, seconds per call."""

    network: float
    vocabulary: float
    call: float

    def seconds(self, work: Work) -> float:
        return work.network / self.network + work.vocabulary / self.vocabulary + work.calls * self.call


def network_work(setting: Setting, tokens: float, *, context: float | None = None) -> float:
    """One sequence of so many tokens through the blocks: 24 D^2 a token and layer, and attention 4 D per pair."""
    D, seen = setting.width, tokens if context is None else context
    return setting.num_layers * tokens * (24 * D**2 + 4 * D * seen)


def projection_work(setting: Setting, rows: float) -> float:
    """So many positions through the last matrix."""
    return 2 * rows * setting.width * setting.vocab_size


def step_work(setting: Setting, t: float, s: float) -> Work:
    """The expected work of the step t -> s (log-linear schedule), as the library does it."""
    L = setting.length
    masked, rho = L * t, (t - s) / t
    takes_part = 1 - (1 - rho) ** masked  # whether a sequence reveals anything at all
    resamples = setting.candidates > 1 and t >= 1 - setting.window - 1e-9 and setting.window > 0
    denoiser = Work(network_work(setting, L), projection_work(setting, masked if resamples else masked * rho), 1)
    if not resamples:
        return denoiser * (setting.batch_size * takes_part)
    calls = math.ceil(setting.batch_size * setting.candidates * L / PASS_TOKENS["cpu"]) / setting.batch_size
    return (denoiser + Work(*energy_work(setting, masked), calls)) * (setting.batch_size * takes_part)


def energy_work(setting: Setting, masked: float) -> tuple[float, float]:
    """Network and vocabulary work of all candidates of one sequence with so many masked tokens."""
    L, K = setting.length, setting.candidates
    if setting.energy == "nce":
        return K * network_work(setting, L), 0.0
    shared = L / (masked + 1)  # expected place of the first masked token, and of the last from the end
    unread = shared if setting.energy == "coar" else 0.0
    rows = masked if setting.energy == "coar" else L
    if shared < LEAST_SHARED:
        return K * network_work(setting, L - unread), K * projection_work(setting, rows)
    own = L - unread - shared
    network = network_work(setting, shared) + K * network_work(setting, own, context=L - unread)
    return network, K * projection_work(setting, min(rows, own))


def work(setting: Setting) -> Work:
    """The expected work of drawing one batch on the uniform grid."""
    times = [1 - n / setting.steps for n in range(setting.steps + 1)]
    total = Work()
    for t, s in pairwise(times):
        total += step_work(setting, t, s)
    return total
