"""Adaptive effort: its law and bound against enumeration, its budget, and that it is the fixed sampler at the ends."""

import math

import numpy as np
import pytest
import torch

import oracle
from edlm import sampler
from edlm.adaptive import Adaptive
from edlm.correction import make_correction
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, StepEnergy
from edlm.errors import UserError
from edlm.evaluation import make_score
from edlm.generation import SampleConfig, generate
from edlm.importance import ImportanceSampling, RevealFirst
from edlm.likelihood import RevealStep
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.denoiser import predict
from edlm.randomness import make_streams
from edlm.schedule import uniform_times
from edlm.trace import trace_line
from toys import TableAutoregressive, TableDenoiser, TableEnergy, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 2, 20_000
TABLE, CAUSAL = oracle.random_denoiser(V, L, seed=3), oracle.random_autoregressive(V, L, seed=1)
RANDOM = np.random.default_rng(2)
LEARNED = {(x0, xt): RANDOM.normal() for xt in oracle.states(V, L) for x0 in oracle.completions(xt, V)}
DENOISER = TableDenoiser(TABLE, V)
ENERGIES = {
    "ar": (AutoregressiveEnergy(TableAutoregressive(CAUSAL, V)), oracle.ar_weight(CAUSAL, TABLE, V)),
    "learned": (TableEnergy(LEARNED, V), lambda x0, xt: np.exp(-LEARNED[x0, xt])),
}
every_energy = pytest.mark.parametrize("name", ENERGIES)
TARGET = 1.7


def draw(importance, num, steps=1, denoiser=DENOISER, length=L):
    state = sampler.init(length, make_streams(0, range(num)), denoiser.mask_id)
    *_, (state, info) = sampler.trajectory(state, denoiser, uniform_times(steps), importance=importance)
    return state, info


@every_energy
def test_texts_follow_the_enumerated_law_which_is_that_of_no_fixed_number(name):
    energy, weight = ENERGIES[name]
    law = oracle.adaptive_law((V,) * L, TABLE, weight, [2, 4], TARGET, V)
    state, info = draw(Adaptive(energy, 4, target=TARGET), N)
    oracle.assert_law([tuple(row) for row in state.x.tolist()], law, N)
    assert set(info.choice.num_scored.tolist()) == {2, 4}
    assert state.energy_evaluations[info.choice.rows].tolist() == info.choice.num_scored.tolist()
    assert state.energy_evaluations.sum() == info.choice.num_scored.sum() and len(info.choice.rows) < N  # four agree
    for k in (2, 4):
        assert oracle.total_variation(law, oracle.candidate_law((V,) * L, TABLE, weight, k, V)) > 0.002


@pytest.mark.parametrize("k", [2, 3, 6])
@pytest.mark.parametrize("R", [0, 2])
def test_a_target_out_of_reach_is_the_fixed_sampler_draw_for_draw(k, R):
    denoiser, energy = tiny_denoiser(), AutoregressiveEnergy(tiny_autoregressive())
    fixed = RevealFirst(energy, k, completions=R) if R else ImportanceSampling(energy, k)
    ours, _ = draw(Adaptive(energy, k, completions=R, target=99), 3, 5, denoiser, 16)
    theirs, _ = draw(fixed, 3, 5, denoiser, 16)
    assert torch.equal(ours.x, theirs.x) and torch.equal(ours.energy_evaluations, theirs.energy_evaluations)


def test_a_step_energy_judges_what_is_revealed():
    denoiser, energy = tiny_denoiser(), StepEnergy(lambda xs, xt, t: (xs == 4).sum(-1).double() - (xs == 5).sum(-1))
    ours, info = draw(Adaptive(energy, 5, target=99), 3, 4, denoiser, 16)
    theirs, _ = draw(ImportanceSampling(energy, 5), 3, 4, denoiser, 16)
    assert torch.equal(ours.x, theirs.x) and torch.equal(info.choice.num_scored, torch.full_like(info.choice.rows, 5))
    with pytest.raises(UserError, match="completions"):
        Adaptive(energy, 4, completions=1)


def test_a_target_of_one_never_weighs_more_than_two():
    state, _ = draw(Adaptive(ENERGIES["ar"][0], 16, target=1.0), 50)
    assert set(state.energy_evaluations.tolist()) <= {0, 2} and (state.energy_evaluations == 2).double().mean() > 0.9


@pytest.mark.parametrize("budget", [1, 7, 40, 10_000])
@pytest.mark.parametrize("R", [0, 2])
def test_the_budget_is_kept_at_every_step_and_spread_over_the_text(budget, R):
    denoiser, energy = tiny_denoiser(), AutoregressiveEnergy(tiny_autoregressive())
    importance = Adaptive(energy, 8, completions=R, target=3.0, budget=budget)
    state = sampler.init(16, make_streams(0, range(4)), 27)
    for after, _ in sampler.trajectory(state, denoiser, uniform_times(8), importance=importance):
        known = (after.x != 27).double().mean(-1)
        assert (after.energy_evaluations <= budget * known).all()
    assert (after.x != 27).all() and ((after.energy_evaluations > 0) == (budget >= 2 * max(1, R))).all()


def test_without_means_it_is_the_plain_sampler():
    plain, _ = draw(None, 50)
    ours, info = draw(Adaptive(ENERGIES["ar"][0], 8, target=3.0, budget=1), 50)
    assert torch.equal(plain.x, ours.x) and (ours.energy_evaluations == 0).all() and info.choice is None


