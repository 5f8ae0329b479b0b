"""Sequential Monte Carlo along positions: its law, its estimate of Z and its bound, against enumeration."""

import math

import numpy as np
import pytest
import torch

import oracle
from edlm import sampler, smc
from edlm.correction import make_correction
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, ZeroEnergy
from edlm.errors import UserError
from edlm.evaluation import make_score
from edlm.generation import SampleConfig, generate
from edlm.importance import ImportanceSampling, Step
from edlm.likelihood import RevealStep
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.denoiser import predict
from edlm.particles import different_beginnings
from edlm.partition import lower_bound
from edlm.randomness import make_streams, rand
from edlm.schedule import uniform_times
from edlm.smc import SequentialMonteCarlo
from toys import TableAutoregressive, TableDenoiser, TableEnergy, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 3, 8000
TABLE, CAUSAL = oracle.random_denoiser(V, L, seed=0), oracle.random_autoregressive(V, L, seed=1)
DENOISER, MODEL = TableDenoiser(TABLE, V), TableAutoregressive(CAUSAL, V)
ENERGIES = {"ar": AutoregressiveEnergy(MODEL), "coar": CarryOverEnergy(MODEL)}
WEIGHTS = {"ar": oracle.ar_weight(CAUSAL, TABLE, V), "coar": oracle.carry_over_weight(CAUSAL, TABLE, V)}
STATES = [(V, V, V), (V, 1, V), (V, V, 0), (0, V, V), (V, 1, 0)]
every_energy = pytest.mark.parametrize("name", ENERGIES)
every_state = pytest.mark.parametrize("xt", STATES)


def rows(x):
    return [tuple(row) for row in x.tolist()]


def enumerated(name, xt, K, block, threshold=0.95):
    carries_over = name == "coar"
    factor = oracle.causal_factor(CAUSAL, xt, carries_over, V)
    counts = oracle.masked(xt, V) if carries_over else range(L)
    return oracle.smc_law(xt, TABLE, factor, K, block, threshold, V, counts)


def run(name, xt, K, num, block=1, threshold=0.95):
    state = torch.tensor([xt]).expand(num, -1)
    streams = make_streams(0, range(num))
    at = Step(predict(DENOISER, state), state, torch.ones(num), state == V, V, streams)
    return SequentialMonteCarlo(ENERGIES[name], K, block=block, threshold=threshold).run(at, rand((num, K, L), streams))


@every_energy
@every_state
@pytest.mark.parametrize("block", [1, 2])
def test_the_estimate_of_z_is_unbiased_at_every_number_of_particles(name, xt, block):
    _, Z = oracle.ebm_law(xt, TABLE, WEIGHTS[name], V)
    assert abs(enumerated(name, xt, 2, block)[1] - Z) < 1e-9
    for K in (1, 2, 5):
        estimate = run(name, xt, K, 4000, block).log_z.exp()
        assert abs(estimate.mean().item() - Z) < 5 * estimate.std().item() / math.sqrt(4000) + 1e-6
    if name == "coar":
        assert abs(Z - 1) < 1e-9


@every_energy
@pytest.mark.parametrize("xt", [(V, V, V), (V, 1, V)])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_texts_follow_the_enumerated_law(name, xt, block):
    importance = SequentialMonteCarlo(ENERGIES[name], 2, block=block, threshold=0.95)
    state = sampler.init(L, make_streams(0, range(N)), V, fixed=torch.tensor(xt))
    x = sampler.sample(state, DENOISER, uniform_times(1), importance=importance)
    law, _ = enumerated(name, xt, 2, block)
    oracle.assert_law(rows(x), law, N)
    if block == 3:  # nobody is ever drawn again
        assert oracle.total_variation(law, oracle.candidate_law(xt, TABLE, WEIGHTS[name], 2, V)) < 1e-9


