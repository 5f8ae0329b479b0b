"""Estimates of log Z on an example whose Z is known: both sides, at every n, and how fast they close in."""

import itertools
import math

import numpy as np
import pytest
import torch

from edlm.partition import leave_one_out, lower_bound, paper_upper, standard_error, upper_bound
from edlm.randomness import make_generator, rand

WEIGHTS, CHANCES = np.array([0.2, 1.0, 3.0]), np.array([0.5, 0.3, 0.2])
LOG_Z = math.log(WEIGHTS @ CHANCES)


ANCHOR = 2.0  # any positive number


def anchored(log_weights):
    return upper_bound(log_weights, torch.full(log_weights.shape[:-1], math.log(ANCHOR)).double())


def expectation(estimator, n):
    """The exact expectation over n draws, by enumerating how often each weight is drawn."""
    total = 0.0
    for counts in itertools.product(range(n + 1), repeat=3):
        if sum(counts) == n:
            ways = math.factorial(n) / math.prod(map(math.factorial, counts))
            drawn = torch.tensor(np.repeat(WEIGHTS, counts)).log()
            total += ways * math.prod(CHANCES ** np.array(counts)) * estimator(drawn).item()
    return total


@pytest.mark.parametrize("n", [1, 2, 3, 8, 16, 32])
def test_the_lower_estimate_is_below_for_every_n(n):
    assert expectation(lower_bound, n) < LOG_Z


@pytest.mark.parametrize("anchor", [1e-6, 0.5, 2.0, 1e6])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 16])
def test_the_tangent_estimate_is_above_for_every_n_and_anchor(n, anchor, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ANCHOR", anchor)
    assert expectation(anchored, n) > LOG_Z


def test_the_papers_upper_estimate_is_above_from_some_n_on_only():
    """For rare large weights it is below at first: what makes the theorem's "n large enough" more than a formality."""
    assert all(expectation(paper_upper, n) > LOG_Z for n in (8, 16, 32))
    rare, n = torch.tensor([1.0, 1000.0]).double().log(), 8
    chance, total = 0.001, 0.0
    for m in range(n + 1):
        drawn = rare[[0] * (n - m) + [1] * m]
        total += math.comb(n, m) * chance**m * (1 - chance) ** (n - m) * paper_upper(drawn).item()
    assert total < math.log(1 - chance + chance * 1000)


@pytest.mark.parametrize("estimator", [lower_bound, paper_upper, anchored])
def test_the_error_falls_like_one_over_n(estimator):
    errors = [abs(expectation(estimator, n) - LOG_Z) for n in (12, 24, 48)]
    slopes = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(0.8 < slope < 1.4 for slope in slopes) and abs(slopes[1] - 1) < 0.2, slopes


def test_leaving_one_out_is_the_mean_of_the_others_also_where_one_dominates():
    log_w = torch.tensor([[0.0, 1.0, 2.0], [-800.0, 5.0, -790.0], [300.0, -300.0, -torch.inf]]).double()
    plain = [[lower_bound(row[[j for j in range(3) if j != i]]).item() for i in range(3)] for row in log_w]
    torch.testing.assert_close(leave_one_out(log_w), torch.tensor(plain).double())


def test_one_sample_gives_the_same_value_from_both_sides():
    one = torch.tensor([[0.7]]).double()
    assert lower_bound(one).item() == paper_upper(one).item() == pytest.approx(0.7)
    assert anchored(one).item() == pytest.approx(math.exp(0.7) / ANCHOR + math.log(ANCHOR) - 1)


def test_equal_weights_are_known_exactly():
    log_w = torch.full((4, 6), 1.25).double()
    for estimator in (lower_bound, paper_upper, lambda w: upper_bound(w, w[:, 0])):
        torch.testing.assert_close(estimator(log_w), torch.full((4,), 1.25).double())
    assert (standard_error(log_w) < 1e-12).all()


def test_a_zero_weight_counts():
    drawn = torch.tensor([0.0, -torch.inf]).double()
    assert lower_bound(drawn).item() == pytest.approx(math.log(0.5))
    parts = [1 / 1 + math.log(1), 0 + math.log(1.5)]  # the points are (0 + 2) / 2 and (1 + 2) / 2
    assert anchored(drawn).item() == pytest.approx(sum(parts) / 2 - 1)


def test_the_standard_error_is_the_spread_of_repeated_estimates():
    index = torch.searchsorted(torch.tensor(CHANCES.cumsum()), rand((4000, 64), make_generator(0)))
    log_w = torch.tensor(WEIGHTS).log()[index.clamp(max=2)]
    assert abs(standard_error(log_w).mean() / lower_bound(log_w).std() - 1) < 0.05