@pytest.mark.parametrize("R", [0, 1])
def test_a_batch_of_four_gives_its_rows(R):
    denoiser, energy = tiny_denoiser(), CarryOverEnergy(tiny_autoregressive())

    def texts(some):
        config = SampleConfig(
            steps=6, candidates=8, completions=R, ess=2.0, budget=60, order="remask-cap:0.2", first=some[0]
        )
        return [(s.tokens, s.energy_evaluations) for s in generate(denoiser, len(some), config, energy=energy)]

    together = texts(range(4))
    assert together == [texts([i])[0] for i in range(4)] and len({cost for _, cost in together}) > 1


@every_energy
@pytest.mark.parametrize("S", [(0,), (0, 1)])
def test_the_ratio_inside_the_bound_is_unbiased(name, S):
    (energy, weight), num, x0 = ENERGIES[name], 6000, (1, 0)
    is_revealed = torch.zeros(num, L, dtype=torch.bool)
    is_revealed[:, list(S)] = True
    xt = torch.full((num, L), V)
    step = RevealStep(
        torch.tensor([x0]).expand(num, -1), xt, torch.ones(num), is_revealed, [(0, i) for i in range(num)], V
    )
    gain = step.gain(predict(DENOISER, xt), Adaptive(energy, 4, target=TARGET), inner=1)
    true = oracle.marginal(oracle.adaptive_law((V,) * L, TABLE, weight, [2, 4], TARGET, V), x0, S)
    true /= math.prod(TABLE[(V,) * L][i, x0[i]] for i in S)
    ratio = gain.exp()
    assert abs(ratio.mean().item() - true) < 5 * ratio.std().item() / math.sqrt(num)
    assert gain.mean() < math.log(true) + 5 * gain.std() / math.sqrt(num)


def test_the_bound_of_a_target_out_of_reach_is_that_of_the_fixed_sampler():
    energy, num = ENERGIES["learned"][0], 4000
    xt, x0 = torch.full((num, L), V), torch.tensor([[1, 0]]).expand(num, -1)
    is_revealed = torch.tensor([[True, False]]).expand(num, -1)
    step = RevealStep(x0, xt, torch.ones(num), is_revealed, [(0, i) for i in range(num)], V)
    means = [
        step.gain(predict(DENOISER, xt), law, inner=8).exp().mean().item()
        for law in (RevealFirst(energy, 4, completions=2), Adaptive(energy, 4, completions=2, target=99))
    ]
    assert abs(means[0] - means[1]) < 0.01


def test_with_a_budget_there_is_no_bound_and_the_reason_is_given():
    energy, xt = ENERGIES["ar"][0], torch.full((1, L), V)
    step = RevealStep(torch.zeros(1, L, dtype=torch.long), xt, torch.ones(1), xt == V, [(0, 0)], V)
    with pytest.raises(UserError, match="depend on what earlier ones cost"):
        step.gain(predict(DENOISER, xt), Adaptive(energy, 4, budget=5), inner=1)


def test_settings_name_it_and_results_say_so():
    denoiser, energy = tiny_denoiser(), AutoregressiveEnergy(tiny_autoregressive())
    assert type(make_correction(energy, 4, ess=1.5, budget=9)) is Adaptive
    score = make_score(denoiser, LikelihoodConfig(steps=4, candidates=8, ess=1.5, completions=1), energy)
    about = "upper bound of the reveal-first sampler, R = 1, T = 4, k up to 8 until the ESS is 1.5, w = 1"
    assert score.quantity == about and {"ess", "completions"} < set(score.uses)
    assert score.function(torch.randint(27, (2, 16)), [0, 1]).isfinite().all()


def test_the_trace_has_no_number_that_json_lacks():
    import json

    steps = []
    config, energy = SampleConfig(steps=4, candidates=8, ess=1.5), AutoregressiveEnergy(tiny_autoregressive())
    list(generate(tiny_denoiser(), 2, config, energy=energy, watch=lambda *step: steps.append(step)))
    lines = [json.dumps(trace_line(*step), allow_nan=False) for step in steps]
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Adaptive(ENERGIES["ar"][0], 4, target=0.0), "ess must be positive, got 0"),
        (lambda: Adaptive(ENERGIES["ar"][0], 4, budget=-1), "budget must be at least 0, got -1"),
        (lambda: SampleConfig(budget=3), "name the ess that is enough"),
        (lambda: SampleConfig(ess=-1.0), "ess must be at least 0"),
        (lambda: SampleConfig(ess=2.0, smc=4), "leave out completions and ess"),
        (lambda: LikelihoodConfig(ess=2.0, candidates=None), "no ess to reach"),
    ],
)
def test_bad_settings_are_refused(attempt, message):
    with pytest.raises(UserError, match=message):
        attempt()


def test_grids_have_every_kind_once_and_name_it():
    from edlm.study import Method, file_name, make_grid

    method = Method("EDLM-AR", tiny_denoiser(), ENERGIES["ar"][0])
    kinds = {"smc": [0, 8], "ess": [0.0, 1.5], "orders": ["uniform", "entropy:0.5"]}
    base = SampleConfig(ess=1.5, budget=90)
    grid = make_grid([Method("MDLM", method.model), method], [4], [8], [1.0], base, [0, 1], **kinds)
    names = [setting.name for setting in grid]
    assert len(set(map(file_name, grid))) == len(grid) == 2 + 2 * 5
    assert names[:2] == ["MDLM", "MDLM entropy:0.5"]
    assert names[2:7] == [
        "EDLM-AR", "EDLM-AR ess=1.5 budget=90", "EDLM-AR smc=8", "EDLM-AR reveal-first",
        "EDLM-AR reveal-first ess=1.5 budget=90",
    ]  # fmt: skip
    assert [setting.config.budget for setting in grid[2:7]] == [0, 90, 0, 0, 90]
    assert "order" not in Method("AR", tiny_autoregressive()).identity()
