"""What a step reveals and hides: laws and likelihoods of every order, against enumeration."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

import oracle
from edlm import sampler
from edlm.adaptive import Adaptive
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy, StepEnergy
from edlm.errors import UserError
from edlm.evaluation import make_score
from edlm.generation import SampleConfig, generate
from edlm.importance import ImportanceSampling, RevealFirst
from edlm.likelihood import certified_nll, denoiser_nelbo
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.energy_network import energy_from_denoiser
from edlm.order import Confidence, EntropyBound, Remasking, Uniform, make_order
from edlm.ordered_likelihood import ordered_nll
from edlm.randomness import make_streams
from edlm.schedule import Cosine, LogLinear, uniform_times
from edlm.smc import SequentialMonteCarlo
from toys import TableAutoregressive, TableDenoiser, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 3, 20_000
TABLE, CAUSAL = oracle.random_denoiser(V, L, seed=0), oracle.random_autoregressive(V, L, seed=1)
DENOISER = TableDenoiser(TABLE, V)
AR, WEIGHT = AutoregressiveEnergy(TableAutoregressive(CAUSAL, V)), oracle.ar_weight(CAUSAL, TABLE, V)
ALL_MASKED = (V,) * L
SPECS = ["uniform", "confidence", "entropy:0.8", "remask-cap:0.3", "remask-rescale:0.7"]


def rows(x):
    return [tuple(row) for row in x.tolist()]


def texts(order, steps, num=N, fixed=None, importance=None, denoiser=DENOISER):
    state = sampler.init(L, make_streams(0, range(num)), V, fixed=fixed)
    return rows(sampler.sample(state, denoiser, uniform_times(steps), order=order, importance=importance))


def grid_choice(steps, free=L):
    """What the confidence order reveals in the n-th of so many steps."""

    def choose(n, xt):
        left = math.floor(free * (1 - (n + 1) / steps) + 0.5)
        return oracle.confident(xt, max(0, len(oracle.masked(xt, V)) - left), TABLE, V)

    return choose


ONE_WAY = {
    "confidence, 2 steps": (Confidence(), 2, grid_choice(2)),
    "confidence, 4 steps": (Confidence(), 4, grid_choice(4)),
    "entropy bound": (EntropyBound(0.5), 1, lambda n, xt: oracle.low_entropy(xt, 0.5, TABLE, V)),
}
one_way = pytest.mark.parametrize("name", ONE_WAY)


def plain(xt, S, x0):
    return math.prod(TABLE[xt][i, x0[i]] for i in S)


def resampled(xt, S, x0):
    """The law of Algorithm 1 with two candidates."""
    return oracle.marginal(oracle.candidate_law(xt, TABLE, WEIGHT, 2, V), x0, S)


def resampled_revealed(xt, S, x0):
    """The law of reveal-first with two candidates and one completion."""
    law = oracle.reveal_first_law(xt, S, TABLE, WEIGHT, 2, 1, V)
    return law[oracle.filled(xt, S, [x0[i] for i in S])]


# --- orders that follow from what is known


@one_way
def test_texts_follow_the_enumerated_law_and_their_likelihood_is_exact(name):
    order, steps, choose = ONE_WAY[name]
    law = {x0: oracle.one_way_likelihood(x0, choose, plain, V) for x0 in oracle.sequences(V, L)}
    assert abs(sum(law.values()) - 1) < 1e-9
    oracle.assert_law(texts(order, steps), law, N)
    nll = ordered_nll(DENOISER, None, order, torch.tensor(list(law)), range(len(law)), seed=0, steps=steps, inner=1)
    np.testing.assert_allclose(nll.numpy(), -np.log(list(law.values())), rtol=1e-9)


@one_way
@pytest.mark.parametrize("kind", ["Algorithm 1", "reveal-first"])
def test_with_an_energy_texts_follow_their_law_and_the_bound_is_above_it(name, kind):
    order, steps, choose = ONE_WAY[name]
    step_law = resampled if kind == "Algorithm 1" else resampled_revealed
    importance = ImportanceSampling(AR, 2) if kind == "Algorithm 1" else RevealFirst(AR, 2)
    law = {x0: oracle.one_way_likelihood(x0, choose, step_law, V) for x0 in oracle.sequences(V, L)}
    oracle.assert_law(texts(order, steps, importance=importance), law, N)
    x0 = (1, 0, 1)
    clean = torch.tensor([x0]).expand(3000, -1)
    bound = ordered_nll(DENOISER, importance, order, clean, range(3000), seed=0, steps=steps, inner=1)
    likelihood, exact = (-bound[:, 0]).exp(), -math.log(law[x0])
    assert abs(likelihood.mean().item() - law[x0]) < 5 * likelihood.std().item() / math.sqrt(3000)
    assert bound[:, 0].mean() > exact - 4 * bound[:, 0].std().item() / math.sqrt(3000)
    np.testing.assert_allclose(bound[0, 1], -math.log(oracle.one_way_likelihood(x0, choose, plain, V)), rtol=1e-9)


def test_given_tokens_are_not_counted():
    order, fixed, free = Confidence(), torch.tensor([V, 1, V]), 2
    law = {
        x0: oracle.one_way_likelihood(x0, grid_choice(2, free), plain, V, start=(V, 1, V))
        for x0 in oracle.completions((V, 1, V), V)
    }
    oracle.assert_law(texts(order, 2, fixed=fixed), law, N)
    x0 = torch.tensor(list(law))
    is_given = torch.tensor([[False, True, False]]).expand(len(x0), -1)
    nll = ordered_nll(DENOISER, None, order, x0, range(len(x0)), seed=0, steps=2, inner=1, is_given=is_given)
    np.testing.assert_allclose(nll.numpy(), -np.log(list(law.values())), rtol=1e-9)


def test_an_entropy_bound_of_zero_goes_token_by_token_and_a_large_one_in_one_step():
    model, start = tiny_denoiser(), sampler.init(16, make_streams(0, range(3)), 27)
    passes = []
    for bound in (0.0, 1e9):
        *_, (end, _) = sampler.trajectory(start, model, uniform_times(5), order=EntropyBound(bound))
        assert (end.x != 27).all()
        passes.append(end.denoiser_evaluations.tolist())
    assert passes == [[16] * 3, [1] * 3]


def test_the_order_asks_the_denoiser_once_a_step_and_not_at_all_where_nothing_is_due():
    denoiser = TableDenoiser(TABLE, V)
    *_, (end, _) = sampler.trajectory(
        sampler.init(L, make_streams(0, [0]), V), denoiser, uniform_times(50), order=Confidence()
    )
    assert denoiser.calls == L and end.denoiser_evaluations.tolist() == [L]


def test_a_lottery_has_no_single_way():
    with pytest.raises(UserError, match="draws lots"):
        ordered_nll(DENOISER, None, Uniform(), torch.zeros(1, L, dtype=torch.long), [0], seed=0, steps=2, inner=1)


# --- remasking


@pytest.mark.parametrize(("share", "rule"), [(0.3, "cap"), (0.7, "rescale")])
def test_remasked_texts_follow_the_enumerated_law(share, rule):
    joint = lambda xt: oracle.independent(xt, TABLE, V)  # noqa: E731
    law = oracle.remasking_chain(joint, [0, 0.25, 0.5, 0.75, 1], share, rule, V, L)[-1]
    oracle.assert_law(texts(Remasking(share, rule), 4), law, N)
    assert oracle.total_variation(law, oracle.chain_law(TABLE, [0, 0.25, 0.5, 0.75, 1], V, L)) > 0.005


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rule", ["cap", "rescale"])
def test_with_the_true_posterior_every_marginal_is_kept(share, rule):
    data, alphas = oracle.random_data(V, L, seed=4), [0, 0.2, 0.5, 0.9, 1]
    laws = oracle.remasking_chain(lambda xt: oracle.posterior(data, xt, V), alphas, share, rule, V, L)
    for alpha, law in zip(alphas, laws, strict=True):
        assert oracle.total_variation(law, oracle.masked_data(data, alpha, V, L)) < 1e-9


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=["log-linear", "cosine"])
@pytest.mark.parametrize(("share", "rule"), [(0.2, "cap"), (1.0, "cap"), (0.5, "rescale")])
def test_the_rates_are_those_of_the_formula(schedule, share, rule):
    times = uniform_times(5)
    rho, sigma = Remasking(share, rule).rates(schedule, times[:-1], times[1:])
    alphas = schedule.alpha(times).tolist()
    wanted = [oracle.remasking_rates(max(a, 0), b, share, rule) for a, b in itertools.pairwise(alphas)]
    np.testing.assert_allclose(torch.stack([rho, sigma], -1).numpy(), wanted, atol=1e-12)
    assert ((rho >= 0) & (rho <= 1)).all() and rho[-1] == 1 and sigma[-1] == 0


def test_without_a_share_it_is_the_uniform_order_draw_for_draw():
    assert texts(Remasking(0.0), 4, num=200) == texts(Uniform(), 4, num=200)


def test_a_prompt_is_never_masked_and_other_tokens_are():
    model = tiny_denoiser()
    fixed = torch.full((16,), 27)
    fixed[[0, 5, 9]] = torch.tensor([3, 1, 4])
    state, remasked = sampler.init(16, make_streams(0, range(4)), 27, fixed=fixed), 0
    before = state.x
    for after, info in sampler.trajectory(state, model, uniform_times(12), order=Remasking(1.0)):
        assert (after.x[:, [0, 5, 9]] == torch.tensor([3, 1, 4])).all()
        assert ((after.x == 27) & (before != 27) == info.is_remasked).all()
        remasked, before = remasked + info.is_remasked.sum(), after.x
    assert remasked > 20 and (before != 27).all()


@pytest.mark.parametrize("importance", [None, ImportanceSampling(AR, 2), RevealFirst(AR, 2)], ids=["plain", "1", "rf"])
def test_the_bound_with_remasking_is_that_of_the_sampler(importance):
    """Above the exact value, and equal to the enumerated sum over the steps of E[-log p(x0^S | xt)]."""
    order, alphas, x0, num = Remasking(0.5, "rescale"), [0, 1 / 3, 2 / 3, 1], (1, 0, 1), 6000
    step_law = {type(None): plain, ImportanceSampling: resampled, RevealFirst: resampled_revealed}[type(importance)]
    enumerated = 0.0
    for before, after in itertools.pairwise(alphas):
        rho, _ = oracle.remasking_rates(before, after, 0.5, "rescale")
        for M in oracle.subsets(range(L)):
            for S in oracle.subsets(M):
                q = (1 - before) ** len(M) * before ** (L - len(M))
                q *= rho ** len(S) * (1 - rho) ** (len(M) - len(S))
                enumerated -= q * math.log(step_law(oracle.mask_out(x0, M, V), S, x0)) if q > 0 and S else 0
    clean, settings = torch.tensor([x0]).expand(num, -1), {"seed": 0, "steps": 3, "remasking": order}
    if importance is None:
        values = denoiser_nelbo(DENOISER, clean, range(num), **settings)
        exact = oracle.remasking_chain(lambda xt: oracle.independent(xt, TABLE, V), alphas, 0.5, "rescale", V, L)[-1]
        assert enumerated > -math.log(exact[x0])
    else:
        values = certified_nll(DENOISER, importance, clean, range(num), inner=64, **settings)[:, 0]
    assert abs(values.mean().item() - enumerated) < 4 * values.std().item() / math.sqrt(num) + 0.03 * (
        importance is not None
    )


# --- all orders


def sampler_of(kind):
    causal, network = tiny_autoregressive(), energy_from_denoiser(tiny_denoiser(1))
    torch.nn.init.normal_(network.transformer.head.weight)
    return {
        "plain": None,
        "ar": ImportanceSampling(AutoregressiveEnergy(causal), 3),
        "coar reveal-first": RevealFirst(CarryOverEnergy(causal), 3),
        "nce": ImportanceSampling(LearnedEnergy(network), 3),
        "step": ImportanceSampling(StepEnergy(network), 3),
        "ar smc": SequentialMonteCarlo(AutoregressiveEnergy(causal), 3, block=4),
        "ar adaptive": Adaptive(AutoregressiveEnergy(causal), 8, target=2.0, budget=80),
    }[kind]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", ["plain", "ar", "coar reveal-first", "nce", "step", "ar smc", "ar adaptive"])
def test_a_batch_of_four_gives_its_rows_and_composes_with_every_sampler(spec, kind):
    model, importance = tiny_denoiser(), sampler_of(kind)
    fixed = torch.full((16,), 27)
    fixed[4:6] = torch.tensor([3, 1])

    def draw(indices):
        state = sampler.init(16, make_streams(0, indices), 27, fixed=fixed)
        return sampler.sample(state, model, uniform_times(6), order=make_order(spec), importance=importance)

    together = draw(range(4))
    assert (together != 27).all() and (together[:, 4:6] == fixed[4:6]).all()
    for i in range(4):
        assert torch.equal(draw([i])[0], together[i])


def test_a_long_text_keeps_what_earlier_windows_wrote():
    config = SampleConfig(steps=8, length=40, overlap=6, order="remask-cap:1")
    seen = []
    (sample,) = generate(tiny_denoiser(), 1, config, watch=lambda _, state, info: seen.append(state.x[0].tolist()))
    assert len(sample.text) == 40 and seen[7][10:] == seen[8][:6] == seen[15][:6]


def test_the_trace_and_the_settings_name_it():
    from edlm.trace import trace_line

    steps = []
    list(generate(tiny_denoiser(), 1, SampleConfig(steps=8, order="remask-cap:0.5"), watch=lambda *s: steps.append(s)))
    lines = [json.loads(json.dumps(trace_line(*step))) for step in steps]
    assert any(line["remasked"][0] for line in lines)
    assert make_order("entropy") == EntropyBound(0.5)


def test_results_name_the_order_and_what_they_are():
    denoiser, energy = tiny_denoiser(), AutoregressiveEnergy(tiny_autoregressive())
    for spec, law, quantity in [
        ("confidence", None, "exact NLL of the sampler, order confidence, T = 4"),
        ("entropy:0.5", None, "exact NLL of the sampler, order entropy:0.5"),
        ("confidence", energy, "upper bound of the sampler, order confidence, T = 4, k = 2, w = 1"),
        ("remask-cap:0.1", None, "upper bound (NELBO), order remask-cap:0.1, T = 4"),
    ]:
        score = make_score(denoiser, LikelihoodConfig(order=spec, steps=4), law)
        assert score.quantity == quantity and "order" in score.uses and ("steps" in score.uses) == (spec[0] != "e")
        nats = score.function(torch.randint(27, (2, 16)), [0, 1])
        assert nats.shape == ((2,) if law is None else (2, 2)) and nats.isfinite().all()
    assert LikelihoodConfig(order="confidence").num_steps(with_energy=False) == 64


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: SampleConfig(order="sorted"), "unknown order 'sorted'; write uniform"),
        (lambda: SampleConfig(order="confidence:2"), "unknown order"),
        (lambda: SampleConfig(order="entropy:low"), "must be a number"),
        (lambda: SampleConfig(order="entropy:-1"), "at least 0 nats"),
        (lambda: SampleConfig(order="remask-cap:2"), "between 0 and 1"),
        (lambda: SampleConfig(order="confidence", first_hitting=True), "an order of its own"),
        (lambda: LikelihoodConfig(order="confidence", protocol="paper"), "the uniform order"),
        (lambda: LikelihoodConfig(order="remask-cap:0.1", steps=0), "no limit of many steps"),
        (lambda: LikelihoodConfig(order="confidence", steps=4, trajectories=2), "one trajectory only"),
        (lambda: LikelihoodConfig(order="remask-cap:0.1", steps=4, trajectories=2), "masks come and go"),
        (lambda: list(generate(tiny_autoregressive(), 1, SampleConfig(order="confidence"))), "from left to right"),
    ],
)
def test_bad_orders_are_refused(attempt, message):
    with pytest.raises(UserError, match=message):
        attempt()


def test_a_film_shows_what_was_hidden_again():
    from edlm.show.film import Reel
    from edlm.trace import Tracer

    model, seen = tiny_denoiser(), []
    config = SampleConfig(steps=8, order="remask-cap:0.5")
    list(generate(model, 1, config, watch=lambda *step: seen.append(step)))
    tracer = Tracer(model.tokenizer, model.mask_id)
    reel = Reel(tracer.header({}, torch.full((16,), 27), 8))
    for step in seen:
        reel.add(json.loads(json.dumps(tracer.line(*step))))
    film = reel.films[0]
    for number, (_, state, _) in enumerate(seen, 1):
        frame, texts = film.frame(number), [model.tokenizer.decode([i]) if i < 27 else "" for i in state.x[0].tolist()]
        assert [cell.text.replace("\u00b7", " ") for cell in frame.cells] == texts
        assert frame.step.num_masked == texts.count("") == sum(cell.step is None for cell in frame.cells)
