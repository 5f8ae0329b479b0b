"""Importance sampling of what is revealed: its law and its bound, against enumeration."""

import math

import numpy as np
import pytest
import torch

import oracle
from edlm import sampler
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy
from edlm.errors import UserError
from edlm.importance import ImportanceSampling, RevealFirst
from edlm.likelihood import RevealStep, certified_nll
from edlm.models.denoiser import predict
from edlm.randomness import make_streams
from edlm.schedule import uniform_times
from toys import TableAutoregressive, TableDenoiser, TableEnergy, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 3, 20_000
TABLE, CAUSAL = oracle.random_denoiser(V, L, seed=0), oracle.random_autoregressive(V, L, seed=1)
DENOISER = TableDenoiser(TABLE, V)
RANDOM = np.random.default_rng(2)
LEARNED = {(x0, xt): RANDOM.normal() for xt in oracle.states(V, L) for x0 in oracle.completions(xt, V)}
ENERGIES = {
    "ar": (AutoregressiveEnergy(TableAutoregressive(CAUSAL, V)), oracle.ar_weight(CAUSAL, TABLE, V)),
    "coar": (CarryOverEnergy(TableAutoregressive(CAUSAL, V)), oracle.carry_over_weight(CAUSAL, TABLE, V)),
    "learned": (TableEnergy(LEARNED, V), lambda x0, xt: np.exp(-LEARNED[x0, xt])),
}
every_energy = pytest.mark.parametrize("name", ENERGIES)


def rows(x):
    return [tuple(row) for row in x.tolist()]


@every_energy
@pytest.mark.parametrize(("k", "R"), [(2, 1), (3, 1), (2, 2)])
def test_texts_follow_the_enumerated_law(name, k, R):
    energy, weight = ENERGIES[name]
    state = sampler.init(L, make_streams(0, range(N)), V)
    x = sampler.sample(state, DENOISER, uniform_times(2), importance=RevealFirst(energy, k, completions=R))
    oracle.assert_law(rows(x), oracle.reveal_first_chain_law(TABLE, weight, [0, 0.5, 1], k, R, V, L), N)


def test_with_everything_revealed_it_is_algorithm_1():
    energy, weight = ENERGIES["ar"]
    state = (V,) * L
    ours = oracle.reveal_first_law(state, (0, 1, 2), TABLE, weight, 3, 1, V)
    assert oracle.total_variation(ours, oracle.candidate_law(state, TABLE, weight, 3, V)) < 1e-12
    texts = []
    for importance in (ImportanceSampling(energy, 3), RevealFirst(energy, 3)):
        start = sampler.init(L, make_streams(0, range(100)), V)
        texts.append(sampler.sample(start, DENOISER, uniform_times(1), importance=importance))
    assert (texts[0] == texts[1]).float().mean() > 0.5  # same candidates, another number for the choice


@every_energy
def test_many_candidates_and_completions_reach_the_energy_based_models_own_step(name):
    energy, weight = ENERGIES[name]
    ebm, _ = oracle.ebm_law((V,) * L, TABLE, weight, V)
    marginal = np.array([sum(p for x0, p in ebm.items() if x0[1] == token) for token in range(V)])
    state = sampler.init(L, make_streams(0, range(4000)), V)
    is_revealed = torch.zeros(4000, L, dtype=torch.bool)
    is_revealed[:, 1] = True
    time = torch.ones(4000, dtype=torch.float64)
    distances = []
    for k, R in ((2, 1), (32, 64)):
        importance = RevealFirst(energy, k, completions=R)
        after, info = sampler.reveal(state, DENOISER, time, time / 2, is_revealed, importance=importance)
        share = np.bincount(after.x[:, 1].numpy(), minlength=V) / 4000
        distances.append(np.abs(share - marginal).sum() / 2)
        assert info.choice.energies.shape == (len(info.choice.rows), k)
        weighed = torch.isin(torch.arange(4000), info.choice.rows)  # not those whose candidates all agree
        assert torch.equal(after.energy_evaluations, k * R * weighed.long()) and weighed.double().mean() > 0.2
    assert distances[1] < 0.03


