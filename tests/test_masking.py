import itertools

import numpy as np
import pytest
import torch

import oracle
from edlm.errors import UserError
from edlm.masking import (
    ReferenceNoise,
    choose_revealed,
    corrupt,
    corrupt_count,
    masked_noise,
    reveal,
    substitute,
    uniform_noise,
)
from edlm.randomness import make_generator, make_streams
from edlm.schedule import Cosine, LogLinear

V, L, MASK, N = 3, 3, 3, 20_000


def rows(x):
    return [tuple(row) for row in x.tolist()]


def test_corrupting_masks_each_token_independently():
    x0 = torch.tensor([0, 1, 2]).expand(N, L)
    t = torch.full((N,), 0.3)
    xt = corrupt(x0, t, Cosine(), MASK, generator=make_generator(0))
    alpha = 1 - np.sin(0.3 * np.pi / 2)
    law = {
        oracle.mask_out((0, 1, 2), M, V): (1 - alpha) ** len(M) * alpha ** (L - len(M))
        for M in oracle.subsets(range(L))
    }
    oracle.assert_law(rows(xt), law, N)


def test_times_belong_to_their_rows():
    t = torch.tensor([1.0, 1e-9, 1.0])
    xt = corrupt(torch.zeros(3, 50, dtype=torch.long), t, LogLinear(), MASK, generator=make_generator(0))
    assert (xt[0] == MASK).all() and (xt[1] == 0).all() and (xt[2] == MASK).all()


def test_corrupting_by_count_masks_every_set_of_that_size_equally_often():
    xt = corrupt_count(torch.zeros(N, 4, dtype=torch.long), torch.full((N,), 2), MASK, generator=make_generator(0))
    law = {oracle.mask_out((0,) * 4, M, V): 1 / 6 for M in itertools.combinations(range(4), 2)}
    oracle.assert_law(rows(xt), law, N)


def test_revealing_puts_clean_tokens_in_place_of_masks_only():
    xt = torch.tensor([MASK, 2, MASK]).expand(N, L)
    x0 = torch.tensor([0, 1, 1]).expand(N, L)  # disagrees with xt where that is known: must not matter
    xs = reveal(xt, x0, torch.tensor(0.8), torch.tensor(0.6), LogLinear(), MASK, generator=make_generator(0))
    law = {(a, 2, b): (0.25 if a == 0 else 0.75) * (0.25 if b == 1 else 0.75) for a in (0, MASK) for b in (1, MASK)}
    oracle.assert_law(rows(xs), law, N)


def test_corrupting_then_revealing_gives_the_marginal_of_the_earlier_time():
    x0 = torch.tensor([0, 1, 2]).expand(N, L)
    t, s = torch.tensor(0.9), torch.tensor(0.4)
    xt = corrupt(x0, t.expand(N), LogLinear(), MASK, generator=make_generator(0))
    xs = reveal(xt, x0, t, s, LogLinear(), MASK, generator=make_generator(1))
    law = {oracle.mask_out((0, 1, 2), M, V): 0.4 ** len(M) * 0.6 ** (L - len(M)) for M in oracle.subsets(range(L))}
    oracle.assert_law(rows(xs), law, N)


def test_a_batch_reveals_what_its_rows_reveal_alone():
    xt = torch.full((4, 30), MASK)
    t, s = torch.tensor(0.9), torch.tensor(0.5)
    batch = choose_revealed(xt, t, s, LogLinear(), MASK, generator=make_streams(0, range(4)))
    alone = [choose_revealed(xt[:1], t, s, LogLinear(), MASK, generator=make_streams(0, [i])) for i in range(4)]
    assert torch.equal(batch, torch.cat(alone))


def test_substitution_copies_known_tokens_and_gives_the_mask_no_mass():
    xt = torch.tensor([[MASK, 1, MASK], [2, 0, MASK]])
    log_probs = torch.randn(3, V).log_softmax(-1)
    full = substitute(log_probs, xt, MASK)
    torch.testing.assert_close(full.exp().sum(-1), torch.ones(2, 3))
    assert torch.equal(full[xt == MASK], log_probs)
    assert full[0, 1].tolist() == [-torch.inf, 0, -torch.inf] and full.shape[-1] == V


# --- a general reference distribution (paper section 3)

PI = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
t, s = torch.tensor(0.7), torch.tensor(0.3)


def transition(alpha, pi):
    """Row x: the law of a token x that survives with chance alpha, else is redrawn from pi."""
    return alpha * np.eye(len(pi)) + (1 - alpha) * np.tile(pi, (len(pi), 1))


@pytest.mark.parametrize(
    "noise", [ReferenceNoise(LogLinear(), PI), uniform_noise(Cosine(), 4), masked_noise(LogLinear(), 2)]
)
def test_the_posterior_is_bayes_rule_on_the_markov_chain(noise):
    pi, alpha_t, alpha_s = noise.pi.numpy(), noise.schedule.alpha(t).item(), noise.schedule.alpha(s).item()
    to_s, s_to_t = transition(alpha_s, pi), transition(alpha_t / alpha_s, pi)
    np.testing.assert_allclose(to_s @ s_to_t, transition(alpha_t, pi), atol=1e-7)  # it is one chain
    for x0, xt in itertools.product(range(len(pi)), repeat=2):
        joint = to_s[x0] * s_to_t[:, xt]
        if joint.sum() > 0:
            ours = noise.posterior(torch.tensor([xt]), torch.tensor([x0]), t, s)[0]
            np.testing.assert_allclose(ours, joint / joint.sum(), atol=1e-6)


def test_general_corruption_and_revealing_follow_their_laws():
    noise = ReferenceNoise(LogLinear(), PI)
    x0 = torch.full((N, 1), 1)
    xt = noise.corrupt(x0, t.expand(N), generator=make_generator(0))
    oracle.assert_law(xt[:, 0].tolist(), dict(enumerate(transition(0.3, PI.numpy())[1])), N)
    xs = noise.reveal(xt, x0, t, s, generator=make_generator(1))
    oracle.assert_law(xs[:, 0].tolist(), dict(enumerate(transition(0.7, PI.numpy())[1])), N)


def test_noise_towards_the_mask_is_masked_noise():
    noise, x0 = masked_noise(LogLinear(), V), torch.tensor([[0, 1, 2]])
    xt = torch.tensor([[MASK, 1, MASK]])
    posterior = noise.posterior(xt, x0, t, s)[0]
    rho = (0.7 - 0.3) / 0.7
    np.testing.assert_allclose(posterior, [[rho, 0, 0, 1 - rho], [0, 1, 0, 0], [0, 0, rho, 1 - rho]], atol=1e-6)


def test_a_reference_that_is_no_distribution_is_refused():
    with pytest.raises(UserError, match="pi must be a vector of probabilities"):
        ReferenceNoise(LogLinear(), torch.tensor([0.5, 0.6], dtype=torch.float64))
