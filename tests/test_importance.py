"""Energies and Algorithm 1 against enumeration. Every mistake of the public code has its test here."""

import functools
import itertools

import numpy as np
import pytest
import torch

import oracle
from edlm import sampler
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy, WeightedSum, ZeroEnergy
from edlm.errors import UserError
from edlm.importance import (
    ImportanceSampling,
    choose,
    effective_sample_size,
    energy_ess,
    log_weights,
    make_importance,
    propose,
)
from edlm.models.energy_network import energy_from_denoiser
from edlm.randomness import make_generator, make_streams, rand
from edlm.schedule import uniform_times
from edlm.vocabulary import Table
from toys import TableAutoregressive, TableDenoiser, TableEnergy, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 3, 30_000
DENOISER, CAUSAL = oracle.random_denoiser(V, L, seed=0), oracle.random_autoregressive(V, L, seed=1)
RANDOM = np.random.default_rng(2)
LEARNED = {(x0, xt): RANDOM.normal() for xt in oracle.states(V, L) for x0 in oracle.completions(xt, V)}
ENERGIES = {
    "zero": (ZeroEnergy(), lambda x0, xt: 1.0),
    "ar": (AutoregressiveEnergy(TableAutoregressive(CAUSAL, V)), oracle.ar_weight(CAUSAL, DENOISER, V)),
    "coar": (CarryOverEnergy(TableAutoregressive(CAUSAL, V)), oracle.carry_over_weight(CAUSAL, DENOISER, V)),
    "learned": (TableEnergy(LEARNED, V), lambda x0, xt: np.exp(-LEARNED[x0, xt])),
}
every_energy = pytest.mark.parametrize("name", ENERGIES)


def rows(x):
    return [tuple(row) for row in x.tolist()]


def draw_texts(energy, k, steps, window=1.0, num=N, fixed=None, table=DENOISER):
    importance = ImportanceSampling(energy, k, window)
    state = sampler.init(L, make_streams(0, range(num)), V, fixed=fixed)
    return rows(sampler.sample(state, TableDenoiser(table, V), uniform_times(steps), importance=importance))


# --- energies


@every_energy
def test_weights_of_all_completions_are_the_enumerated_ones(name):
    energy, weight = ENERGIES[name]
    for xt in oracle.states(V, L):
        items = list(oracle.completions(xt, V))
        log_p = torch.tensor([[oracle.proposal(x0, xt, DENOISER, V) for x0 in items]]).log()
        energies = energy(torch.tensor([items]), torch.tensor([xt]), torch.ones(1), log_p)
        np.testing.assert_allclose((-energies).exp()[0], [weight(x0, xt) for x0 in items], rtol=1e-5)


def partition_function(energy, xt):
    items = list(oracle.completions(xt, V))
    p = torch.tensor([[oracle.proposal(x0, xt, DENOISER, V) for x0 in items]])
    return (p * (-energy(torch.tensor([items]), torch.tensor([xt]), torch.ones(1), p.log())).exp()).sum().item()


def test_the_carry_over_energy_is_normalised_in_every_state():
    for xt in oracle.states(V, L):
        assert abs(partition_function(ENERGIES["coar"][0], xt) - 1) < 1e-9


def test_the_partition_function_of_the_ar_energy_is_the_probability_of_what_is_known():
    for xt in oracle.states(V, L):
        known = sum(np.prod([CAUSAL[x[:i]][x[i]] for i in range(L)]) for x in oracle.completions(xt, V))
        assert abs(partition_function(ENERGIES["ar"][0], xt) - known) < 1e-9


def test_known_tokens_count_for_ar_and_not_for_carry_over():
    """The tokens right of a masked one tell AR which candidate fits; coAR only looks left."""
    xt, x0 = torch.tensor([[V, 1, 0]]), torch.tensor([[[0, 1, 0], [1, 1, 0]]])
    log_p = torch.zeros(1, 2, dtype=torch.float64)
    by_ar, by_carry_over = (ENERGIES[name][0](x0, xt, torch.ones(1), log_p) for name in ("ar", "coar"))
    first = torch.tensor(CAUSAL[()]).log()
    torch.testing.assert_close(by_carry_over[0], -first)
    rest = [np.log(CAUSAL[(v,)][1] * CAUSAL[(v, 1)][0]) for v in range(V)]
    torch.testing.assert_close(by_ar[0], -first - torch.tensor(rest))


