"""How much effort texts are scored with: settings only, so that help does not load torch."""

from dataclasses import dataclass

from edlm.errors import UserError


@dataclass(frozen=True)
class Effort:
    """How many draws are averaged, and how texts are cut and batched."""

    num_draws: int = 64
    """Random masks averaged per text. More narrow the standard error; an exact likelihood needs none."""
    overlap: int | None = None
    """Cut texts that do not fit the model into windows that see so many tokens before them; by default refuse them."""
    batch_size: int = 0
    """Sequences scored at once; 0 takes what fits into memory. Does not change the result."""

    def __post_init__(self) -> None:
        for name, least in (("num_draws", 1), ("batch_size", 0), ("overlap", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name.replace('_', '-')} must be at least {least}, got {value}")
