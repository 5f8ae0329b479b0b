"""Particles that look ahead: their law, their estimate of Z and their bound, against enumeration."""

import itertools
import math

import pytest
import torch

import oracle
from edlm import sampler
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy
from edlm.errors import UserError
from edlm.evaluation import make_score
from edlm.generation import SampleConfig, generate
from edlm.importance import Step
from edlm.likelihood import RevealStep
from edlm.likelihood_config import LikelihoodConfig
from edlm.lookahead import LookAhead
from edlm.models.denoiser import predict
from edlm.randomness import make_streams, rand
from edlm.schedule import uniform_times
from edlm.smc import SequentialMonteCarlo
from toys import TableAutoregressive, TableDenoiser, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 3, 8000
TABLE = oracle.random_denoiser(V, L, seed=0)
DENOISER = TableDenoiser(TABLE, V)
MODEL = tiny_autoregressive(vocab_size=V, length=L)
ENERGIES = {"ar": AutoregressiveEnergy(MODEL), "coar": CarryOverEnergy(MODEL)}
STATES = [(V, V, V), (V, 1, V), (V, V, 0), (0, V, V), (V, 1, 0)]
BACKGROUND = TABLE[(V,) * L].mean(axis=0)
every_energy = pytest.mark.parametrize("name", ENERGIES)


@torch.no_grad()
def causal_table():
    """p_AR of the last token of every text of up to L tokens, read whole: without a cache, and without SMC's reader."""
    lengths = [torch.tensor(list(itertools.product(range(V), repeat=n))) for n in range(1, L + 1)]
    return {
        tuple(row): p.item() for x in lengths for row, p in zip(x.tolist(), MODEL(x)[:, -1].double().exp(), strict=True)
    }


CAUSAL = causal_table()


def enumerated(name, xt, K, strength=0.8, threshold=0.95):
    return oracle.lookahead_law(
        xt, TABLE, BACKGROUND, lambda x, i: CAUSAL[x[: i + 1]], K, strength, threshold, V, carries_over=name == "coar"
    )


def law_of(name, K, strength=0.8, threshold=0.95, temperature=1.0):
    ahead = LookAhead(DENOISER, strength)
    return SequentialMonteCarlo(ENERGIES[name], K, 1.0, temperature, block=1, threshold=threshold, ahead=ahead)


def run(name, xt, K, num, **settings):
    state = torch.tensor([xt]).expand(num, -1)
    streams = make_streams(0, range(num))
    at = Step(predict(DENOISER, state), state, torch.ones(num), state == V, V, streams)
    return law_of(name, K, **settings).run(at, rand((num, K, L), streams))


def rows(x):
    return [tuple(row) for row in x.tolist()]


def target(name, xt):
    """p_AR of the masked (coAR) or all (AR) positions, normalised over the completions, and what it adds up to."""
    counts = oracle.masked(xt, V) if name == "coar" else range(L)
    mass = {x: math.prod(CAUSAL[x[: i + 1]] for i in counts) for x in oracle.completions(xt, V)}
    return {x: p / sum(mass.values()) for x, p in mass.items()}, sum(mass.values())


@torch.no_grad()
@every_energy
@pytest.mark.parametrize("xt", STATES)
def test_the_estimate_of_z_is_unbiased_whatever_is_lent(name, xt):
    _, Z = target(name, xt)
    assert abs(enumerated(name, xt, 2)[1] - Z) < 1e-6
    for K, strength in ((1, 0.8), (3, 0.8), (3, 2.0)):
        estimate = run(name, xt, K, 4000, strength=strength).log_z.exp()
        assert abs(estimate.mean().item() - Z) < 5 * estimate.std().item() / math.sqrt(4000) + 1e-6


@torch.no_grad()
@every_energy
@pytest.mark.parametrize("xt", [(V, V, V), (V, 1, V), (V, V, 0)])
def test_texts_follow_the_enumerated_law(name, xt):
    state = sampler.init(L, make_streams(0, range(N)), V, fixed=torch.tensor(xt))
    x = sampler.sample(state, DENOISER, uniform_times(1), importance=law_of(name, 2))
    oracle.assert_law(rows(x), enumerated(name, xt, 2)[0], N)


@torch.no_grad()
@every_energy
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_many_particles_reach_the_energy_based_model(name, temperature):
    xt, num = (V, 1, V), 4000
    counts = oracle.masked(xt, V) if name == "coar" else range(L)
    mass = {}
    for x in oracle.completions(xt, V):
        p = math.prod(CAUSAL[x[: i + 1]] for i in counts)
        mass[x] = p ** (1 / temperature) * oracle.proposal(x, xt, TABLE, V) ** (1 - 1 / temperature)
    ebm = {x: m / sum(mass.values()) for x, m in mass.items()}
    distances = []
    for K in (2, 64):
        state = sampler.init(L, make_streams(0, range(num)), V, fixed=torch.tensor(xt))
        importance = law_of(name, K, strength=2.0, temperature=temperature)
        x = sampler.sample(state, DENOISER, uniform_times(1), importance=importance)
        share = {key: rows(x).count(key) / num for key in ebm}
        distances.append(oracle.total_variation(share, ebm))
    assert distances[1] < 0.03