def test_a_real_causal_network_scores_all_positions_of_its_own_candidates():
    model = tiny_autoregressive()
    x0 = torch.randint(27, (3, 4, 16), generator=make_generator(0))
    xt = torch.full((3, 16), 27)
    with torch.no_grad():
        energies = AutoregressiveEnergy(model)(x0, xt, torch.ones(3), torch.zeros(3, 4))
        alone = [[-model(x0[b, k][None]).double().sum() for k in range(4)] for b in range(3)]
    torch.testing.assert_close(energies, torch.tensor(alone, dtype=torch.float64), rtol=1e-4, atol=1e-3)


def test_a_weighted_sum_multiplies_corrections_and_adds_costs():
    both = WeightedSum([(1.0, ENERGIES["ar"][0]), (0.5, ENERGIES["learned"][0])])
    xt, x0, log_p = torch.full((1, L), V), torch.tensor([[[0, 1, 0], [1, 1, 1]]]), torch.zeros(1, 2)
    parts = [energy(x0, xt, torch.ones(1), log_p) for _, energy in both.terms]
    torch.testing.assert_close(both(x0, xt, torch.ones(1), log_p), parts[0] + 0.5 * parts[1])
    assert both.num_passes == 2 and ZeroEnergy().num_passes == 0
    with pytest.raises(UserError, match="at least one term"):
        WeightedSum([])


def test_permuting_candidates_permutes_their_energies():
    network = energy_from_denoiser(tiny_denoiser())
    torch.nn.init.normal_(network.transformer.head.weight)
    x0 = torch.randint(27, (2, 5, 16), generator=make_generator(0))
    xt = x0[:, 0].masked_fill(torch.rand(2, 16, generator=make_generator(1)) < 0.5, 27)
    order = torch.tensor([3, 0, 4, 1, 2])
    for energy in (
        LearnedEnergy(network),
        AutoregressiveEnergy(tiny_autoregressive()),
        CarryOverEnergy(tiny_autoregressive()),
    ):
        with torch.no_grad():
            a = energy(x0, xt, torch.tensor([0.3, 0.8]), torch.zeros(2, 5))
            b = energy(x0[:, order], xt, torch.tensor([0.3, 0.8]), torch.zeros(2, 5))
        torch.testing.assert_close(a[:, order], b, rtol=1e-4, atol=1e-4)


# --- weights


def test_low_energy_is_likely():
    energies = torch.tensor([[0.0, 1.0, 3.0]])
    assert log_weights(energies).tolist() == [[0.0, -1.0, -3.0]]
    chosen, weights = choose(log_weights(energies.expand(1000, -1)), rand((1000,), make_generator(0)))
    torch.testing.assert_close(weights[:1].exp(), torch.softmax(torch.tensor([[0.0, -1.0, -3.0]]).double(), -1))
    assert (chosen == 0).float().mean() > 0.6 > 0.1 > (chosen == 2).float().mean()


def test_huge_energies_do_not_overflow():
    energies = torch.tensor([[1e5, 1e5 + 1.0, 2e5], [-1e5, torch.inf, -1e5]])
    weights = choose(log_weights(energies), torch.full((2,), 0.5))[1].exp()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(weights[0, :2], torch.softmax(torch.tensor([0.0, -1.0]).double(), -1))
    assert weights[1].tolist() == [0.5, 0, 0.5]


def test_the_effective_sample_size_is_of_the_weights_and_the_papers_is_of_the_energies():
    energies = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 60.0], [5.0, 500.0, 500.0, 500.0]]).double()
    torch.testing.assert_close(effective_sample_size(log_weights(energies)), torch.tensor([4.0, 3.0, 1.0]).double())
    torch.testing.assert_close(energy_ess(energies[1:2]), torch.tensor([63**2 / 3603]).double())


def test_a_temperature_divides_the_energies():
    energies = torch.randn(3, 5, generator=make_generator(0)).double()
    torch.testing.assert_close(log_weights(energies, 2.0), log_weights(energies / 2))


def test_candidates_complete_their_own_state_with_their_own_probability():
    xt = torch.tensor([[V, 0, V], [1, V, 1], [V, V, V], [0, 0, 0]])
    denoiser = TableDenoiser(DENOISER, V)
    x0, log_p = propose(Table(denoiser(xt)), xt, V, rand((4, 6, L), make_streams(0, range(4))))
    for b, k in itertools.product(range(4), range(6)):
        state, text = tuple(xt[b].tolist()), tuple(x0[b, k].tolist())
        assert all(a in (v, V) for a, v in zip(state, text, strict=True))
        assert abs(log_p[b, k].exp() - oracle.proposal(text, state, DENOISER, V)) < 1e-9