@every_energy
@pytest.mark.parametrize("R", [1, 2])
def test_the_ratio_inside_the_bound_is_unbiased(name, R):
    energy, weight = ENERGIES[name]
    num, S = 3000, (0, 2)
    x0 = torch.tensor([[1, 0, 1]]).expand(num, -1)
    xt = torch.full((num, L), V)
    is_revealed = torch.tensor([True, False, True]).expand(num, -1)
    step = RevealStep(x0, xt, torch.ones(num), is_revealed, [(0, i) for i in range(num)], V)
    law = RevealFirst(energy, 2, completions=R)
    gain = step.gain(predict(DENOISER, xt), law, inner=1)
    tokens = (1, V, 1)
    true = oracle.reveal_first_law((V,) * L, S, TABLE, weight, 2, R, V)[tokens]
    true /= TABLE[(V,) * L][0, 1] * TABLE[(V,) * L][2, 1]
    ratio = gain.exp()
    assert abs(ratio.mean().item() - true) < 5 * ratio.std().item() / math.sqrt(num)
    assert gain.mean() < math.log(true) + 5 * gain.std() / math.sqrt(num)
    many = step.select(torch.arange(500)).gain(predict(DENOISER, xt[:500]), law, inner=64)
    assert abs(many.mean().item() - math.log(true)) < 0.05


@torch.no_grad()
def test_the_bound_is_tighter_than_that_of_algorithm_1_on_real_networks():
    denoiser, energy = tiny_denoiser().eval(), AutoregressiveEnergy(tiny_autoregressive().eval())
    x0 = torch.randint(27, (16, 16), generator=torch.Generator().manual_seed(0))
    settings = {"seed": 0, "steps": 4, "inner": 4}
    whole = certified_nll(denoiser, ImportanceSampling(energy, 4), x0, range(16), **settings)
    revealed = certified_nll(denoiser, RevealFirst(energy, 4), x0, range(16), **settings)
    torch.testing.assert_close(whole[:, 1], revealed[:, 1])  # the plain denoiser's, from the same masks
    assert revealed.isfinite().all() and revealed[:, 0].std() < 2 * whole[:, 0].std()


def test_fewer_than_one_completion_is_refused():
    with pytest.raises(UserError, match="completions must be at least 1"):
        RevealFirst(ENERGIES["ar"][0], 2, completions=0)


def test_settings_name_it_and_results_say_so():
    from edlm.evaluation import make_law, make_score
    from edlm.generation import SampleConfig, generate
    from edlm.likelihood_config import LikelihoodConfig
    from edlm.study import Method, make_grid

    denoiser, energy = tiny_denoiser().eval(), AutoregressiveEnergy(tiny_autoregressive().eval())
    config = LikelihoodConfig(steps=4, candidates=3, completions=2)
    law = make_law(config, energy, denoiser)
    assert isinstance(law, RevealFirst) and (law.num_candidates, law.completions) == (3, 2)
    score = make_score(denoiser, config, energy)
    assert score.quantity == "upper bound of the reveal-first sampler, R = 2, T = 4, k = 3, w = 1"
    assert "completions" in score.uses
    (sample,) = generate(denoiser, 1, SampleConfig(steps=2, candidates=3, completions=2), energy=energy)
    assert sample.energy_evaluations == 2 * 3 * 2
    grid = make_grid([Method("EDLM-AR", denoiser, energy)], [4], [2], [1.0], SampleConfig(), [0, 1, 2])
    assert [setting.curve for setting in grid] == [
        "EDLM-AR, k=2, w=1", "EDLM-AR reveal-first, k=2, w=1", "EDLM-AR reveal-first R=2, k=2, w=1"
    ]  # fmt: skip
    with pytest.raises(UserError, match="ideal sampler has no completions"):
        LikelihoodConfig(candidates=None, completions=1)
