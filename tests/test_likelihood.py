"""Bounds of samplers with an energy, against enumeration. The order that must hold in every case:

exact NLL of the sampler <= exact NELBO <= expectation of our estimate.
"""

import functools
import math

import numpy as np
import pytest
import torch

import oracle
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy, ZeroEnergy
from edlm.errors import UserError
from edlm.importance import ImportanceSampling, draw_log_weights
from edlm.likelihood import (
    Ideal,
    autoregressive_nll,
    certified_nll,
    denoiser_nelbo,
    num_groups,
    paper_nll,
    resampled_gain,
    trajectory_nll,
)
from edlm.memory import PASS_TOKENS
from edlm.models.energy_network import energy_from_denoiser
from edlm.randomness import make_generator, make_streams, rand
from edlm.vocabulary import Table
from toys import TableAutoregressive, TableDenoiser, TableEnergy, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 3, 8_000
TABLE, CAUSAL = oracle.random_denoiser(V, L, seed=0), oracle.random_autoregressive(V, L, seed=1)
RANDOM = np.random.default_rng(2)
LEARNED = {(x0, xt): RANDOM.normal() for xt in oracle.states(V, L) for x0 in oracle.completions(xt, V)}
DENOISER = TableDenoiser(TABLE, V)
ENERGIES = {
    "ar": (AutoregressiveEnergy(TableAutoregressive(CAUSAL, V)), oracle.ar_weight(CAUSAL, TABLE, V)),
    "coar": (CarryOverEnergy(TableAutoregressive(CAUSAL, V)), oracle.carry_over_weight(CAUSAL, TABLE, V)),
    "learned": (TableEnergy(LEARNED, V), lambda x0, xt: np.exp(-LEARNED[x0, xt])),
}
every_energy = pytest.mark.parametrize("name", ENERGIES)
SEQUENCES = oracle.sequences(V, L)
x0 = torch.tensor(SEQUENCES).repeat_interleave(N // len(SEQUENCES), 0)  # equally many rows of each


def bound(*args, **kwargs):
    return certified_nll(*args, **kwargs)[:, 0]


def several(*args, **kwargs):
    return trajectory_nll(*args, **kwargs)[:, 0]


def grid(steps):
    return np.linspace(0, 1, steps + 1)


def candidates_of_steps(steps, k, window):
    """k in the window, one outside it, as the paper's algorithm has it: a step that starts at t >= 1 - w resamples."""
    return [k if window > 0 and 1 - n / steps >= 1 - window - 1e-9 else 1 for n in range(steps)]


@functools.cache
def finite_law(name, k, xt):
    return oracle.candidate_law(xt, TABLE, ENERGIES[name][1], k, V)


@functools.cache
def ideal_law(name, xt):
    return oracle.ebm_law(xt, TABLE, ENERGIES[name][1], V)[0]


def mean(values):
    values = values.double()
    return values.mean().item(), (values.std() / len(values) ** 0.5).item()


def assert_mean(values, truth, sigmas=4.5):
    estimate, error = mean(values)
    assert abs(estimate - truth) < sigmas * error + 1e-9, (estimate, truth, error)
    assert error < 0.03 * abs(truth)  # precise enough to mean something


def average(function):
    return float(np.mean([function(sequence) for sequence in SEQUENCES]))


# --- the sampler that is run


@pytest.mark.parametrize("window", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@every_energy
def test_the_bound_of_the_sampler_that_is_run_holds(name, steps, k, window):
    energy, weight = ENERGIES[name]
    ks = candidates_of_steps(steps, k, window)
    law = lambda n, xt: finite_law(name, ks[n], xt)  # noqa: E731
    exact = average(lambda x: oracle.chain_nll(x, law, grid(steps), V))
    nelbo = average(lambda x: oracle.nelbo_of_steps(x, law, grid(steps), V))
    expected = average(lambda x: oracle.expected_finite_bound(x, TABLE, weight, grid(steps), ks, V))
    assert exact - 1e-9 <= nelbo <= expected + 1e-9
    importance = ImportanceSampling(energy, k, window)
    values = bound(DENOISER, importance, x0, range(N), seed=3, steps=steps, inner=1)
    assert_mean(values, expected)


def test_the_enumerated_likelihood_is_that_of_the_enumerated_sampler():
    """Two independent enumerations of the same chain: over texts, and over the ways to reveal one text."""
    ks = candidates_of_steps(3, 2, 0.5)
    chain = oracle.importance_chain_law(TABLE, ENERGIES["ar"][1], grid(3), ks, V, L)
    for sequence in SEQUENCES:
        nll = oracle.chain_nll(sequence, lambda n, xt: finite_law("ar", ks[n], xt), grid(3), V)
        assert abs(nll + math.log(chain[sequence])) < 1e-9


@pytest.mark.parametrize("steps", [2, 8])
@every_energy
def test_more_inner_draws_tighten_the_bound_towards_the_nelbo(name, steps):
    importance = ImportanceSampling(ENERGIES[name][0], 2)
    nelbo = average(lambda x: oracle.nelbo_of_steps(x, lambda n, xt: finite_law(name, 2, xt), grid(steps), V))
    slack = []
    for inner in (1, 4, 32):
        values = bound(DENOISER, importance, x0[::4], range(N)[::4], seed=4, steps=steps, inner=inner)
        estimate, error = mean(values)
        assert estimate > nelbo - 4.5 * error
        slack.append(estimate - nelbo)
    # The three share their moments, so their differences are free of most of that noise.
    assert slack[0] > slack[1] > slack[2] and slack[2] < 0.3 * slack[0] + 4.5 * error


def test_pairing_all_inner_draws_is_tighter_than_pairing_them_in_turn():
    rows = 4000
    clamped, others = (
        2 * torch.randn(*shape, generator=make_generator(0)).double() for shape in ((rows, 8), (rows, 8, 1))
    )
    in_turn = torch.stack([resampled_gain(clamped[:, [r]], others[:, [r]]).exp() for r in range(8)]).mean(0).log()
    gained = resampled_gain(clamped, others) - in_turn
    assert gained.mean() > 5 * gained.std() / rows**0.5
    truth = 2 * torch.sigmoid(clamped.flatten() - others.flatten()).mean()  # both average the same ratio
    assert abs(resampled_gain(clamped, others).exp().mean() - truth) < 0.02


@pytest.mark.parametrize(("inner", "k", "groups"), [(1, 2, 1), (1, 8, 1), (8, 2, 8), (8, 8, 4), (32, 8, 5)])
def test_clamped_and_fresh_draws_cost_about_the_same(inner, k, groups):
    assert num_groups(inner, k) == groups


def test_pairs_are_averaged_in_parts_without_a_difference(monkeypatch):
    clamped, others = torch.randn(5, 4, generator=make_generator(0)), torch.randn(5, 4, 2, generator=make_generator(1))
    whole = resampled_gain(clamped, others)
    monkeypatch.setattr("edlm.likelihood.CHUNK_PAIRS", 32)
    torch.testing.assert_close(resampled_gain(clamped, others), whole)


def test_one_candidate_and_an_empty_window_give_the_plain_denoiser_number_for_number():
    plain = denoiser_nelbo(DENOISER, x0, range(N), seed=5, steps=3)
    for law in (ImportanceSampling(ENERGIES["ar"][0], 1), ImportanceSampling(ENERGIES["ar"][0], 4, window=0.0)):
        values = certified_nll(DENOISER, law, x0, range(N), seed=5, steps=3, inner=2)
        assert torch.equal(values[:, 0], plain) and torch.equal(values[:, 1], plain)


@pytest.mark.parametrize("steps", [None, 4])
def test_a_zero_energy_changes_nothing(steps):
    plain = denoiser_nelbo(DENOISER, x0[:500], range(500), seed=5, steps=steps)
    for law in (ImportanceSampling(ZeroEnergy(), 3), Ideal(ZeroEnergy())):
        torch.testing.assert_close(bound(DENOISER, law, x0[:500], range(500), seed=5, steps=steps, inner=2), plain)


# --- the ideal sampler


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@every_energy
def test_the_bound_of_the_ideal_sampler_holds_and_is_reached_with_effort(name, steps):
    nelbo = average(lambda x: oracle.nelbo_of_steps(x, lambda n, xt: ideal_law(name, xt), grid(steps), V))
    exact = average(lambda x: oracle.chain_nll(x, lambda n, xt: ideal_law(name, xt), grid(steps), V))
    assert exact <= nelbo + 1e-9
    for inner, samples in ((1, 1), (4, 4), (64, 64)):
        law = Ideal(ENERGIES[name][0], partition_samples=samples)
        rows = slice(None) if inner < 64 else slice(None, None, 4)
        values = bound(DENOISER, law, x0[rows], range(N)[rows], seed=6, steps=steps, inner=inner)
        estimate, error = mean(values)
        assert estimate > nelbo - 4.5 * error, (inner, estimate, nelbo, error)
    assert abs(estimate - nelbo) < 4.5 * error + 0.02


@pytest.mark.parametrize("name", ["ar", "coar"])
def test_one_ideal_step_with_a_causal_energy_is_the_causal_models_own_likelihood(name):
    law = Ideal(ENERGIES[name][0])
    values = bound(DENOISER, law, x0[::100], range(N)[::100], seed=7, steps=1, inner=3)
    torch.testing.assert_close(values, autoregressive_nll(TableAutoregressive(CAUSAL, V), x0[::100]))


@every_energy
def test_in_the_limit_of_many_steps_one_token_is_revealed_at_a_time(name):
    """The bound without a number of steps is the limit of the T-step ones; at T = 256 they agree to about 1/T."""
    energy, weight = ENERGIES[name]
    expected = average(lambda x: oracle.expected_finite_bound(x, TABLE, weight, grid(256), [2] * 256, V))
    law = ImportanceSampling(energy, 2)
    estimate, error = mean(bound(DENOISER, law, x0, range(N), seed=8, steps=None, inner=1))
    assert abs(estimate - expected) < 4.5 * error + 0.02


def test_a_window_in_the_limit_of_many_steps_is_a_window_of_time():
    energy, weight = ENERGIES["learned"]
    ks = candidates_of_steps(256, 2, 0.5)
    expected = average(lambda x: oracle.expected_finite_bound(x, TABLE, weight, grid(256), ks, V))
    law = ImportanceSampling(energy, 2, window=0.5)
    estimate, error = mean(bound(DENOISER, law, x0, range(N), seed=8, steps=None, inner=1))
    assert abs(estimate - expected) < 4.5 * error + 0.02


# --- several trajectories


@pytest.mark.parametrize("name", [None, *ENERGIES])
def test_trajectories_bound_the_same_sampler_more_tightly(name):
    law = ImportanceSampling(ENERGIES[name][0], 2) if name else None
    step_law = (lambda n, xt: finite_law(name, 2, xt)) if name else (lambda n, xt: finite_law("ar", 1, xt))
    exact = average(lambda x: oracle.chain_nll(x, step_law, grid(3), V))
    nelbo = average(lambda x: oracle.nelbo_of_steps(x, step_law, grid(3), V))
    found = []
    for trajectories in (1, 4, 32):
        rows = slice(None, None, 2 * trajectories)
        values = several(DENOISER, law, x0[rows], range(N)[rows], seed=9, steps=3, inner=8, trajectories=trajectories)
        found.append(mean(values))
        assert found[-1][0] > exact - 4.5 * found[-1][1]
    assert found[0][0] > nelbo - 4.5 * found[0][1]
    assert found[2][0] < nelbo - 4.5 * found[2][1] or nelbo - exact < 0.01
    assert abs(found[2][0] - exact) < 4.5 * found[2][1] + 0.1 * (found[0][0] - exact) + 0.01


def test_one_trajectory_of_a_plain_denoiser_averages_to_the_nelbo():
    nelbo = average(lambda x: oracle.nelbo_steps(x, TABLE, grid(4), V))
    assert_mean(several(DENOISER, None, x0, range(N), seed=1, steps=4, inner=1, trajectories=1), nelbo)


def test_an_average_inside_the_logarithm_is_never_above_the_average_outside():
    settings = {"seed": 2, "steps": 4, "inner": 1}
    values = trajectory_nll(DENOISER, None, x0[::50], range(N)[::50], trajectories=4, **settings)
    assert (values[:, 0] <= values[:, 1] + 1e-12).all() and (values[:, 0] < values[:, 1] - 0.01).any()
    one = trajectory_nll(DENOISER, None, x0[::50], range(N)[::50], trajectories=1, **settings)
    assert torch.equal(one[:, 0], one[:, 1])


def test_trajectories_of_an_ideal_sampler_need_a_known_partition_function():
    with pytest.raises(UserError, match="Z is 1"):
        trajectory_nll(DENOISER, Ideal(ENERGIES["ar"][0]), x0[:2], range(2), seed=0, steps=2, inner=1, trajectories=2)
    values = several(DENOISER, Ideal(ENERGIES["coar"][0]), x0[:2], range(2), seed=0, steps=1, inner=1, trajectories=2)
    torch.testing.assert_close(values, autoregressive_nll(TableAutoregressive(CAUSAL, V), x0[:2]))


# --- the paper's formula


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("name", ["ar", "learned"])
def test_the_papers_formula_brackets_its_enumerated_value(name, steps):
    truth = average(lambda x: oracle.paper_value(x, lambda n, xt: ideal_law(name, xt), grid(steps), V))
    gaps = []
    for samples in (8, 64):
        rows, index = x0[::4], range(N)[::4]
        values = paper_nll(DENOISER, ENERGIES[name][0], rows, index, seed=2, steps=steps, partition_samples=samples)
        (upper, upper_error), (lower, lower_error) = mean(values[:, 0]), mean(values[:, 1])
        assert lower - 4.5 * lower_error < truth < upper + 4.5 * upper_error
        gaps.append(upper - lower)
    assert 0 < gaps[1] < 0.5 * gaps[0]


@pytest.mark.parametrize("steps", [1, 2, 5, 400])
def test_the_papers_value_for_the_carry_over_energy_is_the_causal_models_likelihood(steps):
    """Integrated over all masks, to float precision and for every number of steps: it says nothing of the sampler."""
    values = paper_nll(DENOISER, ENERGIES["coar"][0], x0, range(N), seed=2, steps=steps, partition_samples=2)
    truth = [oracle.paper_value(x, lambda n, xt: ideal_law("coar", xt), grid(steps), V) for x in SEQUENCES]
    torch.testing.assert_close(values[:: N // len(SEQUENCES), 0], torch.tensor(truth), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(values[:, 1], autoregressive_nll(TableAutoregressive(CAUSAL, V), x0))


def method_example():
    """A distribution of 27 texts whose tokens depend on each other, and its exact joint posteriors."""
    mass = np.exp(1.5 * np.random.default_rng(0).normal(size=27))
    data = dict(zip(oracle.sequences(3, 3), mass / mass.sum(), strict=True))
    joint = {}
    for xt in oracle.states(3, 3):
        fitting = {x: data[x] for x in oracle.completions(xt, 3)}
        joint[xt] = {x: p / sum(fitting.values()) for x, p in fitting.items()}
    return data, joint


@pytest.mark.parametrize(
    ("steps", "paper", "factorised_nll", "factorised_nelbo"),
    [(1, 2.7373, 3.0379, 3.0379), (2, 2.6515, 2.8322, 2.8982), (4, 2.6059, 2.7662, 2.8204),
     (16, 2.5706, 2.7396, 2.7585), (64, 2.5616, 2.7374, 2.7426)],
)  # fmt: skip
def test_the_papers_formula_falls_below_the_entropy_of_the_data(steps, paper, factorised_nll, factorised_nelbo):
    """With the true posterior as denoiser, exact likelihood and bound are the entropy; the paper's value is too low."""
    data, joint = method_example()
    expect = lambda f: sum(p * f(x) for x, p in data.items())  # noqa: E731
    law, alphas = (lambda n, xt: joint[xt]), grid(steps)
    entropy = expect(lambda x: -math.log(data[x]))
    assert abs(entropy - 2.7373) < 5e-5
    if steps <= 4:  # the rest is the same and takes minutes
        assert abs(expect(lambda x: oracle.chain_nll(x, law, alphas, 3)) - entropy) < 1e-9
    assert abs(expect(lambda x: oracle.nelbo_of_steps(x, law, alphas, 3)) - entropy) < 1e-9
    assert abs(expect(lambda x: oracle.paper_value(x, law, alphas, 3)) - paper) < 6e-5
    table = oracle.posterior_denoiser(data, 3, 3)
    chain = oracle.chain_law(table, alphas, 3, 3)
    assert abs(expect(lambda x: -math.log(chain[x])) - factorised_nll) < 6e-5
    assert abs(expect(lambda x: oracle.nelbo_steps(x, table, alphas, 3)) - factorised_nelbo) < 6e-5


@pytest.mark.parametrize(("k", "nll", "bound"), [(1, 3.0379, 3.0379), (2, 2.8401, 2.8953), (3, 2.7851, 2.8435)])
def test_one_step_of_the_sampler_that_is_run_on_the_same_example(k, nll, bound):
    data, _ = method_example()
    table = oracle.posterior_denoiser(data, 3, 3)
    weight = oracle.ar_weight(oracle.autoregressive_of(data, 3, 3), table, 3)
    start = (3, 3, 3)
    law = oracle.candidate_law(start, table, weight, k, 3)
    assert abs(sum(p * -math.log(law[x]) for x, p in data.items()) - nll) < 6e-5
    expected = sum(p * oracle.expected_finite_bound(x, table, weight, [0, 1], [k], 3) for x, p in data.items())
    assert abs(expected - bound) < 6e-5


@pytest.mark.parametrize(
    ("kind", "steps", "nll", "nelbo", "bound"),
    [("coar", 1, 1.8834, 1.8834, 1.9232), ("coar", 2, 1.8847, 1.8940, 2.0053), ("coar", 4, 1.8771, 1.8870, 2.0397),
     ("ar", 4, 1.8605, 1.8697, 2.0269)],
)  # fmt: skip
def test_several_steps_of_the_sampler_that_is_run_with_imperfect_models(kind, steps, nll, nelbo, bound):
    """Two symbols, k = 2: denoiser and causal model are those of distributions near the data's, not of the data."""
    random = np.random.default_rng(1)
    log_mass = 1.5 * random.normal(size=8)
    data, near_causal, near_denoiser = (
        dict(zip(SEQUENCES, np.exp(v) / np.exp(v).sum(), strict=True))
        for v in (log_mass, log_mass + 0.3 * random.normal(size=8), log_mass + 0.3 * random.normal(size=8))
    )
    table, causal = oracle.posterior_denoiser(near_denoiser, V, L), oracle.autoregressive_of(near_causal, V, L)
    weight = {"ar": oracle.ar_weight, "coar": oracle.carry_over_weight}[kind](causal, table, V)
    law = functools.cache(lambda n, xt: oracle.candidate_law(xt, table, weight, 2, V))
    expect = lambda f: sum(p * f(x) for x, p in data.items())  # noqa: E731
    assert abs(expect(lambda x: -math.log(data[x])) - 1.8498) < 6e-5
    assert abs(expect(lambda x: oracle.chain_nll(x, law, grid(steps), V)) - nll) < 6e-5
    assert abs(expect(lambda x: oracle.nelbo_of_steps(x, law, grid(steps), V)) - nelbo) < 6e-5
    expected = expect(lambda x: oracle.expected_finite_bound(x, table, weight, grid(steps), [2] * steps, V))
    assert abs(expected - bound) < 6e-5


# --- independence from how the work is cut up


@pytest.fixture(scope="module")
def networks():
    denoiser = tiny_denoiser()
    network = energy_from_denoiser(denoiser)
    torch.nn.init.normal_(network.transformer.head.weight, std=0.3, generator=make_generator(0))
    causal = tiny_autoregressive()
    energies = {"ar": AutoregressiveEnergy(causal), "coar": CarryOverEnergy(causal), "nce": LearnedEnergy(network)}
    return denoiser, energies, torch.randint(27, (6, 16), generator=make_generator(1))


def estimates(denoiser, energy, text, index):
    finite, ideal = ImportanceSampling(energy, 3), Ideal(energy, partition_samples=5)
    same = {"seed": 1, "steps": 4}
    yield bound(denoiser, finite, text, index, inner=3, **same)
    yield bound(denoiser, ideal, text, index, inner=3, **same)
    yield several(denoiser, finite, text, index, inner=2, trajectories=2, **same)
    yield paper_nll(denoiser, energy, text, index, partition_samples=5, **same)[:, 0]


@pytest.mark.parametrize("name", ["ar", "coar", "nce"])
def test_a_batch_gives_what_its_rows_give_alone(networks, name):
    denoiser, energies, text = networks
    whole = list(estimates(denoiser, energies[name], text, range(6)))
    parts = [list(estimates(denoiser, energies[name], text[i : i + 1], [i])) for i in range(6)]
    for n, together in enumerate(whole):
        torch.testing.assert_close(together, torch.cat([part[n] for part in parts]), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["ar", "coar", "nce"])
def test_scoring_candidates_one_at_a_time_changes_nothing(networks, name, monkeypatch):
    denoiser, energies, text = networks
    whole = list(estimates(denoiser, energies[name], text, range(6)))
    monkeypatch.setitem(PASS_TOKENS, "cpu", 1)
    for together, alone in zip(whole, estimates(denoiser, energies[name], text, range(6)), strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-3)


def test_clamped_candidates_keep_the_true_tokens_and_count_their_probability():
    seen = []

    def energy(candidates, xt, t, log_proposal):
        seen.append((candidates, log_proposal))
        return log_proposal

    xt, clean = torch.tensor([[V, 0, V], [V, V, V]]), torch.tensor([[1, 0, 1], [0, 1, 0]])
    clamped = torch.tensor([[1, V, V], [V, 1, V]])
    streams = make_streams(0, range(2))
    draw_log_weights(Table(DENOISER(xt)), xt, torch.ones(2), energy, 50, mask_id=V, generator=streams, clamped=clamped)
    candidates, log_proposal = (torch.cat(parts, dim=1) for parts in zip(*seen, strict=True))
    assert (candidates[0, :, 0] == clean[0, 0]).all() and (candidates[1, :, 1] == clean[1, 1]).all()
    assert len(candidates[0, :, 2].unique()) == len(candidates[1, :, 0].unique()) == V
    truth = [[oracle.proposal(tuple(c), tuple(state), TABLE, V) for c in row] for row, state in zip(candidates.tolist(), xt.tolist(), strict=True)]  # fmt: skip # noqa: E501
    torch.testing.assert_close(log_proposal.exp(), torch.tensor(truth))


def test_a_stream_of_numbers_does_not_depend_on_how_it_is_cut():
    whole = rand((2, 7, 16), make_streams(0, range(2)))
    streams = make_streams(0, range(2))
    torch.testing.assert_close(torch.cat([rand((2, n, 16), streams) for n in (1, 4, 2)], dim=1), whole, rtol=0, atol=0)