@every_energy
def test_many_particles_reach_the_energy_based_model_and_one_is_the_denoiser(name):
    ebm, _ = oracle.ebm_law((V,) * L, TABLE, WEIGHTS[name], V)
    plain = oracle.chain_law(TABLE, [0, 1], V, L)
    distances = []
    for K, num in ((1, 4000), (64, 4000)):
        state = sampler.init(L, make_streams(0, range(num)), V)
        importance = SequentialMonteCarlo(ENERGIES[name], K, block=1)
        x = sampler.sample(state, DENOISER, uniform_times(1), importance=importance)
        share = {key: rows(x).count(key) / num for key in ebm}
        distances.append(oracle.total_variation(share, plain if K == 1 else ebm))
    assert max(distances) < 0.03 < 0.1 < oracle.total_variation(plain, ebm)


@every_energy
@pytest.mark.parametrize("S", [(0, 2), (0, 1, 2)])
def test_the_ratio_inside_the_bound_is_unbiased(name, S):
    num, xt = 6000, torch.full((6000, L), V)
    x0, is_revealed = torch.tensor([[1, 0, 1]]).expand(num, -1), torch.zeros(num, L, dtype=torch.bool)
    is_revealed[:, list(S)] = True
    step = RevealStep(x0, xt, torch.ones(num), is_revealed, [(0, i) for i in range(num)], V)
    gain = step.gain(predict(DENOISER, xt), SequentialMonteCarlo(ENERGIES[name], 2, block=1, threshold=0.95), inner=1)
    true = oracle.marginal(enumerated(name, (V,) * L, 2, 1)[0], (1, 0, 1), S)
    true /= math.prod(TABLE[(V,) * L][i, (1, 0, 1)[i]] for i in S)
    ratio = gain.exp()
    assert abs(ratio.mean().item() - true) < 5 * ratio.std().item() / math.sqrt(num)
    assert gain.mean() < math.log(true) + 5 * gain.std() / math.sqrt(num)


@torch.no_grad()
def test_weights_do_not_degenerate_with_the_number_of_tokens():
    denoiser, causal = tiny_denoiser(), tiny_autoregressive()
    xt, num, K = torch.full((64, 16), 27), 64, 16
    spread = {}
    for block in (2, 16):
        streams = make_streams(0, range(num))
        at = Step(predict(denoiser, xt, torch.ones(num)), xt, torch.ones(num), xt == 27, 27, streams)
        end = SequentialMonteCarlo(AutoregressiveEnergy(causal), K, block=block).run(at, rand((num, K, 16), streams))
        spread[block] = end.log_z.std().item()
    assert spread[2] < 0.7 * spread[16]


