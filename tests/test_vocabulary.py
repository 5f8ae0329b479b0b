"""Fast paths over the vocabulary and over candidates, each against the plain formula."""

import pytest
import torch
import torch.nn.functional as F

import oracle
from edlm import memory, scoring, vocabulary
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy
from edlm.errors import UserError
from edlm.models.denoiser import predict
from edlm.models.energy_network import energy_from_denoiser
from edlm.randomness import BLOCK, draw, make_generator
from edlm.vocabulary import Projection, Table, project, token_log_probs
from toys import tiny_autoregressive, tiny_denoiser

V, L = 27, 32


@pytest.fixture
def in_pieces(monkeypatch):
    """Nothing is written out, and few rows and columns are projected at a time."""
    monkeypatch.setitem(vocabulary.ROWS, "cpu", 5)
    monkeypatch.setitem(vocabulary.PIECE, "cpu", 5 * 2 * BLOCK)
    monkeypatch.setitem(vocabulary.KEPT, "cpu", 0)


def half_masked(num=4, first=0):
    x0 = torch.randint(V, (num, L), generator=make_generator(0))
    is_masked = torch.rand(num, L, generator=make_generator(1)) < 0.5
    is_masked[:, :first] = False
    return x0, torch.where(is_masked, V, x0)


@torch.no_grad()
def test_projecting_in_pieces_gives_the_tokens_and_log_probabilities_of_the_whole(in_pieces):
    denoiser, (x0, xt) = tiny_denoiser(length=L).eval(), half_masked()
    plain = F.log_softmax(denoiser.transformer.head(denoiser.transformer(xt)).double(), dim=-1)[xt == V]  # (N, V)
    predictions = predict(denoiser, xt)
    assert isinstance(predictions, Projection)
    uniform = torch.rand(len(plain), 3, generator=make_generator(2), dtype=torch.float64)
    tokens, log_probs = predictions.draw(uniform)
    assert torch.equal(tokens, draw(plain, uniform))
    torch.testing.assert_close(log_probs, plain.gather(-1, tokens), atol=1e-5, rtol=0)
    true = x0[xt == V]
    torch.testing.assert_close(predictions.log_prob(true), plain.gather(-1, true[:, None])[:, 0], atol=1e-5, rtol=0)
    kept = torch.arange(len(plain)) % 3 == 0
    torch.testing.assert_close(predictions.select(kept).log_prob(true[kept]), predictions.log_prob(true)[kept])


def large_head(vocab_size, never=()):
    """Hidden states of 23 positions, and a projection onto a large vocabulary, some of whose tokens have no mass."""
    torch.manual_seed(0)
    hidden, head = torch.randn(23, 16), torch.nn.Linear(16, vocab_size)
    with torch.no_grad():
        head.bias[list(never)] = -torch.inf
    return hidden, head


def exact_log_probs(hidden, head):
    return F.log_softmax(F.linear(hidden.double(), head.weight.double(), head.bias.double()), dim=-1)


