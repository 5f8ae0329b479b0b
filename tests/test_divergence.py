"""The divergence frontier against its definition, and what it must say about texts that are alike, mixed or unlike."""

import math
import random

import numpy as np
import pytest
from scipy.integrate import quad

from edlm import divergence
from edlm.divergence import area_under_frontier, compare_texts, frontier, frontier_integral, smoothed
from edlm.errors import UserError

WORDS = {
    "sea": ["wave", "salt", "sail", "harbour", "tide", "gull", "anchor", "mast"],
    "hill": ["peak", "cliff", "snow", "goat", "valley", "ridge", "pine", "boulder"],
}


def texts(kind, num, seed):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS[kind], k=12)) for _ in range(num)]


def random_histograms(seed, size=6):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))


# --- histograms


def plain_kl(a, b):
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_area_is_that_of_the_published_curve(seed):
    P, Q = random_histograms(seed)

    def at(mixing):
        R = mixing * P + (1 - mixing) * Q
        return math.exp(-5 * plain_kl(Q, R)), math.exp(-5 * plain_kl(P, R))

    def rate(mixing, step=1e-6):  # how the first coordinate moves as the weight of P grows
        return (at(mixing + step)[0] - at(mixing - step)[0]) / (2 * step)

    expected = at(1 - 1e-9)[0] + quad(lambda mixing: -at(mixing)[1] * rate(mixing), 1e-5, 1 - 1e-5)[0]
    assert area_under_frontier(P, Q) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_frontier_integral_is_the_integral_of_its_definition(seed):
    P, Q = random_histograms(seed)

    def linear_cost(mixing):
        R = mixing * P + (1 - mixing) * Q
        return mixing * plain_kl(P, R) + (1 - mixing) * plain_kl(Q, R)

    assert frontier_integral(P, Q) == pytest.approx(2 * quad(linear_cost, 0, 1)[0], rel=1e-6)


def test_equal_histograms_score_one_and_disjoint_ones_nothing():
    P, Q = np.array([0.3, 0.7, 0, 0]), np.array([0, 0, 0.5, 0.5])
    assert area_under_frontier(P, P) == pytest.approx(1) and frontier_integral(P, P) == 0
    assert area_under_frontier(P, Q) < 0.01 and frontier_integral(P, Q) == pytest.approx(1)


def test_neither_score_depends_on_which_histogram_comes_first():
    P, Q = random_histograms(4)
    assert area_under_frontier(P, Q) == pytest.approx(area_under_frontier(Q, P))
    assert frontier_integral(P, Q) == pytest.approx(frontier_integral(Q, P))


def test_the_curve_goes_from_one_corner_to_the_other_without_turning_back():
    curve = frontier(*random_histograms(5))
    assert curve[0].tolist() == [0, 1] and curve[-1].tolist() == [1, 0]
    assert (np.diff(curve[:, 0]) >= 0).all() and (np.diff(curve[:, 1]) <= 0).all()


def test_smoothing_adds_half_a_text_to_every_cluster():
    assert smoothed(np.array([3, 0])).tolist() == [3.5 / 4, 0.5 / 4]


# --- texts


def test_texts_of_one_kind_score_near_one_and_of_different_kinds_near_zero():
    same = compare_texts(texts("sea", 100, 0), texts("sea", 100, 1))
    other = compare_texts(texts("sea", 100, 0), texts("hill", 100, 1))
    assert same.area > 0.9 and same.frontier_integral < 0.1
    assert other.area < 0.1 and other.frontier_integral > 0.6
    assert same.num_clusters == 10 and same.num_texts == (100, 100)


def test_the_score_falls_as_samples_are_contaminated():
    mixed = [texts("sea", 120 - bad, 0) + texts("hill", bad, 2) for bad in (0, 30, 60, 120)]
    results = [compare_texts(part, texts("sea", 120, 1)) for part in mixed]
    areas, integrals = [r.area for r in results], [r.frontier_integral for r in results]
    assert areas == sorted(areas, reverse=True) and integrals == sorted(integrals)
    assert areas[0] - areas[-1] > 0.8


def test_a_seed_decides_everything():
    args = texts("sea", 60, 0), texts("hill", 30, 3) + texts("sea", 30, 1)
    assert compare_texts(*args, seed=1) == compare_texts(*args, seed=1)


def test_the_bootstrap_foretells_how_scores_of_fresh_texts_spread():
    P, Q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.4, 0.3])
    rng = np.random.default_rng(0)
    counts = [(rng.multinomial(200, P), rng.multinomial(200, Q)) for _ in range(200)]
    spread = np.std([divergence.scores(smoothed(p), smoothed(q)) for p, q in counts], axis=0, ddof=1)
    told = np.mean([divergence.resampled_errors(p, q, num_resamples=50) for p, q in counts[:40]], axis=0)
    assert told == pytest.approx(spread, rel=0.3)


def test_an_empty_cluster_does_not_hide_the_error():
    assert all(error > 0 for error in divergence.resampled_errors(np.array([20, 0]), np.array([0, 20])))


def test_features_can_come_from_a_function_of_the_texts():
    def embed(some):
        return np.array([[text.count("w"), 1.0] for text in some])

    ours, theirs = ["w" * 9] * 20, ["a"] * 20
    result = compare_texts(ours, theirs, embed=embed, features="number of w")
    assert result.area < 0.1 and result.features == "number of w"
    assert compare_texts(ours, ours, embed=embed).area == pytest.approx(1)


def test_a_text_is_embedded_once():
    seen = []
    embed = divergence.remembering(lambda some: (seen.extend(some), np.array([[len(text)] for text in some]))[1])
    assert embed(["a", "bb", "a"]).tolist() == [[1], [2], [1]] and embed(["bb", "ccc"]).tolist() == [[2], [3]]
    assert seen == ["a", "bb", "ccc"]


def test_texts_that_are_all_alike_can_be_compared():
    assert compare_texts(["abc"] * 5, ["abc"] * 5).area == pytest.approx(1)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [(["a"], ["a", "b"], "at least 2 on each side, got 1 and 2"), (["", ""], ["", ""], "all empty")],
)
def test_what_cannot_be_compared_is_refused(ours, theirs, message):
    with pytest.raises(UserError, match=message):
        compare_texts(ours, theirs)