@torch.no_grad()
@pytest.mark.parametrize("energy", [AutoregressiveEnergy, CarryOverEnergy])
def test_the_cache_and_taking_turns_change_nothing(energy, monkeypatch):
    class WithoutCache:
        vocab_size, length = 27, 16

        def __call__(self, x0):
            return causal(x0)

    denoiser, causal = tiny_denoiser(), tiny_autoregressive()
    xt = torch.full((3, 16), 27)
    xt[:, :3], xt[:, 9] = torch.tensor([5, 6, 7]), 8
    ends = []
    for model, tokens in ((causal, 1 << 14), (WithoutCache(), 1 << 14), (causal, 1)):
        monkeypatch.setattr(smc, "CACHED_TOKENS", tokens)
        streams = make_streams(0, range(3))
        at = Step(predict(denoiser, xt, torch.ones(3)), xt, torch.ones(3), xt == 27, 27, streams)
        ends.append(SequentialMonteCarlo(energy(model), 6, block=3).run(at, rand((3, 6, 16), streams)))
    for other in ends[1:]:
        assert torch.equal(ends[0].x0, other.x0)
        for a, b in zip(ends[0].columns(), other.columns(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    plain = energy(causal)(ends[0].x0, xt, torch.ones(3), log_proposal(denoiser, xt, ends[0].x0))
    torch.testing.assert_close(-ends[0].log_path, plain, rtol=1e-4, atol=1e-3)


def log_proposal(denoiser, xt, x0):
    is_masked = xt == 27
    each = predict(denoiser, xt, torch.ones(len(xt))).log_prob(x0.transpose(1, 2)[is_masked])
    return torch.zeros(x0.shape[:2], dtype=torch.float64).index_add(0, is_masked.nonzero()[:, 0], each)


@pytest.mark.parametrize("kind", ["ar", "coar"])
def test_a_batch_of_four_gives_its_rows(kind):
    denoiser, causal = tiny_denoiser(), tiny_autoregressive()
    energy = AutoregressiveEnergy(causal) if kind == "ar" else CarryOverEnergy(causal)

    def draw(some):
        config = SampleConfig(steps=4, candidates=4, smc=3, batch_size=4, first=some[0])
        return [s.tokens for s in generate(denoiser, len(some), config, energy=energy)]

    assert draw(range(4)) == [draw([i])[0] for i in range(4)]


def test_each_particle_costs_one_pass_and_the_choice_has_the_estimate():
    start = sampler.init(L, make_streams(0, range(50)), V)
    importance = make_correction(ENERGIES["coar"], 4, smc=1)
    assert isinstance(importance, SequentialMonteCarlo) and importance.block == 1
    *_, (end, info) = sampler.trajectory(start, DENOISER, uniform_times(1), importance=importance)
    assert end.energy_evaluations.tolist() == [4] * 50 and info.choice.log_z.shape == (50,)
    assert not torch.allclose(info.choice.log_z, lower_bound(-info.choice.energies))


def test_settings_name_it_and_results_say_so():
    denoiser, energy = tiny_denoiser(), AutoregressiveEnergy(tiny_autoregressive())
    score = make_score(denoiser, LikelihoodConfig(steps=4, candidates=3, smc=5), energy)
    assert score.quantity == "upper bound of the sequential Monte Carlo sampler, blocks of 5, T = 4, k = 3, w = 1"
    assert "smc" in score.uses and score.function(torch.randint(27, (2, 16)), [0, 1]).isfinite().all()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: SequentialMonteCarlo(ZeroEnergy(), 2), "only the energy of a causal model"),
        (lambda: SequentialMonteCarlo(ENERGIES["ar"], 2, block=0), "must be at least 1, got 0"),
        (lambda: SequentialMonteCarlo(ENERGIES["ar"], 2, threshold=2.0), "between 0 and 1, got 2.0"),
        (lambda: SampleConfig(smc=-1), "smc must be at least 0, got -1"),
        (lambda: SampleConfig(smc=2, completions=1), "leave out completions"),
        (lambda: LikelihoodConfig(smc=2, candidates=None), "needs a number of candidates"),
        (lambda: make_correction(TableEnergy({((0,), (1,)): 0.0}, 1), 2, smc=1), "position by position"),
    ],
)
def test_bad_settings_are_refused(attempt, message):
    with pytest.raises(UserError, match=message):
        attempt()


def test_algorithm_1_stays_what_it_was():
    assert type(make_correction(ENERGIES["ar"], 2)) is ImportanceSampling
    np.testing.assert_allclose(enumerated("ar", (V,) * L, 2, 3)[1], 1, atol=1e-9)


@pytest.mark.parametrize("length", [1, 3])
def test_different_beginnings_are_found_and_every_particle_knows_its_own(length):
    generator = torch.Generator().manual_seed(length)
    rows, read = torch.randint(3, (40,), generator=generator), torch.randint(4, (40, length), generator=generator)
    found_rows, found, which = different_beginnings(rows, read)
    assert torch.equal(found_rows[which], rows) and torch.equal(found[which], read)
    pairs = torch.cat([found_rows.unsqueeze(-1), found], dim=-1).tolist()
    assert pairs == sorted(pairs) and len({tuple(pair) for pair in pairs}) == len(pairs)
