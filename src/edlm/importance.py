"""Importance sampling: candidates from the denoiser, their weights, and one of them resampled.

Legend: B batch, K candidates, L positions, N masked positions of the whole batch in row-major order.

Weights stay logarithms in float64 until one is drawn. K keeps its own axis: the candidates of one sequence never meet
those of another.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from edlm.energy import Energy, judges_steps
from edlm.errors import UserError
from edlm.partition import lower_bound
from edlm.randomness import Randomness, draw, rand
from edlm.vocabulary import Predictions


@dataclass(frozen=True)
class ImportanceSampling:
    """The paper's Algorithm 1: energy, number of candidates k, window w; and a temperature on the weights.

    With a step energy the candidates are for what the step reveals, and for nothing else.
    """

    energy: Energy
    num_candidates: int = 2
    window: float = 1.0
    """Importance sampling while t >= 1 - window; 0 turns it off altogether, as in the paper's ablation."""
    temperature: float = 1.0
    """Weights are exp(-E / temperature); anything but 1 samples from another model than the one that is named."""

    def __post_init__(self) -> None:
        if self.num_candidates < 1:
            raise UserError(f"candidates must be at least 1, got {self.num_candidates}")
        if not 0 <= self.window <= 1:
            raise UserError(f"window must be between 0 and 1, got {self.window}")
        if not self.temperature > 0:
            raise UserError(f"weight temperature must be positive, got {self.temperature}")

    @property
    def scored(self) -> int:
        """Sequences that the energy sees in a step."""
        return self.num_candidates

    def candidates(self, at: "Step", uniform: Tensor) -> "Candidates":
        """Candidates drawn with `uniform` (B, K, L), and their weights.

        Nothing is weighed where all agree on what is revealed: whichever were taken, the step would end the same.
        """
        x0, log_proposal = self.propose(at, uniform)
        rows = disagree(x0[:, :, 0], at.is_revealed).nonzero()[:, 0]
        log_w = torch.zeros(x0.shape[:2], dtype=torch.float64, device=x0.device)
        num = torch.zeros(len(x0), dtype=torch.long, device=x0.device)
        if len(rows):
            log_w[rows] = self.weigh(at.xt[rows], at.t[rows], x0[rows], log_proposal[rows])
            num[rows] = self.scored
        return Candidates(x0[:, :, 0], -self.temperature * log_w, log_w, num_scored=num)

    def propose(self, at: "Step", uniform: Tensor, *, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Candidates (B, K, R, L), here with one completion R, and log p_theta of each (B, K, R).

        The first of the K has the tokens of `first` (B, L) at the positions that are revealed, if it is given.
        """
        where = at.is_revealed if judges_steps(self.energy) else None
        x0, log_p = propose(at.predictions, at.xt, at.mask_id, uniform, where=where)
        if first is not None:
            clamped = torch.where(at.is_revealed, first, at.mask_id)
            x0[:, :1], log_p[:, :1] = propose(
                at.predictions, at.xt, at.mask_id, uniform[:, :1], clamped=clamped, where=where
            )
        return x0.unsqueeze(2), log_p.unsqueeze(2)

    def weigh(self, xt: Tensor, t: Tensor, x0: Tensor, log_proposal: Tensor) -> Tensor:
        """log W (B, K): of the mean weight over the R completions of candidates (B, K, R, L) of `xt` (B, L)."""
        energies = self.energy(x0.flatten(1, 2), xt, t, log_proposal.flatten(1, 2))
        return lower_bound(log_weights(energies, self.temperature).unflatten(1, x0.shape[1:3]))

    def is_active(self, t: Tensor) -> Tensor:
        """Whether a step that starts at `t` resamples. One candidate has nothing to choose from."""
        return is_in_window(t, self.window) & (self.num_candidates > 1)


@dataclass(frozen=True)
class RevealFirst(ImportanceSampling):
    """Weight spent on what a step reveals: k candidates for the revealed tokens only, all with the same completions.

    Algorithm 1 weighs whole completions, and nearly all of such a weight is noise of tokens that stay masked. Here S is
    chosen first, R completions y of the other masked tokens are drawn once, and candidate j has the weight
    W_j = mean over r of w(x_j^S, y_r). With k and R to infinity this too is the energy-based model's own step.
    """

    completions: int = 1
    """R"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if judges_steps(self.energy):
            raise UserError("a step energy reads no completions; leave completions out")
        if self.completions < 1:
            raise UserError(f"completions must be at least 1, got {self.completions}")

    @property
    def scored(self) -> int:
        return self.num_candidates * self.completions

    def propose(self, at: "Step", uniform: Tensor, *, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        B, L = at.xt.shape
        completing = rand((B, self.completions, L), at.generators, device=at.xt.device)
        return propose_revealed(at, uniform, completing, first=first)


def make_importance(
    energy: Energy, candidates: int, window: float = 1.0, temperature: float = 1.0, completions: int = 0
) -> ImportanceSampling:
    """Algorithm 1, or reveal-first where there are completions. A step energy brings its own kind of candidates."""
    if completions:
        return RevealFirst(energy, candidates, window, temperature, completions)
    return ImportanceSampling(energy, candidates, window, temperature)


@dataclass(frozen=True)
class Step:
    """What a step's importance sampling knows before it draws."""

    predictions: Predictions
    """At all N masked positions of `xt`."""
    xt: Tensor
    """(B, L)"""
    t: Tensor
    """(B,)"""
    is_revealed: Tensor
    """(B, L)"""
    mask_id: int
    generators: Randomness
    share: Tensor | None = None
    """(B,) of the tokens that were not there from the start, how many are known after the step."""
    spent: Tensor | None = None
    """(B,) energy passes so far."""


@dataclass(frozen=True)
class Candidates:
    """Candidates of a step, and what the energy says of them."""

    x0: Tensor
    """(B, K, L)"""
    energies: Tensor
    """(B, K) float64; with several completions each, minus the logarithm of their mean weight."""
    log_weights: Tensor
    """(B, K), not normalised."""
    log_z: Tensor | None = None
    """(B,) the logarithm of an unbiased estimate of Z, where that is another than their mean weight."""
    num_scored: Tensor | None = None
    """(B,) how many the energy saw; None if all."""


def disagree(x0: Tensor, is_revealed: Tensor) -> Tensor:
    """Whether candidates (B, K, L) differ at the positions (B, L) that a step reveals: (B,)."""
    return ((x0 != x0[:, :1]) & is_revealed.unsqueeze(1)).flatten(1).any(-1)


def is_in_window(t: Tensor, window: float) -> Tensor:
    """Whether the energy takes part at `t`; a window of 0 has not even t = 1 in it. Elementwise."""
    return (t >= 1 - window - 1e-9) & (window > 0)


@dataclass(frozen=True)
class Choice:
    """What one step's importance sampling saw and chose, for the rows in which there was something to choose."""

    rows: Tensor
    """(B',) which rows of the batch."""
    x0: Tensor
    """(B', K, L) their candidates."""
    energies: Tensor
    """(B', K) float64."""
    log_weights: Tensor
    """(B', K) normalised."""
    chosen: Tensor
    """(B',) index of the candidate that was taken."""
    log_z: Tensor | None = None
    """(B',) logarithm of an unbiased estimate of Z, from a sampler that has one of its own."""
    num_scored: Tensor | None = None
    """(B',) sequences that the energy saw; None if all."""

    def where_scored(self) -> "Choice | None":
        """Without the rows that the energy did not see, or None if it saw none."""
        if self.num_scored is None or (seen := self.num_scored > 0).all():
            return self
        if not seen.any():
            return None
        log_z = None if self.log_z is None else self.log_z[seen]
        x0, energies, log_weights = self.x0[seen], self.energies[seen], self.log_weights[seen]
        return Choice(self.rows[seen], x0, energies, log_weights, self.chosen[seen], log_z, self.num_scored[seen])

    @property
    def weights(self) -> Tensor:
        return self.log_weights.exp()

    @property
    def effective_sample_size(self) -> Tensor:
        return effective_sample_size(self.log_weights)

    @property
    def energy_ess(self) -> Tensor:
        return energy_ess(self.energies)


def propose(
    predictions: Predictions, xt: Tensor, mask_id: int, uniform: Tensor, *, clamped: Tensor | None = None,
    where: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """K completions of each row of `xt` (B, L), drawn from the denoiser, and the log-probability of each.

    `predictions` are the denoiser's at the N masked positions, `uniform` is (B, K, L). Returns candidates (B, K, L) and
    log p_theta (B, K) float64. Known tokens are copied and cost nothing. Where `clamped` (B, L) is not the mask, its
    token is taken instead of a drawn one, and its probability counted. With `where` (B, L) only those of the masked
    positions get tokens, and the others stay masked.
    """
    is_masked = xt == mask_id
    if where is not None:
        predictions, is_masked = predictions.select(where[is_masked]), where
    K = uniform.shape[1]
    tokens, each = predictions.draw(uniform.transpose(1, 2)[is_masked])  # (N, K)
    if clamped is not None:
        given = clamped[is_masked]  # (N,)
        is_given = given != mask_id
        tokens[is_given] = given[is_given].unsqueeze(-1)
        each[is_given] = predictions.select(is_given).log_prob(given[is_given]).unsqueeze(-1)
    x0 = xt.unsqueeze(-1).repeat(1, 1, K)  # (B, L, K)
    x0[is_masked] = tokens
    total = torch.zeros(len(xt), K, dtype=torch.float64, device=xt.device)
    return x0.transpose(1, 2).contiguous(), total.index_add(0, is_masked.nonzero()[:, 0], each)


def propose_revealed(
    at: Step, uniform: Tensor, completing: Tensor, *, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """K candidates for the positions that are revealed, each with the same R completions of the other masked ones.

    `uniform` is (B, K, L), `completing` (B, R, L). Returns (B, K, R, L) and log p_theta of each (B, K, R) float64.
    `first` (B, L) has the tokens of the first candidate, if they are not to be drawn.
    """
    (B, K, _), R = uniform.shape, completing.shape[1]
    is_masked = at.xt == at.mask_id
    stays = is_masked & ~at.is_revealed
    revealed = at.predictions.select(at.is_revealed[is_masked])
    tokens, each = revealed.draw(uniform.transpose(1, 2)[at.is_revealed])  # (N_S, K)
    if first is not None:
        tokens[:, 0] = first[at.is_revealed]
        each[:, 0] = revealed.log_prob(tokens[:, 0])
    others, each_other = at.predictions.select(stays[is_masked]).draw(completing.transpose(1, 2)[stays])  # (N_rest, R)
    x0 = at.xt[:, :, None, None].repeat(1, 1, K, R)  # (B, L, K, R)
    x0[at.is_revealed], x0[stays] = tokens.unsqueeze(2).expand(-1, -1, R), others.unsqueeze(1).expand(-1, K, -1)
    log_p = torch.zeros(B, K, dtype=torch.float64, device=x0.device).index_add(0, at.is_revealed.nonzero()[:, 0], each)
    log_q = torch.zeros(B, R, dtype=torch.float64, device=x0.device).index_add(0, stays.nonzero()[:, 0], each_other)
    return x0.permute(0, 2, 3, 1).contiguous(), log_p.unsqueeze(2) + log_q.unsqueeze(1)


def log_weights(energies: Tensor, temperature: float = 1.0) -> Tensor:
    """log w = -E / temperature of every candidate, not normalised: float64.

    The minus sign of exp(-E) stands here and nowhere else.
    """
    return -energies.double() / temperature


def choose(log_weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """(index (B,), log-weights (B, K) that sum to one): one candidate per row, with probability softmax(log w)."""
    normalised = torch.log_softmax(log_weights, dim=-1)
    return draw(normalised, uniform), normalised


def draw_log_weights(
    predictions: Predictions, xt: Tensor, t: Tensor, energy: Energy, num: int, *, mask_id: int, generator: Randomness,
    clamped: Tensor | None = None, where: Tensor | None = None, temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """log w of `num` completions of each row of `xt`, drawn from the denoiser's `predictions` at its masks: (B, num).

    Tokens are small and drawn all at once; energies score them a few at a time, so memory hardly grows with `num`.
    """
    uniform = rand((len(xt), num, xt.shape[1]), generator, device=xt.device)
    x0, log_proposal = propose(predictions, xt, mask_id, uniform, clamped=clamped, where=where)
    return log_weights(energy(x0, xt, t, log_proposal), temperature)


def check_energies(energies: Tensor, step: int, t: Tensor) -> None:
    """Refuse energies that leave no law to draw from: NaN, minus infinity, or plus infinity for all of a row."""
    bad = energies.isnan() | (energies == -torch.inf)
    if bad.any() or energies.isinf().all(-1).any():
        row = int((bad.any(-1) | energies.isinf().all(-1)).nonzero()[0])
        raise UserError(
            f"the energy of row {row} is {energies[row].tolist()} at step {step} (t = {t[row].item():.4g}); "
            "stopped. Check the energy model's weights and precision"
        )


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 of each row, between 1 and K: (B,)."""
    return torch.exp(2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1))


def energy_ess(energies: Tensor) -> Tensor:
    """What the paper's appendix calls ESS: (sum e)^2 / sum e^2 of the energies themselves, not of the weights."""
    return energies.sum(-1) ** 2 / (energies**2).sum(-1)
