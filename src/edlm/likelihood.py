"""Likelihood of given sequences: estimates in nats that depend on nothing but the sequence and its key.

Legend: B batch, J trajectories, R inner draws, n partition samples, k candidates, L positions, V vocabulary, N masked
positions of the whole batch in row-major order.

Every sequence of a data set has an index; its masks and candidates come from generators seeded by (seed, index). So
results do not depend on batch size or number of processes. Where `is_given` (B, L) marks tokens that are known from the
start, the likelihood is that of the others given those: of the sampler that continues a prompt. What is estimated:

    autoregressive_nll   the exact value of a causal model
    denoiser_nelbo       upper bound of a plain denoiser: T steps, or the limit of many
    certified_nll        upper bound of a denoiser with an energy: of the sampler that is run, or of the ideal one
    trajectory_nll       the same, tighter, from whole trajectories
    paper_nll            the paper's formula, which is not a bound
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from edlm.adaptive import Adaptive
from edlm.energy import CarryOverEnergy, Energy, is_normalised, is_normalised_at, judges_steps
from edlm.errors import UserError
from edlm.importance import (
    ImportanceSampling,
    RevealFirst,
    Step,
    draw_log_weights,
    is_in_window,
    log_weights,
)
from edlm.models.autoregressive import CausalLike
from edlm.models.denoiser import DenoiserLike, predict
from edlm.moments import draw_moment
from edlm.objectives import cross_entropy, masked_log_likelihood, sum_per_row
from edlm.order import Remasking
from edlm.partition import lower_bound, paper_upper, upper_bound
from edlm.randomness import make_generator, rand
from edlm.schedule import uniform_times
from edlm.smc import SequentialMonteCarlo
from edlm.vocabulary import Predictions

CLAMPED, FREE = 1, 2  # which of a sequence's streams of numbers its candidates come from
CHUNK_PAIRS = 1 << 22
LEAST_GROUPS = 4


@dataclass(frozen=True)
class Ideal:
    """The sampler with infinitely many candidates: each step draws from p_theta exp(-E) / Z itself."""

    energy: Energy
    window: float = 1.0
    partition_samples: int = 16
    """n: candidates behind the upper bound on log Z. Not used where Z = 1 is known."""
    temperature: float = 1.0

    def is_active(self, t: Tensor) -> Tensor:
        return is_in_window(t, self.window)


Law = ImportanceSampling | Ideal
"""What the steps of a sampler draw from: one of k candidates, chosen by weight, or the limit of many."""


@torch.no_grad()
def autoregressive_nll(model: CausalLike, x0: Tensor, *, is_given: Tensor | None = None) -> Tensor:
    """-log p(x0) of every sequence in nats, all L tokens: (B,) float64. Given tokens must come before all others."""
    log_probs = model(x0)
    return cross_entropy(log_probs if is_given is None else log_probs.masked_fill(is_given, 0))


@torch.no_grad()
def denoiser_nelbo(
    denoiser: DenoiserLike, x0: Tensor, index: Sequence[int], *, seed: int, steps: int | None,
    is_given: Tensor | None = None, remasking: Remasking | None = None,
) -> Tensor:  # fmt: skip
    """One unbiased estimate per sequence of the NELBO of a factorised denoiser, in nats: (B,) float64.

    An upper bound on -log p(x0) in expectation: of the sampler with `steps` steps on the uniform time grid, or of its
    continuous-time limit if `steps` is None. `remasking` is that of the sampler.
    """
    moment = draw_moment(denoiser, x0, index, seed=seed, steps=steps, is_given=is_given, remasking=remasking)
    log_likelihood = masked_log_likelihood(predict(denoiser, moment.xt, moment.t), x0, moment.xt, denoiser.mask_id)
    return -moment.weight * moment.share * log_likelihood


@torch.no_grad()
def certified_nll(
    denoiser: DenoiserLike, law: Law, x0: Tensor, index: Sequence[int], *, seed: int, steps: int | None, inner: int,
    is_given: Tensor | None = None, remasking: Remasking | None = None,
) -> Tensor:  # fmt: skip
    """One estimate per sequence of an upper bound on -log p(x0) of the sampler whose steps follow `law`: (B, 2).

    The second column is the bound of the plain denoiser from the same draws, so that the two can be compared. float64.

    weight * ( share * sum over M of -log p_theta(x0^i | xt)  -  gain ),   one moment per sequence,

    where the gain is a lower bound on log p_law(x0^S | xt) - log p_theta(x0^S | xt). The average over S is done in
    closed form for the first part and by one draw for the second. `remasking` is that of the sampler: it changes how
    many tokens a step reveals, and nothing else, since hiding one has the same probability forwards and backwards.
    """
    moment = draw_moment(denoiser, x0, index, seed=seed, steps=steps, is_given=is_given, remasking=remasking)
    predictions = predict(denoiser, moment.xt, moment.t)
    log_likelihood = masked_log_likelihood(predictions, x0, moment.xt, denoiser.mask_id)
    step = RevealStep(x0, moment.xt, moment.t, moment.is_revealed, [(seed, i) for i in index], denoiser.mask_id)
    plain = -moment.weight * moment.share * log_likelihood
    return torch.stack([plain - moment.weight * step.gain(predictions, law, inner), plain], dim=-1)


@torch.no_grad()
def trajectory_nll(
    denoiser: DenoiserLike, law: Law | None, x0: Tensor, index: Sequence[int], *, seed: int, steps: int, inner: int,
    trajectories: int, is_given: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One estimate per sequence of a tighter upper bound, from J whole trajectories of all T steps: (B, 2) float64.

    The second column is the mean of the J bounds that the trajectories give alone: what the average inside the
    logarithm is tighter than.

    -log of the mean over J of  prod over the steps of  p_law(x0^S | xt):  the masks' own probabilities cancel between
    forward and reverse process. Each factor may be replaced by an unbiased estimate, so it holds for a finite number of
    candidates; for the ideal law it would need one of 1/Z, so that is refused unless Z = 1.
    """
    if isinstance(law, Ideal) and not is_normalised(law.energy):
        raise UserError("several trajectories need a finite number of candidates, or an energy whose Z is 1 (coar)")
    is_given = torch.zeros_like(x0, dtype=torch.bool) if is_given is None else is_given
    each = [  # one trajectory of all sequences at a time, so that memory does not grow with J
        _trajectory_log_likelihood(denoiser, law, x0, is_given, [(seed, i, j) for i in index], steps=steps, inner=inner)
        for j in range(trajectories)
    ]
    total = torch.stack(each, dim=-1)  # (B, J)
    return -torch.stack([lower_bound(total), total.mean(-1)], dim=-1)


