"""What sampling costs on paper: how much arithmetic a setting needs, and how long a machine of known speed takes.

Legend: B batch, K candidates, L positions, D width, V vocabulary, T steps.
"""

import math
from dataclasses import astuple, dataclass
from itertools import pairwise

from edlm.memory import PASS_TOKENS
from edlm.scoring import LEAST_SHARED


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
    """Arithmetic in floating-point operations, how often a network is called, and in how many steps."""

    network: float = 0.0
    drawn: float = 0.0
    """Projecting onto the vocabulary to draw."""
    scored: float = 0.0
    """Projecting onto the vocabulary for the log-probability of given tokens."""
    calls: float = 0.0
    steps: float = 0.0

    @property
    def total(self) -> float:
        return self.network + self.drawn + self.scored

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Speed:
    """A machine: operations per second of each kind, seconds of a call and of a step besides."""

    network: float
    drawn: float
    scored: float
    call: float
    step: float = 0.0

    def seconds(self, work: Work) -> float:
        arithmetic = work.network / self.network + work.drawn / self.drawn + work.scored / self.scored
        return arithmetic + work.calls * self.call + work.steps * self.step


def on_gpu(setting: Setting, *, speed: float, bandwidth: float, call: float = 2e-3) -> Speed:
    """A GPU on paper, which does all arithmetic at one speed.

    A call reads the weights of all blocks, two bytes each, and waits `call` seconds for its kernels to be started.
    """
    weights = 12 * setting.num_layers * setting.width**2
    return Speed(speed, speed, speed, call + 2 * weights / bandwidth)


def network_work(
    setting: Setting, tokens: float, *, needed: float | None = None, context: float | None = None
) -> float:
    """One sequence of so many tokens through the blocks: 24 D^2 a token and layer, and attention 4 D per pair.

    Where only the hidden states of some are `needed`, the last block saves what follows attention, 18 D^2, elsewhere.
    """
    D, seen = setting.width, tokens if context is None else context
    spared = 0.0 if needed is None else tokens - needed
    return setting.num_layers * tokens * (24 * D**2 + 4 * D * seen) - 18 * D**2 * spared


def projection_work(setting: Setting, rows: float) -> float:
    """So many positions through the last matrix."""
    return 2 * rows * setting.width * setting.vocab_size


def work(setting: Setting, *, device: str = "cpu") -> Work:
    """The expected work of drawing one batch on the uniform grid."""
    times = [1 - n / setting.steps for n in range(setting.steps + 1)]
    total = Work()
    for t, s in pairwise(times):
        total += step_work(setting, t, s, device=device)
    return total


def step_work(setting: Setting, t: float, s: float, *, device: str = "cpu") -> Work:
    """The expected work of the step t -> s (log-linear schedule), as the library does it.

    A sequence that reveals nothing takes no part; those that do share their calls.
    """
    masked, rho = setting.length * t, (t - s) / t
    takes_part = 1 - (1 - (t - s)) ** setting.length  # each token is revealed in this step with probability t - s
    rows = setting.batch_size * takes_part  # sequences that take part
    happens = 1 - (1 - takes_part) ** setting.batch_size
    drawn = masked if resamples(setting, t) else masked * rho
    calls = happens * math.ceil(rows * setting.length / PASS_TOKENS[device])
    network = network_work(setting, setting.length, needed=drawn)
    denoiser = Work(rows * network, rows * projection_work(setting, drawn), 0.0, calls)
    energy = energy_work(setting, masked, rows, device) if resamples(setting, t) else Work()
    return denoiser + energy + Work(steps=happens)


def resamples(setting: Setting, t: float) -> bool:
    return setting.candidates > 1 and t >= 1 - setting.window - 1e-9 and setting.window > 0


def energy_work(setting: Setting, masked: float, rows: float, device: str) -> Work:
    """All candidates of so many sequences with so many masked tokens each."""
    L, num = setting.length, rows * setting.candidates
    calls = math.ceil(num * L / PASS_TOKENS[device])
    if setting.energy == "nce":
        return Work(num * network_work(setting, L), calls=calls)
    shared = L / (masked + 1)  # expected place of the first masked token, and of the last from the end
    unread = shared if setting.energy == "coar" else 0.0
    scored = masked if setting.energy == "coar" else L
    if shared < LEAST_SHARED:
        network = network_work(setting, L - unread, needed=min(scored, L - unread))
        return Work(num * network, scored=num * projection_work(setting, scored), calls=calls)
    own = L - unread - shared
    front = network_work(setting, shared, needed=0.0 if setting.energy == "coar" else shared)
    back = network_work(setting, own, needed=min(scored, own), context=L - unread)
    return Work(rows * front + num * back, scored=num * projection_work(setting, min(scored, own)), calls=calls + 1)
