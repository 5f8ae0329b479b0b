import numpy as np
import pytest
import torch

import oracle
from edlm.likelihood import autoregressive_nll, denoiser_nelbo
from edlm.masking import corrupt
from edlm.objectives import Times, masked_log_likelihood, nelbo_at_time, stratified_times
from edlm.randomness import make_generator, rand, spread
from edlm.schedule import Cosine, LogLinear, Polynomial
from edlm.vocabulary import Table
from toys import TableDenoiser, tiny_autoregressive, tiny_denoiser

V, L, N = 3, 3, 60_000
TABLE = oracle.random_denoiser(V, L, seed=0)
X0 = (0, 2, 1)
x0 = torch.tensor(X0).expand(N, L)


def assert_mean(values, truth, sigmas=4.5):
    error = values.double().std() / len(values) ** 0.5
    assert abs(values.double().mean() - truth) < sigmas * error + 1e-9, (values.mean().item(), truth, error.item())
    assert error < 0.02 * abs(truth)  # precise enough to mean something


def test_masked_log_likelihood_sums_the_true_tokens_of_each_row():
    log_probs = torch.randn(4, V).log_softmax(-1)
    xt, clean = torch.tensor([[3, 1, 3], [0, 1, 2], [3, 3, 0]]), torch.tensor([[2, 1, 0], [0, 1, 2], [1, 1, 0]])
    ours = masked_log_likelihood(Table(log_probs), clean, xt, 3)
    truth = torch.stack([log_probs[0, 2] + log_probs[1, 0], torch.tensor(0.0), log_probs[2:, 1].sum()])
    torch.testing.assert_close(ours, truth.double())  # sums are float64


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(), Polynomial()])
def test_the_continuous_bound_is_right_and_the_same_for_every_schedule(schedule):
    denoiser = TableDenoiser(TABLE, V, schedule)
    t = stratified_times(torch.arange(N), N, rand((N,), make_generator(0)))
    xt = corrupt(x0, t, schedule, V, generator=make_generator(1))
    values = nelbo_at_time(masked_log_likelihood(Table(denoiser(xt)), x0, xt, V), t, schedule)
    values = values[t > 1e-3]  # the rest has a chance of 1e-3 and a weight of up to 1e5: exact, but slow to average
    assert_mean(values, oracle.nelbo_continuous(X0, TABLE, V), sigmas=6)


@pytest.mark.parametrize("power", [1.5, 2.0])
def test_skewed_times_change_the_noise_of_the_loss_and_not_its_mean(power):
    times, denoiser = Times(power=power), TableDenoiser(TABLE, V)
    spread = []
    for each in (times, Times()):
        t = each.at(stratified_times(torch.arange(N), N, rand((N,), make_generator(0))))
        xt = corrupt(x0, t, LogLinear(), V, generator=make_generator(1))
        values = each.spacing(t) * nelbo_at_time(masked_log_likelihood(Table(denoiser(xt)), x0, xt, V), t, LogLinear())
        values = torch.where(t > 1e-3, values, 0.0)
        assert_mean(values, oracle.nelbo_continuous(X0, TABLE, V), sigmas=6)
        spread.append(values.std())
    assert spread[0] < 0.9 * spread[1]


def test_the_weight_of_the_log_linear_schedule_is_one_over_t():
    t = torch.tensor([0.1, 0.5, 1.0])
    torch.testing.assert_close(nelbo_at_time(torch.tensor([-1.0, -1.0, -1.0]), t, LogLinear()), 1 / t)


@pytest.mark.parametrize("steps", [None, 1, 2, 3, 8])
def test_likelihood_estimates_average_to_the_enumerated_bound(steps):
    values = denoiser_nelbo(TableDenoiser(TABLE, V), x0, range(N), seed=0, steps=steps)
    if steps is None:
        truth = oracle.nelbo_continuous(X0, TABLE, V)
    else:
        truth = oracle.nelbo_steps(X0, TABLE, np.linspace(0, 1, steps + 1), V)
    assert_mean(values, truth)


def test_the_bound_is_above_the_exact_likelihood_of_its_sampler():
    for steps in (1, 2, 3, 8):
        alphas = np.linspace(0, 1, steps + 1)
        law = oracle.chain_law(TABLE, alphas, V, L)
        assert abs(sum(law.values()) - 1) < 1e-9
        for sequence, p in law.items():
            assert oracle.nelbo_steps(sequence, TABLE, alphas, V) >= -np.log(p) - 1e-9


def test_a_time_conditioned_denoiser_is_told_times_that_fit_its_mask():
    """With the posterior of t given the count, the count form stays the same integral for a network that sees t."""
    seen = {}

    class Timed(TableDenoiser):
        uses_time = True

        def __call__(self, xt, t=None, where=None):
            seen["count"], seen["t"] = (xt == V).sum(-1), t
            return super().__call__(xt, t, where)

    denoiser_nelbo(Timed(TABLE, V), x0, range(N), seed=0, steps=None)
    for n in (1, 2, 3):  # Beta(n, L - n + 1) has mean n / (L + 1)
        times = seen["t"][seen["count"] == n]
        assert abs(times.mean() - n / (L + 1)) < 5 * times.std() / len(times) ** 0.5


def test_estimates_do_not_depend_on_the_batch_they_are_made_in():
    model, text = tiny_denoiser(), torch.randint(27, (6, 16), generator=make_generator(0))
    whole = denoiser_nelbo(model, text, range(6), seed=1, steps=None)
    parts = [denoiser_nelbo(model, text[i : i + 1], [i], seed=1, steps=None) for i in range(6)]
    torch.testing.assert_close(whole, torch.cat(parts))


def test_spread_numbers_are_uniform_and_even():
    values = spread(range(1000), seed=3).sort().values
    assert values.diff().max() < 0.003 and values.min() >= 0 and values.max() < 1
    assert spread([5], 0) != spread([5], 1)


def test_times_are_stratified_over_the_batch():
    t = stratified_times(torch.arange(100), 100, rand((100,), make_generator(0)))
    assert ((1 - t) * 100).floor().tolist() == list(range(100))
    assert t.min() > 0 and t.max() <= 1


def test_the_autoregressive_likelihood_scores_every_token_and_sums_to_one():
    model = tiny_autoregressive(vocab_size=3, length=3)
    model.tokenizer = None
    every = torch.tensor(oracle.sequences(3, 3))
    assert abs(torch.exp(-autoregressive_nll(model, every)).sum() - 1) < 1e-5
