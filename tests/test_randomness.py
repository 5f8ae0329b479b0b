import pytest
import torch
from scipy import stats

from edlm.randomness import draw, make_generator, make_streams, rand
from oracle import FAILURE_RATE

V, SIZE = 50_000, 20_000


def zipf():
    return (1 / torch.arange(1, V + 1, dtype=torch.float64)).log().log_softmax(0)


def p_value_of_draws(log_probs, law):
    """Chi-square of draws from `log_probs` against `law`: common tokens by themselves, the tail in groups of tokens."""
    shuffle = torch.randperm(V, generator=make_generator(1))
    uniform = rand((SIZE,), make_generator(2))
    tokens = shuffle[draw(log_probs[shuffle].float().expand(SIZE, -1), uniform)]
    group = (law.exp().cumsum(0) * 400).long()  # tokens of equal rank range share a cell of mass 1/400 or more
    observed = torch.zeros(401).index_add(0, group[tokens], torch.ones(SIZE))
    expected = torch.zeros(401, dtype=torch.float64).index_add(0, group, law.exp() * SIZE)
    is_cell = expected > 0
    return stats.chisquare(observed[is_cell].numpy(), expected[is_cell].numpy(), sum_check=False).pvalue


def test_draws_from_a_vocabulary_of_50000_follow_the_distribution():
    assert p_value_of_draws(zipf(), zipf()) > FAILURE_RATE


def test_that_test_notices_a_temperature_of_0_95():
    assert p_value_of_draws((zipf() / 0.95).log_softmax(0), zipf()) < FAILURE_RATE


def test_a_token_of_probability_zero_is_never_drawn():
    log_probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).log().expand(4, -1)
    edges = torch.tensor([0.0, 0.5 - 1e-16, 0.5, 1 - 1e-16], dtype=torch.float64)
    assert draw(log_probs, edges).tolist() == [1, 1, 3, 3]


def test_drawing_in_chunks_is_drawing_at_once(monkeypatch):
    log_probs, uniform = torch.randn(50, 9).log_softmax(-1), rand((50,), make_generator(0))
    whole = draw(log_probs, uniform)
    monkeypatch.setattr("edlm.randomness.CHUNK_ELEMENTS", 30)
    assert torch.equal(draw(log_probs, uniform), whole)


def test_no_rows_give_no_draws():
    assert draw(torch.zeros(0, 5), torch.zeros(0, dtype=torch.float64)).shape == (0,)


def test_with_one_generator_per_row_a_batch_draws_what_its_rows_draw_alone():
    batch = rand((3, 5), make_streams(7, range(3)))
    alone = [rand((1, 5), make_streams(7, [i])) for i in range(3)]
    assert torch.equal(batch, torch.cat(alone))


def test_generators_of_different_keys_differ_and_of_equal_keys_agree():
    keys = [(0, 1), (1, 0), (0, 0), (0, 0, 0), (1,), (-1, 0), (2**32,), (0, 1, 0)]
    first = [rand((4,), make_generator(*key)) for key in keys]
    again = [rand((4,), make_generator(*key)) for key in keys]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({tuple(values.tolist()) for values in first}) == len(keys)


def test_a_wrong_number_of_generators_is_refused():
    with pytest.raises(ValueError, match="one generator per row: got 2 generators for 3 rows"):
        rand((3, 5), make_streams(0, range(2)))


def test_drawing_leaves_the_log_probabilities_as_they_were():
    log_probs = torch.randn(4, 7, dtype=torch.float64).log_softmax(-1)
    before = log_probs.clone()
    draw(log_probs, rand((4,), make_generator(0)))
    assert torch.equal(log_probs, before)


def test_several_draws_per_row_are_the_draws_of_each_number():
    log_probs, uniform = torch.randn(6, 9).log_softmax(-1), rand((6, 3), make_generator(0))
    each = torch.stack([draw(log_probs, uniform[:, k]) for k in range(3)], dim=1)
    assert torch.equal(draw(log_probs, uniform), each)
