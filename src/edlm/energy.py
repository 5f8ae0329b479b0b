"""Residual energies: how much a whole sequence should be worth beyond what the denoiser proposes.

Legend: B batch, K candidates, L positions.

    p(x0 | xt) = p_theta(x0 | xt) exp(-E(x0, xt, t)) / Z(xt)          (paper eq. 7)

An energy gets K candidates of every sequence, the state they complete, the time, and the proposal's log-probability of
each candidate, and returns a number each; low is good. The proposal term is handed in, never computed again. Energies
are never negated here: the minus sign is written once, in `importance.log_weights`.

A step energy judges only what one step reveals: its candidates xs have the tokens of S and masks where xt keeps them,

    p(x^S | xt) = p_theta(x^S | xt) exp(-E(xs, xt, t)) / Z(xt, S)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from edlm.errors import UserError
from edlm.models.autoregressive import CausalLike
from edlm.models.energy_network import EnergyNetwork
from edlm.models.pretrained import fingerprint
from edlm.scoring import causal_log_probs, score_candidates


class Energy(Protocol):
    """Anything that can be called like this is an energy."""

    @property
    def num_passes(self) -> int:
        """Network passes per candidate: what an evaluation costs."""

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        """Energies (B, K), float64, of candidates `x0` (B, K, L) of `xt` (B, L) at `t` (B,); `log_proposal` (B, K)."""


@dataclass(frozen=True)
class ZeroEnergy:
    """E = 0: the denoiser as it is."""

    num_passes: int = 0

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        return torch.zeros_like(log_proposal, dtype=torch.float64)


@dataclass(frozen=True)
class AutoregressiveEnergy:
    """EDLM-AR: E = -log p_AR(x0) + log p_theta(x0 | xt), over all positions (paper eq. 9).

    Known positions count too: their conditionals depend on the candidates' tokens to their left. Z = p_AR(x^U).
    """

    model: CausalLike
    covers: bool = True
    """Whether the denoiser can write every token that the causal model gives mass to; without, Z is less."""
    num_passes: int = 1

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        is_masked = (x0 != xt.unsqueeze(1)).all(1)
        return log_proposal.double() - causal_log_probs(self.model, x0, is_masked, carry_over=False)


@dataclass(frozen=True)
class CarryOverEnergy:
    """EDLM-coAR: E = -sum over masked i of log p_AR(x^i | x^{<i}) + log p_theta(x0 | xt).

    Known tokens are carried over with probability one, so the weights are normalised: Z = 1 exactly. A position is
    masked where a candidate differs from xt: no candidate has the mask, whatever its id, and known tokens are copied.
    """

    model: CausalLike
    covers: bool = True
    """Whether the denoiser can write every token that the causal model gives mass to; without, Z is less than 1."""
    num_passes: int = 1

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        is_masked = (x0 != xt.unsqueeze(1)).all(1)
        return log_proposal.double() - causal_log_probs(self.model, x0, is_masked, carry_over=True)


def is_normalised(energy: Energy) -> bool:
    """Whether Z = 1 in every state, by construction."""
    return isinstance(energy, ZeroEnergy) or (isinstance(energy, CarryOverEnergy) and energy.covers)


def is_normalised_at(energy: Energy, xt: Tensor, mask_id: int) -> Tensor:
    """Whether Z = 1 is known in each state (B, L): (B,). A causal model is normalised where nothing is given yet."""
    nothing_given = (xt == mask_id).all(-1)
    sums_to_one = isinstance(energy, AutoregressiveEnergy) and energy.covers
    return nothing_given & sums_to_one | is_normalised(energy)


@dataclass(frozen=True)
class LearnedEnergy:
    """EDLM-NCE: a network trained to tell true completions from the denoiser's."""

    model: EnergyNetwork
    num_passes: int = 1

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        return score_candidates(x0, lambda rows, x: self.model(x, xt[rows], t[rows]))


@dataclass(frozen=True)
class StepEnergy:
    """E(xs, xt, t): a network trained to tell what a step truly reveals from the denoiser's draws of it.

    No token that stays masked enters, so a step needs no completions, and its bound has no average over them.
    """

    model: EnergyNetwork
    num_passes: int = 1

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        return score_candidates(x0, lambda rows, x: self.model(x, xt[rows], t[rows]))


def learned_energy(network: EnergyNetwork) -> LearnedEnergy | StepEnergy:
    """The energy that a network was trained to be."""
    return StepEnergy(network) if network.config.target == "step" else LearnedEnergy(network)


@dataclass(frozen=True)
class WeightedSum:
    """A sum of energies, each times its weight: the product of their corrections."""

    terms: Sequence[tuple[float, Energy]]

    def __post_init__(self) -> None:
        if not self.terms:
            raise UserError("a sum of energies needs at least one term")
        if len({judges_steps(energy) for _, energy in self.terms}) > 1:
            reason = "a step energy judges what one step reveals, the others whole texts, so their sum judges neither"
            raise UserError(f"{reason}; add step energies to each other, or leave them out")

    @property
    def num_passes(self) -> int:
        return sum(energy.num_passes for _, energy in self.terms)

    def __call__(self, x0: Tensor, xt: Tensor, t: Tensor, log_proposal: Tensor) -> Tensor:
        return torch.stack([weight * energy(x0, xt, t, log_proposal) for weight, energy in self.terms]).sum(0)


def judges_steps(energy: Energy) -> bool:
    """Whether the energy's candidates are what one step reveals, with masks where xt stays masked."""
    if isinstance(energy, WeightedSum):
        return judges_steps(energy.terms[0][1])
    return isinstance(energy, StepEnergy)


def networks_of(energy: Energy) -> Iterator[tuple[float, str, nn.Module]]:
    """The networks of an energy, each with its weight and the kind of energy it makes."""
    if isinstance(energy, WeightedSum):
        for weight, part in energy.terms:
            yield from ((weight * inner, kind, model) for inner, kind, model in networks_of(part))
    elif (model := getattr(energy, "model", None)) is not None:
        yield 1.0, type(energy).__name__, model


def identity_of(model: nn.Module, energy: Energy | None) -> dict[str, Any]:
    """What numbers made with a model and an energy depend on: hashes of all weights, whatever folders they are in."""
    parts = None if energy is None else [[w, kind, fingerprint(part)] for w, kind, part in networks_of(energy)]
    return {"model": fingerprint(model), "energy": parts}
