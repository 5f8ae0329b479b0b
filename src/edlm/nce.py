"""Noise-contrastive estimation of an energy: true completions against the denoiser's (paper eq. 10).

Legend: B batch, K = 1 + n completions per sequence, the true one first.

All losses are in nats, one per sequence. Their optimum is E = log p_theta(x0 | xt) - log q(x0 | xt), for which Z = 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from edlm.importance import effective_sample_size, log_weights
from edlm.partition import lower_bound


def binary_loss(energies: Tensor) -> Tensor:
    """-log sigmoid(-E+) - mean over the negatives of log sigmoid(E-): (B,) from (B, K).

    With n negatives their mean keeps true and drawn completions equally likely a priori; a sum would shift E by log n.
    """
    return -F.logsigmoid(-energies[:, 0]) - F.logsigmoid(energies[:, 1:]).mean(-1)


def ranking_loss(energies: Tensor) -> Tensor:
    """-log softmax(-E) of the true completion among all K: (B,) from (B, K).

    Blind to anything that all completions of a state share, so it fixes E only up to a function of (xt, t).
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
