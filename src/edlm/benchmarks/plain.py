"""Algorithm 1 written as plainly as it is stated in the paper: what the library's sampler is measured against.

Everything is computed for all positions and all candidates: a full softmax, full noise over (B, K, L, V), a causal pass
that keeps all its logits, a denoiser pass in every step. Same networks, same law of the samples; only the work differs.
That law needs noise in float64: in float32 it ends at 16.6, which rare tokens of a large vocabulary lack. Public code
draws in float32 all the same, so what that costs can be measured too.

Legend: B batch, K candidates, L positions, V vocabulary.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.schedule import reveal_probability, uniform_times


@torch.no_grad()
def sample(
    denoiser: Denoiser, causal: Autoregressive, *, batch_size: int, length: int, steps: int, candidates: int,
    window: float, carry_over: bool, generator: torch.Generator, noise_type: torch.dtype = torch.float64,
) -> Tensor:  # fmt: skip
    """B sequences (B, L) of EDLM-AR or, with `carry_over`, EDLM-coAR."""
    x = torch.full((batch_size, length), denoiser.mask_id)
    for t, s in pairwise(uniform_times(steps)):
        is_masked = x == denoiser.mask_id
        K = candidates if t >= 1 - window - 1e-9 and window > 0 else 1
        log_probs = F.log_softmax(denoiser.transformer.head(denoiser.transformer(x, t.expand(len(x)))), dim=-1)
        noise = torch.rand(batch_size, K, length, denoiser.vocab_size, generator=generator, dtype=noise_type)
        noise.log_().neg_().log_().neg_()  # Gumbel; in place, or it would not fit
        x0 = noise.add_(log_probs.unsqueeze(1)).argmax(-1)  # (B, K, L)
        del noise
        x0 = torch.where(is_masked.unsqueeze(1), x0, x.unsqueeze(1))
        chosen = torch.zeros(batch_size, dtype=torch.long)
        if K > 1:
            energies = residual_energies(causal, log_probs, x0, is_masked, carry_over)
            chosen = torch.multinomial(torch.softmax(-energies, dim=-1), 1, generator=generator)[:, 0]
        completion = x0[torch.arange(batch_size), chosen]
        rho = reveal_probability(denoiser.schedule, t, s)
        is_revealed = is_masked & (torch.rand(x.shape, generator=generator) < rho)
        x = torch.where(is_revealed, completion, x)
    return x


def residual_energies(
    causal: Autoregressive, log_probs: Tensor, x0: Tensor, is_masked: Tensor, carry_over: bool
) -> Tensor:
    """log p_theta(x0 | xt) - log p_AR(x0) of all candidates: (B, K)."""
    B, K, L = x0.shape
    flat = x0.reshape(B * K, L)
    next_log_probs = F.log_softmax(causal.transformer.head(causal.transformer(causal.shift(flat))), dim=-1)
    causal_part = next_log_probs.gather(-1, flat.unsqueeze(-1)).view(B, K, L)
    proposal = log_probs.unsqueeze(1).expand(-1, K, -1, -1).gather(-1, x0.unsqueeze(-1)).squeeze(-1)  # (B, K, L)
    where = is_masked.unsqueeze(1)
    total = (causal_part * where if carry_over else causal_part).sum(-1)
    return (proposal * where).sum(-1) - total
