"""Which likelihood is measured, and with how much effort: settings only, so that help does not load torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from edlm.errors import UserError
from edlm.order_spec import DETERMINISTIC, parse_order

DEFAULT_STEPS = 64


@dataclass(frozen=True)
class LikelihoodConfig:
    """Which likelihood is measured, and with how much effort."""

    protocol: Literal["certified", "paper"] = "certified"
    """certified: an upper bound on the likelihood of the sampler that is named. paper: the paper's formula, for comparison with its tables; with an energy it is not a bound."""  # noqa: E501
    steps: int | None = None
    """T: steps of the sampler; 0 means the limit of many steps. By default 64 for a sampler with an energy, else 0."""
    candidates: Annotated[int | None, Parameter(parse=False)] = 2  # the command line has words for it
    """k: candidates of a step, of which the energy chooses one; None means the ideal sampler, k to infinity."""
    completions: int = 0
    """R: 0 weighs whole completions (the paper's Algorithm 1); 1 or more weighs candidates for what a step reveals, each with R completions that all share (reveal-first)."""  # noqa: E501
    smc: int = 0
    """0, or the positions of a block of sequential Monte Carlo, as in `edlm sample`."""
    lookahead: float = 0.0
    """With smc: how strongly the denoiser tells the causal model what is coming, as in `edlm sample`; 0 for particles from the denoiser."""  # noqa: E501
    ess: float = 0.0
    """0 for k candidates in every step, or the effective number of candidates that is enough: a step then doubles theirs until it is reached, up to k."""  # noqa: E501
    window: float = 1.0
    """w: the energy is used while t >= 1 - w."""
    order: str = "uniform"
    """What a step of the sampler reveals: uniform, confidence, entropy:NATS, remask-cap:SHARE or remask-rescale:SHARE, as in `edlm sample`."""  # noqa: E501
    inner: int = 8
    """R: draws averaged inside the logarithm of a step. More cost more and tighten a certified bound."""
    partition_samples: int = 16
    """n: draws behind each estimate of log Z, where one is needed: the paper's formula and the ideal sampler."""
    trajectories: int = 0
    """J: whole trajectories averaged inside the logarithm, a tighter bound for few steps; 0 looks at one step each."""
    seed: int = 0
    """Seeds masks and candidates. Not used by an autoregressive model."""

    def __post_init__(self) -> None:
        least = {
            "steps": 0,
            "candidates": 1,
            "inner": 1,
            "partition_samples": 1,
            "trajectories": 0,
            "seed": 0,
            "completions": 0,
            "smc": 0,
            "lookahead": 0,
            "ess": 0,
        }
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise UserError(f"{name.replace('_', '-')} must be at least {smallest}, got {value}")
        if not 0 <= self.window <= 1:
            raise UserError(f"window must be between 0 and 1, got {self.window}")
        self._check_order()
        if self.completions and self.candidates is None:
            raise UserError("the ideal sampler has no completions; leave them out, or name a number of candidates")
        if self.smc and (self.completions or self.ess or self.candidates is None):
            raise UserError("smc needs a number of candidates, no completions and no ess")
        if not self.lookahead < float("inf"):
            raise UserError(f"lookahead must be a number, such as 1, got {self.lookahead}")
        if self.lookahead and not self.smc:
            raise UserError(
                f"lookahead {self.lookahead:g} is for sequential Monte Carlo; name its block, such as smc 1"
            )
        if self.ess and self.candidates is None:
            raise UserError("the ideal sampler has no ess to reach; leave it out, or name a number of candidates")
        if self.trajectories and not self.steps:
            raise UserError(f"trajectories {self.trajectories} need a number of steps; name one, such as steps 4")
        if self.trajectories and self.protocol == "paper":
            raise UserError("the paper's formula knows no trajectories; leave them out, or choose protocol certified")

    def _check_order(self) -> None:
        kind, _ = parse_order(self.order)
        if kind == "uniform":
            return
        if self.protocol == "paper":
            raise UserError(f"the paper's formula is of the uniform order; leave out order {self.order}")
        if self.steps == 0:
            raise UserError(f"order {self.order} has no limit of many steps; name a number of steps")
        if self.trajectories:
            why = "a text has one trajectory only" if kind in DETERMINISTIC else "masks come and go on the way"
            raise UserError(f"order {self.order}: {why}; leave out trajectories")

    def num_steps(self, *, with_energy: bool) -> int | None:
        """T, or None for the limit of many steps."""
        if self.steps is None:
            is_sampled = with_energy and self.protocol == "certified"
            return DEFAULT_STEPS if is_sampled or parse_order(self.order)[0] != "uniform" else None
        return self.steps or None