@torch.no_grad()
@pytest.mark.parametrize("vocab_size", [BLOCK, 3 * BLOCK + 1, 2000])
def test_a_large_vocabulary_that_is_only_summed_up_says_what_a_table_of_it_says(vocab_size, in_pieces):
    hidden, head = large_head(vocab_size, never=[3, *range(BLOCK, min(2 * BLOCK, vocab_size))])
    ours, plain = project(hidden, head), Table(exact_log_probs(hidden, head))
    assert isinstance(ours, Projection)
    for K in (1, 40):
        uniform = torch.rand(23, K, generator=make_generator(2), dtype=torch.float64)
        tokens, values = ours.draw(uniform)
        expected, likewise = plain.draw(uniform)
        assert torch.equal(tokens, expected)
        torch.testing.assert_close(values, likewise, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.log_prob(tokens), likewise, atol=1e-5, rtol=0)
    assert ours.draw(uniform[:, 0])[0].equal(tokens[:, 0])
    for ask in ("confidence", "entropy", "log_probs"):
        torch.testing.assert_close(getattr(ours, ask)().double(), getattr(plain, ask)(), atol=1e-5, rtol=0)
    kept = torch.arange(23) % 3 == 0
    for part in (ours.select(kept), project(hidden, head).select(kept)):  # after and before anything is summed up
        assert torch.equal(part.draw(uniform[kept])[0], tokens[kept])
    cold, likewise = ours.tempered(0.5), plain.tempered(0.5)
    assert torch.equal(cold.draw(uniform)[0], likewise.draw(uniform)[0])
    torch.testing.assert_close(cold.entropy(), likewise.entropy(), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_question_asked_again_does_not_project_again(in_pieces, monkeypatch):
    ours, widths, linear = project(*large_head(2000)), [], F.linear
    monkeypatch.setattr(F, "linear", lambda h, *rest: widths.append(len(h) * len(rest[0])) or linear(h, *rest))
    uniform = torch.rand(23, 1, generator=make_generator(2), dtype=torch.float64)
    tokens, _ = ours.draw(uniform)
    assert 23 * 2000 <= sum(widths) <= 23 * (2000 + BLOCK)  # everything once, and a block for each draw
    widths.clear()
    ours.select(torch.arange(5)).log_prob(tokens[:5])
    assert widths == []


@torch.no_grad()
def test_draws_from_a_projection_follow_its_law(in_pieces):
    hidden, head = large_head(3 * BLOCK)
    law = exact_log_probs(hidden[:1], head)[0].exp().view(-1, 32).sum(-1)
    predictions = project(hidden[:1].expand(4000, -1), head)
    tokens, _ = predictions.draw(torch.rand(4000, generator=make_generator(5), dtype=torch.float64))
    oracle.assert_law([(int(token) // 32,) for token in tokens], {(i,): float(p) for i, p in enumerate(law)}, 4000)


def test_what_is_to_be_trained_is_written_out(in_pieces):
    assert isinstance(project(*large_head(1000)), Table)


@torch.no_grad()
def test_weights_that_are_no_numbers_are_refused_where_they_are_drawn_from(in_pieces):
    hidden, head = large_head(1000)
    head.weight[400] = torch.nan
    with pytest.raises(UserError, match="not numbers"):
        project(hidden, head).draw(torch.rand(23, generator=make_generator(0), dtype=torch.float64))


@torch.no_grad()
def test_tempered_predictions_are_normalised_powers(in_pieces):
    denoiser, (_, xt) = tiny_denoiser(length=L).eval(), half_masked()
    plain = denoiser(xt).double()
    tokens = torch.arange(V).expand(len(plain), V)
    cold = predict(denoiser, xt).tempered(0.5).log_prob(tokens)
    torch.testing.assert_close(cold, F.log_softmax(2 * plain, dim=-1), atol=1e-5, rtol=0)


def test_nothing_masked_is_nothing_asked():
    predictions = predict(tiny_denoiser(length=L).eval(), torch.zeros(2, L, dtype=torch.long))
    tokens, log_probs = predictions.draw(torch.zeros(0, 3, dtype=torch.float64))
    assert tokens.shape == log_probs.shape == (0, 3) and predictions.log_prob(torch.zeros(0).long()).shape == (0,)


@torch.no_grad()
def test_log_probabilities_of_given_tokens_in_pieces_are_the_cross_entropy(in_pieces):
    hidden, head = torch.randn(23, 8, generator=make_generator(0)), torch.nn.Linear(8, V)
    tokens = torch.randint(V, (23,), generator=make_generator(1))
    plain = F.log_softmax(head(hidden).double(), dim=-1).gather(-1, tokens[:, None])[:, 0]
    torch.testing.assert_close(token_log_probs(hidden, head, tokens).double(), plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("vocab_size", [600, 1000, 4096])
def test_searching_by_blocks_draws_what_the_plain_search_draws(vocab_size):
    log_probs = F.log_softmax(3 * torch.randn(40, vocab_size, generator=make_generator(0)).double(), dim=-1)
    log_probs[:, 7] = -torch.inf
    log_probs[3, 256:] = -torch.inf  # a whole tail without mass
    log_probs = F.log_softmax(log_probs, dim=-1)
    uniform = torch.rand(40, 2, generator=make_generator(1), dtype=torch.float64)
    uniform[0] = torch.tensor([0.0, 1 - 2**-53])
    uniform[3] = torch.tensor([0.5, 1 - 2**-53])
    cumulative = log_probs.exp().cumsum(-1)
    plain = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    ours = draw(log_probs, uniform)
    is_inner = uniform < 1 - 2**-52  # where the plain search cannot run over the end
    assert torch.equal(ours[is_inner], plain[is_inner])
    assert log_probs.gather(-1, ours).isfinite().all() and (ours[3] < 256).all()


def test_draws_by_blocks_follow_a_skewed_law():
    probs = torch.tensor([0.5, 0.25, 0.125, 0.125]).double()
    law = torch.zeros(1024).double()
    law[[0, 300, 301, 1023]] = probs
    n = 4000
    uniform = torch.rand(n, 1, generator=make_generator(5), dtype=torch.float64)
    tokens = draw(law.log().expand(n, -1), uniform)
    oracle.assert_law([(int(token),) for token in tokens], {(i,): float(law[i]) for i in (0, 300, 301, 1023)}, n)


def plain_energy(kind, model, x0, xt, t, log_proposal):
    """One candidate at a time, everything read, in float64 sums."""
    B, K, _ = x0.shape
    energies = torch.zeros(B, K, dtype=torch.float64)
    for b in range(B):
        for k in range(K):
            if kind == "nce":
                energies[b, k] = model(x0[b, k : k + 1], xt[b : b + 1], t[b : b + 1]).double()
                continue
            inputs = model.shift(x0[b, k : k + 1])
            log_probs = F.log_softmax(model.transformer.head(model.transformer(inputs)).double(), dim=-1)
            each = log_probs.gather(-1, x0[b, k : k + 1, :, None])[0, :, 0]
            energies[b, k] = log_proposal[b, k] - (each if kind == "ar" else each[xt[b] == V]).sum()
    return energies


@pytest.mark.parametrize("kind", ["ar", "coar", "nce"])
@pytest.mark.parametrize("first", [0, 5, 20], ids="masked from {}".format)
@torch.no_grad()
def test_every_way_of_sharing_work_gives_the_plain_energies(kind, first, in_pieces, monkeypatch):
    monkeypatch.setattr(scoring, "LEAST_SHARED", 4)
    monkeypatch.setitem(memory.PASS_TOKENS, "cpu", 3 * L)
    x0, xt = half_masked(first=first)
    xt[:, -2:] = x0[:, -2:]  # something known behind the last mask
    K = 5
    drawn = torch.randint(V, (4, K, L), generator=make_generator(3))
    drawn[:, 3] = drawn[:, 1]  # two equal candidates
    candidates = torch.where((xt == V).unsqueeze(1), drawn, x0.unsqueeze(1))
    t, log_proposal = torch.linspace(0.2, 0.9, 4), torch.randn(4, K, generator=make_generator(4)).double()
    if kind == "nce":
        model = energy_from_denoiser(tiny_denoiser(length=L)).eval()
        torch.nn.init.normal_(model.transformer.head.weight, generator=make_generator(6))
        energy = LearnedEnergy(model)
    else:
        model = tiny_autoregressive(length=L).eval()
        energy = (AutoregressiveEnergy if kind == "ar" else CarryOverEnergy)(model)
    fast = energy(candidates, xt, t, log_proposal)
    torch.testing.assert_close(fast, plain_energy(kind, model, candidates, xt, t, log_proposal), atol=1e-4, rtol=1e-5)
    assert torch.equal(fast[:, 1] - log_proposal[:, 1], fast[:, 3] - log_proposal[:, 3]) or kind == "nce"
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with memory.whole_passes():  # one for each process that shares the weights, whatever it holds
        torch.testing.assert_close(energy(candidates, xt, t, log_proposal), fast, atol=1e-4, rtol=1e-5)
    assert len(calls) == 1


@torch.no_grad()
def test_where_memory_is_short_pieces_are_small_and_the_numbers_the_same(monkeypatch):
    energy, denoiser = CarryOverEnergy(tiny_autoregressive(length=L).eval()), tiny_denoiser(length=L).eval()
    x0, xt = half_masked()
    candidates = torch.where((xt == V).unsqueeze(1), torch.stack([x0, x0.flip(0)], dim=1), xt.unsqueeze(1))
    inputs = candidates, xt, torch.ones(4), torch.zeros(4, 2)
    plenty, kept = energy(*inputs), predict(denoiser, xt)
    monkeypatch.setattr(memory, "free_memory", lambda device: 0)
    assert memory.fitting(100, 8, xt.device) == 1 and memory.pass_tokens(xt.device) == 1
    torch.testing.assert_close(energy(*inputs), plenty, atol=1e-5, rtol=1e-6)
    projected, true = predict(denoiser, xt), x0[xt == V]
    assert isinstance(projected, Projection)  # nothing is kept
    torch.testing.assert_close(projected.log_prob(true), kept.log_prob(true), atol=1e-5, rtol=0)


def test_free_memory_is_a_part_of_what_the_machine_has():
    free = memory.free_memory(torch.device("cpu"))
    assert 1 << 20 < free <= memory.UNKNOWN and memory.free_memory(torch.device("meta")) == memory.UNKNOWN
    assert memory.fitting(10, 1, torch.device("cpu")) == 10


@torch.no_grad()
def test_equal_candidates_and_shared_prefixes_are_read_once(monkeypatch):
    monkeypatch.setattr(scoring, "LEAST_SHARED", 4)
    model, read = tiny_autoregressive(length=L).eval(), []
    model.transformer.embedding.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].numel()))
    x0, xt = half_masked(num=1, first=20)
    xt[:, 20:24], xt[:, 24:] = V, x0[:, 24:]
    candidates = x0.repeat(6, 1).unsqueeze(0)
    candidates[0, 3:, 21] = (candidates[0, 3:, 21] + 1) % V
    CarryOverEnergy(model)(candidates, xt, torch.ones(1), torch.zeros(1, 6))
    assert sum(read) == 20 + 2 * 4  # the prefix, then two different candidates up to the last masked position