# --- the law of a step


@every_energy
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_step_follows_the_exact_law_of_k_candidates_with_unequal_rows_in_a_batch(name, k):
    energy, weight = ENERGIES[name]
    states = [(V, V, V), (V, 0, V), (1, V, 1)]
    fixed = torch.tensor(states).repeat_interleave(N // 3, 0)
    texts = draw_texts(energy, k, steps=1, fixed=fixed, num=len(fixed))
    for i, xt in enumerate(states):
        law = oracle.candidate_law(xt, DENOISER, weight, k, V)
        oracle.assert_law(texts[i * (N // 3) : (i + 1) * (N // 3)], law, N // 3)


def test_the_distance_to_the_exact_ebm_falls_like_one_over_k():
    energy, weight = ENERGIES["learned"]
    target, _ = oracle.ebm_law((V,) * L, DENOISER, weight, V)
    ks, num = [2, 4, 8, 16], 60_000
    distances = []
    for k in ks:
        texts = draw_texts(energy, k, steps=1, num=num)
        law = {x: texts.count(x) / num for x in target}
        distances.append(oracle.total_variation(law, target))
    slope = np.polyfit(np.log(ks), np.log(distances), 1)[0]
    assert -1.35 < slope < -0.75, (slope, distances)


@pytest.mark.parametrize("completions", [0, 2])
def test_candidates_that_agree_on_what_is_revealed_are_not_weighed_and_nothing_else_changes(completions, monkeypatch):
    """Draw for draw: whichever were taken, the step would reveal the same."""
    importance = make_importance(ENERGIES["learned"][0], 2, completions=completions)

    def run():
        state = sampler.init(L, make_streams(0, range(500)), V)
        steps = list(sampler.trajectory(state, TableDenoiser(DENOISER, V), uniform_times(6), importance=importance))
        return steps[-1][0], [info.choice for _, info in steps]

    ours, choices = run()
    monkeypatch.setattr("edlm.importance.disagree", lambda x0, is_revealed: torch.ones(len(x0), dtype=torch.bool))
    theirs, all_choices = run()
    assert torch.equal(ours.x, theirs.x)
    assert ours.energy_evaluations.sum() < 0.8 * theirs.energy_evaluations.sum()
    for some, every in zip(choices, all_choices, strict=True):
        weighed = torch.isin(every.rows, some.rows)
        torch.testing.assert_close(some.energies, every.energies[weighed])
        assert torch.equal(some.x0, every.x0[weighed]) and torch.equal(some.chosen, every.chosen[weighed])


@every_energy
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_texts_after_so_many_steps_follow_the_exact_law(name, steps):
    energy, weight = ENERGIES[name]
    law = oracle.importance_chain_law(DENOISER, weight, np.linspace(0, 1, steps + 1), [2] * steps, V, L)
    oracle.assert_law(draw_texts(energy, 2, steps), law, N)


def test_outside_the_window_the_step_is_plain():
    energy, weight = ENERGIES["ar"]
    law = oracle.importance_chain_law(DENOISER, weight, np.linspace(0, 1, 5), [3, 3, 1, 1], V, L)
    oracle.assert_law(draw_texts(energy, 3, 4, window=0.25), law, N)
    assert draw_texts(energy, 3, 4, window=0.0, num=50) == draw_texts(ZeroEnergy(), 1, 4, num=50)


def test_first_hitting_with_candidates_is_the_limit_of_many_steps():
    energy, weight = ENERGIES["ar"]
    state = sampler.init(L, make_streams(0, range(N)), V)
    *_, (end, _) = sampler.first_hitting(state, TableDenoiser(DENOISER, V), importance=ImportanceSampling(energy, 2))
    law = oracle.one_by_one_law(lambda xt: oracle.candidate_law(xt, DENOISER, weight, 2, V), V, L)
    oracle.assert_law([tuple(row) for row in end.x.tolist()], law, N)


def test_with_the_true_model_as_target_one_step_reaches_the_data_which_the_denoiser_alone_cannot():
    data = oracle.random_data(V, L, seed=5)
    table = oracle.posterior_denoiser(data, V, L)
    energy = AutoregressiveEnergy(TableAutoregressive(oracle.autoregressive_of(data, V, L), V))
    distances = []
    for k in (1, 4, 16, 64):
        texts = draw_texts(energy, k, steps=1, num=20_000, table=table)
        distances.append(oracle.total_variation({x: texts.count(x) / 20_000 for x in data}, data))
    assert distances[0] > 0.1 and all(b < 0.6 * a for a, b in itertools.pairwise(distances[:3])) and distances[3] < 0.02


# --- invariances


def real_trajectory(num=4, first=0, importance=None, steps=5, fixed=None):
    model = tiny_denoiser()
    state = sampler.init(16, make_streams(0, range(first, first + num)), 27, fixed=fixed)
    return list(sampler.trajectory(state, model, uniform_times(steps), importance=importance))


@pytest.mark.parametrize("kind", ["ar", "coar", "nce"])
def test_a_batch_of_four_is_four_batches_of_one(kind):
    importance = ImportanceSampling(real_energy(kind), 3)
    together = real_trajectory(importance=importance)[-1][0].x
    alone = [real_trajectory(1, i, importance)[-1][0].x for i in range(4)]
    assert torch.equal(together, torch.cat(alone))


@functools.cache
def real_energy(kind):
    if kind == "nce":
        network = energy_from_denoiser(tiny_denoiser()).eval()
        torch.manual_seed(0)
        torch.nn.init.normal_(network.transformer.head.weight)
        return LearnedEnergy(network)
    return {"ar": AutoregressiveEnergy, "coar": CarryOverEnergy}[kind](tiny_autoregressive())


@pytest.mark.parametrize(
    "importance", [None, ImportanceSampling(ZeroEnergy(), 1), ImportanceSampling(real_energy("ar"), 1)]
)
def test_one_candidate_is_plain_sampling_draw_for_draw(importance):
    assert torch.equal(real_trajectory(importance=importance)[-1][0].x, real_trajectory()[-1][0].x)


def test_the_first_candidate_of_the_first_step_is_the_plain_draw():
    plain = real_trajectory(steps=1)[0][0].x
    ((_, info),) = real_trajectory(steps=1, importance=ImportanceSampling(ZeroEnergy(), 4))
    assert torch.equal(info.choice.x0[:, 0], plain)


def test_scattered_known_tokens_never_change_and_reach_the_energy():
    fixed = torch.full((16,), 27)
    fixed[[0, 5, 6, 15]] = torch.tensor([3, 1, 4, 1])
    for state, info in real_trajectory(importance=ImportanceSampling(real_energy("ar"), 3), fixed=fixed):
        assert torch.equal(state.x[:, fixed != 27], fixed[fixed != 27].expand(4, -1))
        if info.choice is not None:
            assert torch.equal(
                info.choice.x0[..., fixed != 27], fixed[fixed != 27].expand(len(info.choice.rows), 3, -1)
            )
    assert (state.x != 27).all()


def test_the_info_of_a_step_says_what_was_seen_and_chosen():
    before = torch.full((4, 16), 27)
    total = torch.zeros(4, dtype=torch.long)
    for state, info in real_trajectory(importance=ImportanceSampling(real_energy("coar"), 3, window=0.5)):
        is_active = info.num_revealed > 0
        total += 3 * is_active * (info.t[0] >= 0.5)
        assert torch.equal(state.energy_evaluations, total)
        assert (info.choice is not None) == bool(info.t[0] >= 0.5 and is_active.any())
        if info.choice is not None:
            choice = info.choice
            assert torch.equal(choice.rows, is_active.nonzero()[:, 0])
            taken = choice.x0[torch.arange(len(choice.rows)), choice.chosen]
            assert torch.equal(torch.where(info.is_revealed, state.x, before)[choice.rows], state.x[choice.rows])
            assert torch.equal(
                state.x[choice.rows][info.is_revealed[choice.rows]], taken[info.is_revealed[choice.rows]]
            )
            assert ((choice.effective_sample_size >= 1) & (choice.effective_sample_size <= 3 + 1e-9)).all()
        before = state.x


# --- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_candidates": 0}, "candidates must be at least 1, got 0"),
        ({"window": -0.1}, "window must be between 0 and 1, got -0.1"),
        ({"window": 1.5}, "window must be between 0 and 1, got 1.5"),
        ({"temperature": 0.0}, "weight temperature must be positive, got 0.0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        ImportanceSampling(ZeroEnergy(), **settings)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_energies_that_leave_no_law_stop_at_a_named_step(value):
    class Broken:
        num_passes = 1

        def __call__(self, x0, xt, t, log_proposal):
            return torch.where(t.unsqueeze(-1) < 0.5, value, torch.zeros_like(log_proposal))

    with pytest.raises(UserError, match=r"the energy of row \d is .* at step \d \(t = 0\.[24]\); stopped"):
        real_trajectory(importance=ImportanceSampling(Broken(), 2))
