"""How sequences are drawn: settings only, so that the command line can show them without loading torch."""

from dataclasses import dataclass

from edlm.errors import UserError
from edlm.order_spec import parse_order


@dataclass(frozen=True)
class SampleConfig:
    """How sequences are drawn."""

    steps: int = 64
    """Denoising steps. An autoregressive model takes one step per token instead."""
    first_hitting: bool = False
    """Reveal one token at a time, each at its own random moment: the limit of infinitely many steps, without a grid."""
    order: str = "uniform"
    """What a step reveals: uniform; confidence, the surest first; entropy:NATS, as many as can hardly contradict each other, in as many steps as it takes; remask-cap:SHARE or remask-rescale:SHARE, where known tokens may be masked again."""  # noqa: E501
    candidates: int = 2
    """k: completions drawn in a step, of which the energy chooses one. Without an energy nothing is chosen."""
    completions: int = 0
    """R: 0 weighs whole completions (the paper's Algorithm 1); 1 or more weighs candidates for what a step reveals, each with R completions that all share (reveal-first)."""  # noqa: E501
    smc: int = 0
    """0, or the positions of a block of sequential Monte Carlo: the candidates then advance from left to right under an AR or coAR energy, and bad ones are given up after any block."""  # noqa: E501
    lookahead: float = 0.0
    """With smc: 0 draws the particles from the denoiser; above 0 the causal model writes them, and this is how strongly the denoiser tells it what is coming (1 is a good value)."""  # noqa: E501
    ess: float = 0.0
    """0 for k candidates in every step, or the effective number of candidates that is enough: a step then doubles theirs until it is reached, up to k."""  # noqa: E501
    budget: int = 0
    """With ess: energy passes that a sequence may take in all, spread over its tokens; 0 for any number."""
    window: float = 1.0
    """w: the energy is used while t >= 1 - w; 1 means in every step, 0 in none."""
    temperature: float = 1.0
    """Below 1 sharpens the denoiser's (or causal model's) distribution, above 1 flattens it."""
    weight_temperature: float = 1.0
    """Divides the energies before they become weights. Anything but 1 samples from another model, and is marked so."""
    length: int | None = None
    """Tokens per sequence, prompt included; by default the model's length. Longer ones are made window by window."""
    overlap: int | None = None
    """Tokens that a window of a longer sequence shares with the one before; by default half the model's length."""
    seed: int = 0
    """Sequence i is drawn from the stream of numbers seeded by (seed, i)."""
    batch_size: int = 16
    """Sequences drawn at once; does not change them."""
    first: int = 0
    """Index i of the first sequence: `first` 5 draws what would have been the sixth."""

    def __post_init__(self) -> None:
        least = {"steps": 1, "candidates": 1, "batch_size": 1}
        least |= dict.fromkeys(("first", "completions", "smc", "lookahead", "ess", "budget"), 0)
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise UserError(f"{name.replace('_', '-')} must be at least {smallest}, got {getattr(self, name)}")
        for name in ("temperature", "weight_temperature"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"{name.replace('_', '-')} must be positive, got {getattr(self, name)}")
        kind, _ = parse_order(self.order)
        if self.first_hitting and kind != "uniform":
            raise UserError(f"first-hitting reveals in an order of its own; leave out order {self.order}")
        if self.smc and (self.completions or self.ess):
            raise UserError("smc weighs whole completions of k particles; leave out completions and ess, or smc")
        if not self.lookahead < float("inf"):
            raise UserError(f"lookahead must be a number, such as 1, got {self.lookahead}")
        if self.lookahead and not self.smc:
            raise UserError(
                f"lookahead {self.lookahead:g} is for sequential Monte Carlo; name its block, such as smc 1"
            )
        if self.budget and not self.ess:
            raise UserError(f"budget {self.budget} is for adaptive effort; name the ess that is enough, such as 1.5")
        if not 0 <= self.window <= 1:
            raise UserError(f"window must be between 0 and 1, got {self.window}")
        if self.length is not None and self.length < 1:
            raise UserError(f"length must be at least 1, got {self.length}")

    @property
    def is_tempered(self) -> bool:
        """Whether the samples follow another law than the named model's."""
        return self.temperature != 1 or self.weight_temperature != 1
