from dataclasses import replace

import pytest
import torch

from edlm import memory
from edlm.errors import UserError
from edlm.models.transformer import (
    PRESETS,
    Cache,
    Transformer,
    TransformerConfig,
    count_parameters,
    make_transformer_config,
)
from edlm.randomness import make_generator
from toys import sharpen, tiny_autoregressive, tiny_config, tiny_denoiser

X = torch.randint(27, (3, 16), generator=make_generator(0))


def network(causal, **changes):
    torch.manual_seed(0)
    return sharpen(Transformer(tiny_config(**changes), causal=causal)).eval()


def test_a_causal_network_does_not_look_ahead_and_a_bidirectional_one_does():
    changed = X.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 27
    for causal in (True, False):
        model = network(causal)
        difference = (model(X) - model(changed)).abs().amax(-1)
        assert (difference[:, :10].max() < 1e-6) == causal
        assert (difference[:, 10:] > 1e-4).all()


def test_rotary_positions_make_attention_depend_on_distance_only():
    model = network(False)
    rotary = model.rotary
    q, k = torch.randn(2, 1, 1, 1, 16)
    near = (rotary(q, 3) * rotary(k, 1)).sum()
    far = (rotary(q, 9) * rotary(k, 7)).sum()
    torch.testing.assert_close(near, far, rtol=1e-4, atol=1e-5)
    assert abs(near - (rotary(q, 3) * rotary(k, 2)).sum()) > 1e-3


def test_reading_with_a_cache_token_by_token_or_in_pieces_is_reading_at_once():
    model = network(True)
    whole = model(X)
    for pieces in ([1] * 16, [5, 1, 10], [16]):
        cache = Cache()
        parts = [model(part, cache=cache) for part in X.split(pieces, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {"time_conditioning": True}, {"time_conditioning": True, "time_input": "noise-level"}], ids=str
)
@pytest.mark.parametrize("causal", [True, False])
def test_the_hidden_states_of_chosen_positions_are_those_of_a_whole_pass(causal, changes):
    model, t = network(causal, **changes), torch.tensor([0.2, 0.5, 0.9])
    where = torch.rand(X.shape, generator=make_generator(1)) < 0.3
    where[1] = False  # a row of which nothing is asked
    torch.testing.assert_close(model(X, t, where=where), model(X, t)[where], rtol=1e-5, atol=1e-5)


def test_the_last_block_is_finished_at_the_chosen_positions_only():
    model, seen = network(False), []
    for block in model.blocks:
        block.mlp_in.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[:-1].numel()))
    where = torch.zeros_like(X, dtype=torch.bool)
    where[0, 3] = where[2, 5] = True
    model(X, where=where)
    assert seen == [X.numel()] * (len(model.blocks) - 1) + [2]


@torch.no_grad()
@pytest.mark.parametrize("time_conditioning", [False, True])
def test_a_denoiser_reads_a_large_batch_in_parts_and_says_the_same(time_conditioning, monkeypatch):
    denoiser = sharpen(tiny_denoiser(time_conditioning=time_conditioning)).eval()
    xt, t = X.masked_fill(torch.rand(X.shape, generator=make_generator(1)) < 0.5, denoiser.mask_id), torch.rand(3)
    whole, calls = denoiser(xt, t), []
    monkeypatch.setitem(memory.PASS_TOKENS, "cpu", 2 * X.shape[1])
    denoiser.transformer.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    torch.testing.assert_close(denoiser(xt, t), whole, rtol=1e-5, atol=1e-5)
    assert calls == [2, 1]


@torch.no_grad()
@pytest.mark.parametrize("rows", [[0, 0, 1, 1, 1], [2], [0, 2], [1, 1, 2, 2, 2, 2, 2]])
def test_a_cache_that_branches_goes_on_like_a_copy_of_the_same_rows(rows):
    model = Transformer(tiny_config(), causal=True).eval()
    torch.manual_seed(1)
    first, rows = torch.randint(27, (3, 5)), torch.tensor(rows)
    copied, branched = Cache(), Cache()
    for cache in (copied, branched):
        model(first, cache=cache)
    for _ in range(2):  # the second time there is room left over
        more = torch.randint(27, (len(rows), 2))
        copied = copied.select(rows)
        places = branched.branch(rows)
        in_place = torch.empty_like(more).index_copy(0, places, more)
        expected, found = model(more, cache=copied), model(in_place, cache=branched)[places]
        torch.testing.assert_close(found, expected)
        copied, rows = copied.select(torch.argsort(places)), torch.arange(len(rows))