def _trajectory_log_likelihood(
    denoiser: DenoiserLike, law: Law | None, x0: Tensor, is_given: Tensor, keys: Sequence[tuple[int, ...]], *,
    steps: int, inner: int,
) -> Tensor:  # fmt: skip
    """log of  prod over the steps of  p_law(x0^S | xt)  along one random trajectory of each sequence: (B,)."""
    mask_id, schedule = denoiser.mask_id, denoiser.schedule
    level = rand(x0.shape, [make_generator(*key) for key in keys], device=x0.device)  # masked below 1 - alpha
    level = level.masked_fill(is_given, 1)  # never
    total = torch.zeros(len(x0), dtype=torch.float64, device=x0.device)
    for n, (t, s) in enumerate(pairwise(uniform_times(steps).to(x0.device))):
        is_masked, stays = level < 1 - schedule.alpha(t), level < 1 - schedule.alpha(s)
        xt, is_revealed = torch.where(is_masked, mask_id, x0), is_masked & ~stays
        step = RevealStep(x0, xt, t.expand(len(x0)), is_revealed, [(*key, n) for key in keys], mask_id)
        active = is_revealed.any(-1).nonzero()[:, 0]
        if len(active):
            total[active] += step.select(active).log_likelihood(denoiser, law, inner)
    return total


