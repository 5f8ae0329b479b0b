"""Entropy, n-grams and perplexities against values worked out by hand, and standard errors against repetition."""

import math

import numpy as np
import pytest

from edlm.errors import UserError
from edlm.metrics import distinct, distinct_share, estimate, exponential, perplexity, ratio, token_entropy


def test_entropy_is_in_nats_and_of_the_histogram_only():
    assert token_entropy([5, 5, 5]) == 0 and math.copysign(1, token_entropy([5])) == 1
    assert token_entropy([1, 2, 1, 2]) == pytest.approx(math.log(2))
    assert token_entropy([0, 0, 0, 7]) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert token_entropy(list(range(50))) == pytest.approx(math.log(50))
    with pytest.raises(UserError, match="empty sample has no entropy"):
        token_entropy([])


@pytest.mark.parametrize(("n", "share"), [(1, 2 / 5), (2, 2 / 4), (3, 2 / 3), (4, 2 / 2)])
def test_distinct_counts_different_ngrams_among_all(n, share):
    assert distinct([1, 2, 1, 2, 1], n) == pytest.approx(share)


def test_ngrams_longer_than_the_sample_are_unknown_rather_than_zero():
    assert math.isnan(distinct([1, 2], 3))


def test_a_sampler_that_repeats_itself_is_seen_across_samples():
    assert distinct_share([[1, 2, 3]] * 4) == 0.25 and distinct_share([[1], [2], [3]]) == 1


def test_the_standard_error_is_that_of_a_mean_and_unknown_for_one_sample():
    value = estimate([1.0, 3.0])
    assert value.mean == 2 and value.standard_error == pytest.approx(math.sqrt(2) / math.sqrt(2))
    assert math.isnan(estimate([1.0]).standard_error)
    with pytest.raises(UserError, match="no samples"):
        estimate([])


def test_perplexity_weighs_tokens_and_not_samples_equally():
    result = perplexity([10.0, 2.0], [5, 1], [20, 4])
    assert result.perplexity.mean == pytest.approx(math.exp(12 / 6))
    assert result.nats_per_character.mean == pytest.approx(12 / 24)
    assert result.bits_per_character.mean == pytest.approx(0.5 / math.log(2))
    assert (result.num_tokens, result.num_characters) == (6, 24)


def test_a_model_of_uniform_symbols_has_as_many_as_its_perplexity():
    result = perplexity([8 * math.log(27)] * 3, [8] * 3, [8] * 3)
    assert result.perplexity.mean == pytest.approx(27) and result.perplexity.standard_error == pytest.approx(0)


def test_samples_of_equal_length_have_the_standard_error_of_a_mean():
    nats = np.array([3.0, 5.0, 4.5, 4.0])
    assert ratio(nats, [2] * 4).standard_error == pytest.approx(estimate(nats / 2).standard_error)


def test_the_delta_method_foretells_how_perplexities_of_repeated_studies_spread():
    rng = np.random.default_rng(0)

    def study():
        lengths = rng.integers(20, 60, 200)
        return perplexity(rng.gamma(lengths, 1.5), lengths, 5 * lengths)

    studies = [study() for _ in range(400)]
    spread = np.std([s.perplexity.mean for s in studies], ddof=1)
    told = np.mean([s.perplexity.standard_error for s in studies])
    assert told == pytest.approx(spread, rel=0.12)  # the spread of 400 values is known to 1 / sqrt(800) = 4%
    assert studies[0].perplexity.standard_error == pytest.approx(
        studies[0].perplexity.mean * studies[0].nats_per_token.standard_error
    )


def test_what_is_too_unlikely_for_a_number_is_infinite_and_not_an_error():
    assert exponential(estimate([1000.0, 1001.0])).mean == math.inf


def test_empty_texts_cannot_be_scored():
    with pytest.raises(UserError, match="empty texts"):
        perplexity([0.0], [0], [0])