@pytest.mark.parametrize("time_input", ["time", "noise-level"])
def test_time_enters_by_adaptive_layer_norm_and_starts_as_no_time_at_all(time_input):
    torch.manual_seed(0)
    plain = Transformer(tiny_config(), causal=False).eval()
    timed = Transformer(tiny_config(time_conditioning=True, time_input=time_input), causal=False).eval()
    timed.load_state_dict(timed.state_dict() | plain.state_dict())
    t = torch.tensor([0.1, 0.5, 0.9])
    torch.testing.assert_close(timed(X, t), plain(X))
    with torch.no_grad():
        for block in timed.blocks:
            block.modulation.weight.normal_(std=0.5)
    assert (timed(X, t) - timed(X, 1 - t)).abs()[0].max() > 1e-3
    torch.testing.assert_close(
        timed(X, t)[1:2], timed(X[1:2], t[1:2]), rtol=1e-4, atol=1e-4
    )  # its own time to each row
    with pytest.raises(ValueError, match="time-conditioned: pass t"):
        timed(X)


def test_dropout_acts_in_training_only():
    model = network(False, dropout=0.5)
    assert torch.equal(model(X), model(X))
    model.train()
    assert not torch.equal(model(X), model(X))


def test_the_paper_size_has_the_known_number_of_parameters():
    config = make_transformer_config("small", vocab_size=50257, length=1024)
    blocks = 12 * (768 * 768 * 12 + 4 * 768 + 768 + 2 * 2 * 768)  # attention, MLP with biases, two norms
    assert count_parameters(config) == 50258 * 768 + blocks + 2 * 768 + 50257 * 769
    assert config.num_heads == 12 and config.num_layers == 12


def test_presets_grow():
    counts = [count_parameters(make_transformer_config(name, 27, 256)) for name in PRESETS]
    assert counts == sorted(counts)
    assert make_transformer_config("nano", 27, 256, width=64, num_layers=None).width == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 784, "num_heads": 12}, "width must be a multiple of twice num_heads, got 784 and 12"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_bad_sizes_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        replace(TransformerConfig(vocab_size=27, length=8), **changes)


def test_an_unknown_preset_is_refused():
    with pytest.raises(UserError, match="unknown preset 'big'; choose from nano, tiny, small, medium"):
        make_transformer_config("big", 27, 256)


def test_too_long_an_input_is_refused():
    with pytest.raises(UserError, match="reads at most 16 tokens, got 17"):
        network(False)(torch.zeros(1, 17, dtype=torch.long))


# --- what is made of it


def test_the_denoiser_gives_normalised_rows_for_masked_positions_only():
    model, xt = tiny_denoiser(), X.clone()
    xt[0, :5] = xt[2, 3] = model.mask_id
    log_probs = model(xt)
    assert log_probs.shape == (6, 27)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(6))


def test_asking_for_some_masked_positions_gives_their_rows():
    model, xt = tiny_denoiser(), torch.full((2, 16), 27)
    where = torch.rand(2, 16, generator=make_generator(0)) < 0.3
    torch.testing.assert_close(model(xt, where=where), model(xt).view(2, 16, 27)[where])


def test_a_batch_of_four_is_four_batches_of_one():
    xt = torch.randint(28, (4, 16), generator=make_generator(1))
    model = tiny_denoiser()
    torch.testing.assert_close(model(xt), torch.cat([model(row[None]) for row in xt]), rtol=1e-4, atol=1e-4)


def test_the_autoregressive_model_scores_the_first_token_from_the_start_symbol():
    model = tiny_autoregressive()
    token_log_probs = model(X)
    start = model.next_log_probs(torch.full((3, 1), model.start_id), Cache())
    torch.testing.assert_close(token_log_probs[:, 0], start.gather(-1, X[:, :1]).squeeze(-1), rtol=1e-4, atol=1e-4)
    assert token_log_probs.shape == (3, 16)