@torch.no_grad()
def paper_nll(
    denoiser: DenoiserLike, energy: Energy, x0: Tensor, index: Sequence[int], *, seed: int, steps: int | None,
    partition_samples: int, is_given: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The paper's formula (eq. 12 with `steps`, else eq. 13) with log Z from above and from below: (B, 2) float64.

    weight * share * -( log p_theta(x0 | xt) - E(x0, xt, t) - log Z(xt) ). Not a bound: a step reveals S only, so the
    marginal of S belongs where this has the joint of all masked tokens. For the carry-over energy every token ends up
    with weight one, whatever T, and both columns are the causal model's own NLL; that is returned without any draw.
    """
    if judges_steps(energy):
        raise UserError("the paper's formula needs an energy of whole texts, not of steps; choose protocol certified")
    if isinstance(energy, CarryOverEnergy) and energy.covers:
        return autoregressive_nll(energy.model, x0, is_given=is_given).unsqueeze(-1).expand(-1, 2)
    moment = draw_moment(denoiser, x0, index, seed=seed, steps=steps, is_given=is_given)
    predictions = predict(denoiser, moment.xt, moment.t)
    log_likelihood = masked_log_likelihood(predictions, x0, moment.xt, denoiser.mask_id)
    log_w = log_weights(energy(x0.unsqueeze(1), moment.xt, moment.t, log_likelihood.unsqueeze(1)))  # (B, 1)
    drawn = draw_log_weights(
        predictions, moment.xt, moment.t, energy, partition_samples, mask_id=denoiser.mask_id,
        generator=[make_generator(seed, i, FREE) for i in index],
    )  # fmt: skip
    log_z = torch.stack([paper_upper(drawn), lower_bound(drawn)], dim=-1)  # (B, 2)
    weight = moment.weight * moment.share
    return -weight.unsqueeze(-1) * (log_likelihood.unsqueeze(-1) + log_w - log_z)


@dataclass(frozen=True)
class RevealStep:
    """One step in which each of B sequences reveals the true tokens at S, and the key of each one's random numbers."""

    x0: Tensor
    """(B, L)"""
    xt: Tensor
    """(B, L)"""
    t: Tensor
    """(B,)"""
    is_revealed: Tensor
    """(B, L) S"""
    keys: Sequence[tuple[int, ...]]
    mask_id: int

    def log_likelihood(self, denoiser: DenoiserLike, law: Law | None, inner: int) -> Tensor:
        """A lower bound in expectation on log p(x0^S | xt), whose exponential is unbiased or too low: (B,)."""
        if law is None:
            predictions = predict(denoiser, self.xt, self.t, where=self.is_revealed)
            return sum_per_row(predictions.log_prob(self.x0[self.is_revealed]), self.is_revealed)
        predictions, is_masked = predict(denoiser, self.xt, self.t), self.xt == self.mask_id
        true = predictions.log_prob(self.x0[is_masked]) * self.is_revealed[is_masked]
        return sum_per_row(true, is_masked) + self.gain(predictions, law, inner)

    def gain(self, predictions: Predictions, law: Law, inner: int) -> Tensor:
        """A lower bound in expectation on log p_law(x0^S | xt) - log p_theta(x0^S | xt): (B,) float64.

        Zero, and free, for rows that reveal nothing or whose time is outside the window.
        """
        gain = torch.zeros(len(self.x0), dtype=torch.float64, device=self.x0.device)
        is_active = law.is_active(self.t) & self.is_revealed.any(-1)  # (B,)
        if is_active.any():
            rows = is_active.nonzero()[:, 0]
            part = self.select(rows)
            masked_row = (self.xt == self.mask_id).nonzero()[:, 0]
            gain[rows] = part._active_gain(predictions.select(is_active[masked_row]), law, inner)
        return gain

    def select(self, rows: Tensor) -> "RevealStep":
        """The same step of some of the sequences."""
        keys = [self.keys[i] for i in rows.tolist()]
        return RevealStep(self.x0[rows], self.xt[rows], self.t[rows], self.is_revealed[rows], keys, self.mask_id)

    def _active_gain(self, predictions: Predictions, law: Law, inner: int) -> Tensor:
        if isinstance(law, SequentialMonteCarlo):
            return self._sequential_gain(predictions, law, inner)
        if isinstance(law, Adaptive):
            return self._adaptive_gain(predictions, law, inner)
        if isinstance(law, RevealFirst):
            return self._reveal_first_gain(predictions, law, inner)
        if isinstance(law, ImportanceSampling):
            k = law.num_candidates
            groups = inner if judges_steps(law.energy) else num_groups(inner, k)
            others = self._log_weights(predictions, law, groups * (k - 1), FREE)
            clamped = self._clamped(predictions, law, inner, self.is_revealed)
            return resampled_gain(clamped, others.view(len(self.x0), groups, k - 1))
        below = lower_bound(self._clamped(predictions, law, inner, self.is_revealed))
        return below - self._log_z_from_above(predictions, law)

    def _reveal_first_gain(self, predictions: Predictions, law: RevealFirst, inner: int) -> Tensor:
        """log of the mean of  k W_1 / (W_1 + ... + W_k)  over `inner` draws of the completions and the others: (B,).

        W_1 is that of the true tokens; all k share their completions, so the noise of what stays masked cancels.
        """
        (B, L), k = self.xt.shape, law.num_candidates
        generators = [make_generator(*key, CLAMPED) for key in self.keys]
        at = Step(predictions, self.xt, self.t, self.is_revealed, self.mask_id, generators)
        log_ratio = []
        for _ in range(inner):
            uniform = rand((B, k, L), generators, device=self.xt.device)
            log_w = law.weigh(self.xt, self.t, *law.propose(at, uniform, first=self.x0))
            log_ratio.append(torch.log_softmax(log_w, dim=-1)[:, 0])
        return math.log(k) + lower_bound(torch.stack(log_ratio, dim=-1))

    def _adaptive_gain(self, predictions: Predictions, law: Adaptive, inner: int) -> Tensor:
        """log of the mean of `inner` unbiased estimates of the ratio: (B,)."""
        (B, L), generators = self.xt.shape, [make_generator(*key, CLAMPED) for key in self.keys]
        at = Step(predictions, self.xt, self.t, self.is_revealed, self.mask_id, generators)
        shape, device = (B, law.num_candidates, L), self.xt.device
        each = [law.slots(at, rand(shape, generators, device=device), self.x0) for _ in range(inner)]
        return lower_bound(torch.stack(each, dim=-1))

    def _sequential_gain(self, predictions: Predictions, law: SequentialMonteCarlo, inner: int) -> Tensor:
        """log of the mean of  w_1 / Z_hat  over `inner` runs whose first particle has the true tokens on S: (B,).

        A run takes a completion with probability p_theta w E[1 / Z_hat], the expectation over runs in which that
        completion is one of the particles and is never given up (Andrieu et al. 2010). With blocks as long as the text
        this is k w_1 / (w_1 + ... + w_k) again. Where what stays masked is drawn from another q than p_theta, as with
        lookahead, w_1 is p_theta w over p_theta on S and q elsewhere.
        """
        (B, L), generators = self.xt.shape, [make_generator(*key, CLAMPED) for key in self.keys]
        at = Step(predictions, self.xt, self.t, self.is_revealed, self.mask_id, generators)
        clamped = torch.where(self.is_revealed, self.x0, self.mask_id)
        log_ratio = []
        for _ in range(inner):
            uniform = rand((B, law.num_candidates, L), generators, device=self.xt.device)
            end = law.run(at, uniform, first=clamped)
            log_ratio.append(end.log_ratio[:, 0] - end.log_z)
        return lower_bound(torch.stack(log_ratio, dim=-1))

    def _log_z_from_above(self, predictions: Predictions, law: Ideal) -> Tensor:
        """An upper bound in expectation on log Z, exact where it is known: (B,)."""
        is_known = is_normalised_at(law.energy, self.xt, self.mask_id) & (law.temperature == 1)
        if is_known.all():
            return torch.zeros(len(self.x0), dtype=torch.float64, device=self.x0.device)
        data = self._clamped(predictions, law, 1, self._drawn(law)).squeeze(-1)
        # Same numbers as for the clamped draws: the two bounds then rise and fall together.
        drawn = self._log_weights(predictions, law, law.partition_samples, CLAMPED)
        return upper_bound(drawn, data).masked_fill(is_known, 0)

    def _drawn(self, law: Law) -> Tensor:
        """Where candidates get tokens: (B, L). For a step energy that is S, and nothing else needs averaging over."""
        return self.is_revealed if judges_steps(law.energy) else self.xt == self.mask_id

    def _clamped(self, predictions: Predictions, law: Law, num: int, where: Tensor) -> Tensor:
        """log w of `num` completions that have the true tokens at `where`: (B, num). If that is all drawn, just one."""
        clamped = torch.where(where, self.x0, self.mask_id)
        if torch.equal(where, self._drawn(law)):
            return self._log_weights(predictions, law, 1, CLAMPED, clamped).expand(-1, num)
        return self._log_weights(predictions, law, num, CLAMPED, clamped)

    def _log_weights(
        self, predictions: Predictions, law: Law, num: int, stream: int, clamped: Tensor | None = None
    ) -> Tensor:  # fmt: skip
        return draw_log_weights(
            predictions, self.xt, self.t, law.energy, num, mask_id=self.mask_id, clamped=clamped,
            where=self.is_revealed if judges_steps(law.energy) else None,
            generator=[make_generator(*key, stream) for key in self.keys], temperature=law.temperature,
        )  # fmt: skip


def num_groups(inner: int, k: int) -> int:
    """G: groups of k - 1 fresh candidates that `inner` clamped draws are paired with.

    Both sides cost about as many network passes, since neither helps without the other; but a few groups at least.
    """
    return max(min(inner, LEAST_GROUPS), -(-inner // (k - 1)))


def resampled_gain(clamped: Tensor, others: Tensor) -> Tensor:
    """log of the mean of  k w_1 / (w_1 + w_2 + ... + w_k)  over R x G inner draws: (B,).

    `clamped` (B, R) are log w_1, of completions with the true tokens at S, and `others` (B, G, k - 1) those of fresh
    candidates. Resampling one of k candidates reveals x0^S with probability p_theta(x0^S | xt) times the expectation of
    that ratio, so the logarithm of any average of such ratios is too low in expectation. All R x G pairs are averaged:
    the networks have been paid for, and more terms make it tighter.
    """
    (R, G), k = (clamped.shape[1], others.shape[1]), others.shape[2] + 1
    rest = others.logsumexp(-1)  # (B, G)
    rows = max(1, CHUNK_PAIRS // (R * G))
    parts = []
    for w, v in zip(clamped.split(rows), rest.split(rows), strict=True):
        log_ratio = w.unsqueeze(2) - torch.logaddexp(w.unsqueeze(2), v.unsqueeze(1))  # (B, R, G)
        parts.append(lower_bound(log_ratio.flatten(1)))
    return math.log(k) + torch.cat(parts)
