"""The likelihood of what follows given tokens, by enumeration: it is that of the sampler that continues a prompt."""

import functools
import math

import numpy as np
import pytest
import torch

import oracle
from edlm import sampler
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy
from edlm.importance import ImportanceSampling
from edlm.likelihood import Ideal, autoregressive_nll, certified_nll, denoiser_nelbo, paper_nll, trajectory_nll
from edlm.moments import draw_moment
from edlm.randomness import make_streams
from edlm.schedule import uniform_times
from test_likelihood import CAUSAL, DENOISER, ENERGIES, SEQUENCES, TABLE, L, V, candidates_of_steps, grid, mean
from toys import TableAutoregressive

N = 4_000
x0 = torch.tensor(SEQUENCES).repeat_interleave(N // len(SEQUENCES), 0)


def first(given):
    """The first `given` tokens of every row: (N, L)."""
    return (torch.arange(L) < given).expand(N, L)


def average(function):
    return float(np.mean([function(sequence) for sequence in SEQUENCES]))


def assert_mean(values, truth, slack=0.0):
    estimate, error = mean(values)
    assert abs(estimate - truth) < 4.5 * error + slack + 1e-9, (estimate, truth, error)
    assert error < 0.04 * abs(truth)


@functools.cache
def finite_law(name, k, xt):
    return oracle.candidate_law(xt, TABLE, ENERGIES[name][1], k, V)


@pytest.mark.parametrize("given", [1, 2])
@pytest.mark.parametrize("steps", [1, 3, None])
def test_the_bound_of_a_denoiser_is_of_the_tokens_that_are_not_given(steps, given):
    values = denoiser_nelbo(DENOISER, x0, range(N), seed=0, steps=steps, is_given=first(given))
    truth = average(lambda x: oracle.nelbo_steps(x, TABLE, grid(steps or 512), V, given))
    assert_mean(values, truth, slack=0 if steps else 0.01)
    if given == L - 1 and steps is None:  # one token is left: nothing is random any more
        exact = torch.tensor([-math.log(TABLE[(*x[:-1], V)][-1, x[-1]]) for x in x0.tolist()])
        torch.testing.assert_close(values.float(), exact)


@pytest.mark.parametrize(("steps", "k", "window"), [(1, 2, 1.0), (2, 3, 1.0), (4, 2, 0.5)])
@pytest.mark.parametrize("name", ENERGIES)
def test_the_bound_with_an_energy_is_of_the_sampler_that_continues_the_given_tokens(name, steps, k, window):
    energy, weight = ENERGIES[name]
    ks = candidates_of_steps(steps, k, window)
    law = lambda n, xt: finite_law(name, ks[n], xt)  # noqa: E731
    exact = average(lambda x: oracle.chain_nll(x, law, grid(steps), V, 1))
    nelbo = average(lambda x: oracle.nelbo_of_steps(x, law, grid(steps), V, 1))
    expected = average(lambda x: oracle.expected_finite_bound(x, TABLE, weight, grid(steps), ks, V, 1))
    assert exact - 1e-9 <= nelbo <= expected + 1e-9
    importance, settings = ImportanceSampling(energy, k, window), {"seed": 1, "steps": steps}
    values = certified_nll(DENOISER, importance, x0, range(N), inner=1, is_given=first(1), **settings)[:, 0]
    assert_mean(values, expected)
    rows, given = x0[::16], first(1)[::16]
    effort = {"inner": 8, "trajectories": 4}
    many = trajectory_nll(DENOISER, importance, rows, range(len(rows)), is_given=given, **effort, **settings)
    estimate, error = mean(many[:, 0])
    assert exact - 4.5 * error < estimate < expected + 4.5 * error


def test_the_enumerated_law_is_that_of_the_sampler_with_a_prompt():
    ks = candidates_of_steps(3, 2, 0.5)
    prompt = torch.tensor([1, V, V])
    law = lambda n, xt: finite_law("ar", ks[n], xt)  # noqa: E731
    truth = {x: math.exp(-oracle.chain_nll(x, law, grid(3), V, 1)) for x in SEQUENCES if x[0] == 1}
    assert abs(sum(truth.values()) - 1) < 1e-9
    state = sampler.init(L, make_streams(0, range(N)), V, fixed=prompt)
    drawn = sampler.sample(
        state, DENOISER, uniform_times(3), importance=ImportanceSampling(ENERGIES["ar"][0], 2, window=0.5)
    )
    oracle.assert_law([tuple(x) for x in drawn.tolist()], truth, N)


@pytest.mark.parametrize("kind", [AutoregressiveEnergy, CarryOverEnergy])
def test_a_causal_model_gives_the_exact_conditional(kind):
    model = TableAutoregressive(CAUSAL, V)
    exact = autoregressive_nll(model, x0, is_given=first(1))
    wanted = [-sum(math.log(CAUSAL[x[:i]][x[i]]) for i in range(1, L)) for x in map(tuple, x0.tolist())]
    torch.testing.assert_close(exact, torch.tensor(wanted, dtype=torch.float64))
    settings = {"seed": 0, "steps": 1, "is_given": first(1)}
    ideal = certified_nll(DENOISER, Ideal(kind(model), partition_samples=64), x0, range(N), inner=1, **settings)[:, 0]
    estimate, error = mean(ideal - exact)
    assert -4.5 * error - 1e-9 < estimate < 0.05  # one ideal step is the causal model's own conditional
    if kind is CarryOverEnergy:
        torch.testing.assert_close(ideal, exact)
        paper = paper_nll(DENOISER, kind(model), x0, range(N), partition_samples=1, **settings)
        torch.testing.assert_close(paper[:, 0], exact)


@pytest.mark.parametrize("steps", [None, 4])
def test_given_tokens_are_never_masked_and_nothing_given_changes_nothing(steps):
    moment = draw_moment(DENOISER, x0, range(N), seed=3, steps=steps, is_given=first(2))
    assert torch.equal(moment.xt[:, :2], x0[:, :2]) and not moment.is_revealed[:, :2].any()
    plain = draw_moment(DENOISER, x0, range(N), seed=3, steps=steps)
    same = draw_moment(DENOISER, x0, range(N), seed=3, steps=steps, is_given=first(0))
    assert torch.equal(plain.xt, same.xt) and torch.equal(plain.t, same.t)
