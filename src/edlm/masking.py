"""The forward process and its exact reverse kernel, for masked noise and for a general reference distribution.

Legend: B batch, L positions, V vocabulary.

Masked (absorbing) noise is what every model here uses: a token is either itself or the mask. `ReferenceNoise` is the
paper's section 3 in full, where a token that is lost becomes a draw of any distribution pi; with pi on the mask alone
it gives back the masked functions, which is how it is tested.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.randomness import Randomness, draw, rand
from edlm.schedule import Schedule, reveal_probability


def corrupt(x0: Tensor, t: Tensor, schedule: Schedule, mask_id: int, *, generator: Randomness) -> Tensor:
    """Mask each token of `x0` (B, L) independently with probability 1 - alpha(t), t (B,).  q(xt | x0), paper eq. 2."""
    is_kept = rand(x0.shape, generator, device=x0.device) < schedule.alpha(t.double()).unsqueeze(-1)
    return torch.where(is_kept, x0, mask_id)


def corrupt_count(
    x0: Tensor, num_masked: Tensor, mask_id: int, *, generator: Randomness, is_free: Tensor | None = None
) -> Tensor:
    """Mask exactly `num_masked` (B,) uniformly chosen tokens of each row of `x0` (B, L), or of its `is_free` (B, L)."""
    order = rand(x0.shape, generator, device=x0.device)
    if is_free is not None:
        order = order.masked_fill(~is_free, 2)  # after all that may be masked
    rank = order.argsort(-1).argsort(-1)
    return torch.where(rank < num_masked.unsqueeze(-1), mask_id, x0)


def corrupt_step(
    x0: Tensor, t: Tensor, s: Tensor, schedule: Schedule, mask_id: int, *, generator: Randomness
) -> tuple[Tensor, Tensor]:
    """xt (B, L), and which of its masks the step t -> s reveals (B, L), never none of a row; t and s (B,).

    Each token has a level, uniform in (0, 1), and is masked at t if that is below 1 - alpha(t): tokens are revealed in
    falling order of their levels. A step that would reveal none goes on until it has revealed the next one; where t
    leaves nothing masked, the last token of all is that one. Which tokens are masked and revealed, given how many, is
    uniform, as in the sampler.
    """
    level = rand(x0.shape, generator, device=x0.device)
    before, after = (1 - schedule.alpha(time.double()).to(x0.device).unsqueeze(-1) for time in (t, s))  # (B, 1)
    is_masked = level <= torch.maximum(before, level.amin(-1, keepdim=True))
    next_level = level.masked_fill(~is_masked, 0).amax(-1, keepdim=True)
    return torch.where(is_masked, mask_id, x0), is_masked & (level >= torch.minimum(after, next_level))


def choose_revealed(
    xt: Tensor, t: Tensor, s: Tensor, schedule: Schedule, mask_id: int, *, generator: Randomness
) -> Tensor:
    """Which masked positions the step t -> s reveals, as a boolean mask (B, L); each independently of its token.

    Because the choice does not look at any token, a sampler may make it first and denoise only what is revealed.
    `t` and `s` are scalars or (B,).
    """
    rho = reveal_probability(schedule, t.double(), s.double()).to(xt.device)
    return (xt == mask_id) & (rand(xt.shape, generator, device=xt.device) < rho.unsqueeze(-1))


def reveal(
    xt: Tensor, x0: Tensor, t: Tensor, s: Tensor, schedule: Schedule, mask_id: int, *, generator: Randomness
) -> Tensor:
    """Put the clean token in place of each mask of `xt` independently with the reveal probability of the step t -> s.

    q(xs | xt, x0), paper eq. 4. Unmasked tokens never change.
    """
    return torch.where(choose_revealed(xt, t, s, schedule, mask_id, generator=generator), x0, xt)


def substitute(log_probs: Tensor, xt: Tensor, mask_id: int) -> Tensor:
    """Spread log-probabilities of the masked positions (N, V) over the whole of `xt` (B, L): (B, L, V).

    The substitution parameterisation (paper eq. 6): unmasked tokens are copied with probability one, and no position
    gives mass to the mask, which has no column.
    """
    V = log_probs.shape[-1]
    is_masked = xt == mask_id
    tokens = torch.arange(V, device=xt.device)
    copied = torch.where(tokens == xt.unsqueeze(-1), 0.0, -torch.inf).to(log_probs.dtype)  # (B, L, V)
    return copied.masked_scatter(is_masked.unsqueeze(-1), log_probs)


@dataclass(frozen=True)
class ReferenceNoise:
    """Discrete diffusion towards a reference distribution `pi` over V states (paper section 3)."""

    schedule: Schedule
    pi: Tensor
    """Probabilities (V,), float64."""

    def __post_init__(self) -> None:
        if self.pi.ndim != 1 or (self.pi < 0).any() or abs(self.pi.sum().item() - 1) > 1e-9:
            raise UserError(f"pi must be a vector of probabilities that sum to one, got sum {self.pi.sum().item()}")

    def marginal(self, x0: Tensor, t: Tensor) -> Tensor:
        """q(xt | x0) = alpha(t) x0 + (1 - alpha(t)) pi, paper eq. 2: (..., V). `t` broadcasts against `x0`."""
        return self._mix(self.schedule.alpha(t.double()), x0)

    def corrupt(self, x0: Tensor, t: Tensor, *, generator: Randomness) -> Tensor:
        """Draw xt from q(xt | x0), t (B,)."""
        return self._draw(self.marginal(x0, t.unsqueeze(-1)), generator)

    def posterior(self, xt: Tensor, x0: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """q(xs | xt, x0), paper eq. 3: (..., V). `t` and `s` broadcast against the tokens.

        The likelihood factor is q(xt | xs) as a function of xs: xs either stayed (alpha(t)/alpha(s)) or was redrawn
        from pi. Undefined where q(xt | x0) = 0; such pairs cannot occur and give NaN.
        """
        alpha_t, alpha_s = self.schedule.alpha(t.double()), self.schedule.alpha(s.double())
        stay = (alpha_t / alpha_s).unsqueeze(-1)
        likelihood = stay * self._one_hot(xt) + (1 - stay) * self.pi[xt].unsqueeze(-1)
        joint = likelihood * self._mix(alpha_s, x0)
        return joint / joint.sum(-1, keepdim=True)

    def reveal(self, xt: Tensor, x0: Tensor, t: Tensor, s: Tensor, *, generator: Randomness) -> Tensor:
        """Draw xs from the posterior; `t` and `s` are scalars or (B,)."""
        return self._draw(self.posterior(xt, x0, t.unsqueeze(-1), s.unsqueeze(-1)), generator)

    def _one_hot(self, x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(x, len(self.pi)).double()

    def _mix(self, alpha: Tensor, x0: Tensor) -> Tensor:
        alpha = alpha.unsqueeze(-1)
        return alpha * self._one_hot(x0) + (1 - alpha) * self.pi

    def _draw(self, probs: Tensor, generator: Randomness) -> Tensor:
        uniform = rand(probs.shape[:-1], generator, device=probs.device)
        return draw(probs.log().flatten(0, -2), uniform.flatten()).view(probs.shape[:-1])


def uniform_noise(schedule: Schedule, vocab_size: int) -> ReferenceNoise:
    """Noise that replaces a token by a uniform draw."""
    return ReferenceNoise(schedule, torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64))


def masked_noise(schedule: Schedule, vocab_size: int) -> ReferenceNoise:
    """Masked noise written as a reference distribution, the mask being the last of vocab_size + 1 states."""
    pi = torch.zeros(vocab_size + 1, dtype=torch.float64)
    pi[-1] = 1
    return ReferenceNoise(schedule, pi)