@torch.no_grad()
@every_energy
@pytest.mark.parametrize("S", [(0, 2), (0, 1, 2), (1,)])
def test_the_ratio_inside_the_bound_is_unbiased(name, S):
    num, xt = 6000, torch.full((6000, L), V)
    x0, is_revealed = torch.tensor([[1, 0, 1]]).expand(num, -1), torch.zeros(num, L, dtype=torch.bool)
    is_revealed[:, list(S)] = True
    step = RevealStep(x0, xt, torch.ones(num), is_revealed, [(0, i) for i in range(num)], V)
    gain = step.gain(predict(DENOISER, xt), law_of(name, 2), inner=1)
    true = oracle.marginal(enumerated(name, (V,) * L, 2)[0], (1, 0, 1), S)
    true /= math.prod(TABLE[(V,) * L][i, (1, 0, 1)[i]] for i in S)
    ratio = gain.exp()
    assert abs(ratio.mean().item() - true) < 5 * ratio.std().item() / math.sqrt(num)
    assert gain.mean() < math.log(true) + 5 * gain.std() / math.sqrt(num)


@torch.no_grad()
def test_where_nothing_is_known_the_first_text_is_the_causal_models_own():
    denoiser, causal = tiny_denoiser(), tiny_autoregressive()
    with torch.no_grad():  # it says the same of every position, so what it says of nothing is its background
        denoiser.transformer.head.weight.zero_()
    num, K = 8, 4
    xt, streams = torch.full((num, 16), 27), make_streams(0, range(num))
    at = Step(predict(denoiser, xt, torch.ones(num)), xt, torch.ones(num), xt == 27, 27, streams)
    law = SequentialMonteCarlo(AutoregressiveEnergy(causal), K, block=1, ahead=LookAhead(denoiser, 1.0))
    end = law.run(at, rand((num, K, 16), streams))
    torch.testing.assert_close(end.log_weights, torch.zeros(num, K, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(end.log_z, torch.zeros(num, dtype=torch.float64), atol=1e-4, rtol=0)


@torch.no_grad()
def test_energies_are_those_of_the_plain_formula_and_taking_turns_changes_nothing(monkeypatch):
    from edlm import smc

    denoiser, causal = tiny_denoiser(), tiny_autoregressive()
    xt = torch.full((3, 16), 27)
    xt[:, :3], xt[1:, 9], xt[2, 12:] = torch.tensor([5, 6, 7]), 8, 3
    ends = []
    for tokens in (1 << 14, 1):
        monkeypatch.setattr(smc, "CACHED_TOKENS", tokens)
        streams = make_streams(0, range(3))
        at = Step(predict(denoiser, xt, torch.ones(3)), xt, torch.ones(3), xt == 27, 27, streams)
        law = SequentialMonteCarlo(AutoregressiveEnergy(causal), 6, block=2, ahead=LookAhead(denoiser, 1.0))
        ends.append(law.run(at, rand((3, 6, 16), streams)))
    for a, b in zip(*(end.columns() for end in ends), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    x0, is_masked = ends[0].x0, xt == 27
    each = predict(denoiser, xt, torch.ones(3)).log_prob(x0.transpose(1, 2)[is_masked])
    log_q = torch.zeros(3, 6, dtype=torch.float64).index_add(0, is_masked.nonzero()[:, 0], each)
    plain = AutoregressiveEnergy(causal)(x0, xt, torch.ones(3), log_q)
    torch.testing.assert_close(-ends[0].log_path, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", [AutoregressiveEnergy, CarryOverEnergy])
def test_a_batch_of_four_gives_its_rows(kind):
    denoiser, energy = tiny_denoiser(), kind(tiny_autoregressive())

    def draw(some):
        config = SampleConfig(steps=4, candidates=4, smc=1, lookahead=1, batch_size=4, first=some[0])
        return [s.tokens for s in generate(denoiser, len(some), config, energy=energy)]

    assert draw(range(4)) == [draw([i])[0] for i in range(4)]


def test_a_token_that_the_denoiser_rules_out_is_never_written():
    table = {state: row.copy() for state, row in TABLE.items()}
    for row in table.values():
        row[:, 0], row[:, 1] = 0, 1
    state = sampler.init(L, make_streams(0, range(50)), V)
    energy = SequentialMonteCarlo(ENERGIES["ar"], 3, block=1, ahead=LookAhead(TableDenoiser(table, V), 1.0))
    x = sampler.sample(state, TableDenoiser(table, V), uniform_times(2), importance=energy)
    assert (x == 1).all()


def test_results_say_so():
    denoiser, energy = tiny_denoiser(), AutoregressiveEnergy(tiny_autoregressive())
    score = make_score(denoiser, LikelihoodConfig(steps=4, candidates=3, smc=1, lookahead=0.5), energy)
    what = "sequential Monte Carlo sampler, blocks of 1, lookahead 0.5, T = 4, k = 3, w = 1"
    assert score.quantity == f"upper bound of the {what}" and "lookahead" in score.uses
    assert score.function(torch.randint(27, (2, 16)), [0, 1]).isfinite().all()


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: SampleConfig(lookahead=1.0), "lookahead 1 is for sequential Monte Carlo; name its block"),
        (lambda: LikelihoodConfig(lookahead=1.0), "is for sequential Monte Carlo"),
        (lambda: SampleConfig(smc=1, lookahead=-1), "lookahead must be at least 0, got -1"),
        (lambda: SampleConfig(smc=1, lookahead=float("nan")), "lookahead must be a number, such as 1, got nan"),
        (lambda: LikelihoodConfig(smc=1, lookahead=float("inf")), "lookahead must be a number, such as 1, got inf"),
        (lambda: foreign(), "which only an autoregressive model of edlm can do; leave lookahead out"),
    ],
)
def test_bad_settings_are_refused(attempt, message):
    with pytest.raises(UserError, match=message):
        attempt()


def foreign():
    model = TableAutoregressive(oracle.random_autoregressive(V, L, seed=1), V)
    law = SequentialMonteCarlo(AutoregressiveEnergy(model), 2, block=1, ahead=LookAhead(DENOISER, 1.0))
    sampler.sample(sampler.init(L, make_streams(0, range(2)), V), DENOISER, uniform_times(1), importance=law)
