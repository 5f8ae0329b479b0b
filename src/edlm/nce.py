"""Noise-contrastive estimation of an energy: true tokens against the denoiser's (paper eq. 10).

Legend: B batch, K = 1 + n completions per sequence, the true one first.

All losses are in nats, one per sequence. Their optimum is E = log p_theta(x0 | xt) - log q(x0 | xt), for which Z = 1;
for a step energy the same of x^S, what a step reveals.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from edlm.energy import Energy
from edlm.importance import effective_sample_size, log_weights, propose
from edlm.models.denoiser import DenoiserLike, predict
from edlm.objectives import sum_per_row
from edlm.partition import lower_bound


def contrast(
    energy: Energy, denoiser: DenoiserLike, x0: Tensor, xt: Tensor, t: Tensor, uniform: Tensor,
    where: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Energies (B, K) of the true completion of `xt` (B, L), then of those drawn from the denoiser with `uniform`
    (B, K - 1, L); one denoiser pass serves all of them. With `where` (B, L) only those masked tokens are filled in."""
    is_masked = xt == denoiser.mask_id
    where = is_masked if where is None else where
    with torch.no_grad():
        predictions = predict(denoiser, xt, t)
        drawn, log_drawn = propose(predictions, xt, denoiser.mask_id, uniform, where=where)
        log_true = sum_per_row(predictions.select(where[is_masked]).log_prob(x0[where]), where)
    every = torch.cat([torch.where(where, x0, xt).unsqueeze(1), drawn], dim=1)  # (B, K, L)
    return energy(every, xt, t, torch.cat([log_true.unsqueeze(1), log_drawn], dim=1))


def binary_loss(energies: Tensor) -> Tensor:
    """-log sigmoid(-E+) - mean over the negatives of log sigmoid(E-): (B,) from (B, K).

    With n negatives their mean keeps true and drawn completions equally likely a priori; a sum would shift E by log n.
    """
    return -F.logsigmoid(-energies[:, 0]) - F.logsigmoid(energies[:, 1:]).mean(-1)


def ranking_loss(energies: Tensor) -> Tensor:
    """-log softmax(-E) of the true completion among all K: (B,) from (B, K).

    Blind to anything that all completions of a state share, so it fixes E only up to a function of (xt, t). For a step
    energy it is log K less the certified gain of a step with K candidates, so training tightens the bound itself.
    """
    return -torch.log_softmax(-energies, dim=-1)[:, 0]


LOSSES = {"binary": binary_loss, "ranking": ranking_loss}


def diagnostics(energies: Tensor) -> dict[str, Tensor]:
    """What says whether an energy has learned anything, one value per sequence: each (B,)."""
    true, drawn = energies[:, :1].double(), energies[:, 1:].double()
    return {
        "accuracy": ((true < 0).double().squeeze(-1) + (drawn > 0).double().mean(-1)) / 2,
        "pair_accuracy": ((true < drawn).double() + 0.5 * (true == drawn).double()).mean(-1),
        "energy_true": true.squeeze(-1),
        "energy_drawn": drawn.mean(-1),
        "effective_sample_size": effective_sample_size(log_weights(drawn)),
        "log_z": lower_bound(log_weights(drawn)),
    }
