"""How sequences are drawn: settings only, so that the command line can show them without loading torch."""

from dataclasses import dataclass

from edlm.errors import UserError


@dataclass(frozen=True)
class SampleConfig:
    """How sequences are drawn."""

    steps: int = 64
    """Denoising steps. An autoregressive model takes one step per token instead."""
    temperature: float = 1.0
    """Below 1 sharpens the model's distribution, above 1 flattens it."""
    length: int | None = None
    """Tokens per sequence, prompt included; by default the model's length."""
    seed: int = 0
    """Sequence i is drawn from the stream of numbers seeded by (seed, i)."""
    batch_size: int = 16
    """Sequences drawn at once; does not change them."""
    first: int = 0
    """Index i of the first sequence: `first` 5 draws what would have been the sixth."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"steps must be at least 1, got {self.steps}")
        if not self.temperature > 0:
            raise UserError(f"temperature must be positive, got {self.temperature}")
        if self.batch_size < 1:
            raise UserError(f"batch size must be at least 1, got {self.batch_size}")
        if self.first < 0:
            raise UserError(f"first must not be negative, got {self.first}")
