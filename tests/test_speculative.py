"""Diffusion drafts leave the causal model's law as it is."""

import pytest
import torch

import oracle
from edlm import sampler, speculative
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
from edlm.models.denoiser import Denoiser, DenoiserConfig
from edlm.models.transformer import TransformerConfig
from edlm.randomness import make_streams
from edlm.speculative import Drafts
from toys import TableDenoiser, tiny_autoregressive, tiny_denoiser

V, L, N = 3, 3, 700


def tiny_causal():
    torch.manual_seed(1)
    size = TransformerConfig(vocab_size=V, length=L, num_layers=1, num_heads=1, width=8, dropout=0.0)
    model = Autoregressive(AutoregressiveConfig(size)).eval()
    torch.nn.init.normal_(model.transformer.head.weight, std=1.0)
    return model


@torch.no_grad()
def exact_law(model):
    x = torch.tensor(oracle.sequences(V, L))
    return dict(zip(map(tuple, x.tolist()), model(x).double().sum(-1).exp().tolist(), strict=True))


@pytest.mark.parametrize("num", [1, 2, 3])
def test_texts_have_the_causal_models_law_whatever_is_drafted(num):
    model, drafter = tiny_causal(), TableDenoiser(oracle.random_denoiser(V, L, seed=0), V)
    state = speculative.sample(sampler.init(L, make_streams(0, range(N)), V), model, Drafts(drafter, num))
    oracle.assert_law([tuple(row) for row in state.x.tolist()], exact_law(model), N)


def test_a_temperature_is_that_of_the_law():
    model, drafter = tiny_causal(), TableDenoiser(oracle.random_denoiser(V, L, seed=0), V)
    state = sampler.init(1, make_streams(0, range(N)), V)
    tokens = speculative.sample(
        state, model, Drafts(TableDenoiser(oracle.random_denoiser(V, 1, seed=0), V)), temperature=0.5
    ).x
    with torch.no_grad():
        plain = model.next_log_probs(torch.tensor([[V]]), speculative.Cache())[0].double()
    law = dict(zip([(i,) for i in range(V)], torch.softmax(2 * plain, -1).tolist(), strict=True))
    oracle.assert_law([tuple(row) for row in tokens.tolist()], law, N)
    assert drafter.calls == 0


def test_good_drafts_yield_many_tokens_a_pass_and_never_fewer_than_one():
    """A drafter that knows the causal model's own marginals is kept; a hopeless one still makes progress."""
    torch.manual_seed(0)
    size = TransformerConfig(vocab_size=27, length=16, num_layers=1, num_heads=1, width=8, dropout=0.0)
    model, denoiser = Autoregressive(AutoregressiveConfig(size)).eval(), Denoiser(DenoiserConfig(size)).eval()
    for network in (model, denoiser):  # both say the same of every position
        torch.nn.init.zeros_(network.transformer.head.weight)
        network.transformer.head.bias.data = torch.linspace(0, 3, 27)
    end = speculative.sample(sampler.init(16, make_streams(0, range(4)), 27), model, Drafts(denoiser, 3))
    assert end.energy_evaluations.tolist() == [4] * 4  # three drafts and one more in every pass
    hopeless = speculative.sample(
        sampler.init(16, make_streams(0, range(2)), 27), tiny_autoregressive(), Drafts(denoiser, 8)
    )
    assert (hopeless.energy_evaluations <= 16).all() and (hopeless.x < 27).all()


def test_a_prompt_stays_and_a_batch_gives_its_rows():
    model, denoiser = tiny_autoregressive().eval(), tiny_denoiser().eval()
    fixed = torch.full((16,), 27)
    fixed[:4] = torch.tensor([3, 1, 4, 1])
    together = speculative.sample(sampler.init(16, make_streams(0, range(3)), 27, fixed=fixed), model, Drafts(denoiser))
    assert (together.x[:, :4] == fixed[:4]).all()
    for i in range(3):
        alone = speculative.sample(sampler.init(16, make_streams(0, [i]), 27, fixed=fixed), model, Drafts(denoiser))
        assert torch.equal(alone.x[0], together.x[i])


def test_no_drafts_are_refused():
    with pytest.raises(UserError, match="at least 1"):
        Drafts(tiny_denoiser(), 0)


def test_from_text_to_text_with_drafts_in_several_windows():
    from edlm.generation import SampleConfig, generate

    model, drafts = tiny_autoregressive(), Drafts(tiny_denoiser(), 4)
    config = SampleConfig(length=24, overlap=4, seed=3)
    samples = list(generate(model, 2, config, drafts=drafts, prompt="the "))
    alone = list(generate(model, 1, SampleConfig(length=24, overlap=4, seed=3, first=1), drafts=drafts, prompt="the "))
    assert alone[0].tokens == samples[1].tokens
    for sample in samples:
        assert sample.text.startswith("the ") and len(sample.text) == 24
        assert 0 < sample.energy_evaluations == sample.denoiser_evaluations <= 20


@pytest.mark.parametrize(
    ("drafter", "model", "message"),
    [
        (tiny_denoiser(), tiny_denoiser(), "for an autoregressive model"),
        (tiny_autoregressive(), tiny_autoregressive(), "drafts are a denoiser's"),
        (tiny_denoiser(vocab_size=28), tiny_autoregressive(), "other tokens"),
        (tiny_denoiser(length=8), tiny_autoregressive(), "reads 8 tokens, the autoregressive model 16"),
    ],
)
def test_drafters_that_do_not_fit_are_refused(drafter, model, message):
    from edlm.generation import require_drafter

    with pytest.raises(UserError, match=message):
        require_drafter(drafter, model)


def test_the_benchmark_counts_tokens_and_times_in_turns():
    from edlm.benchmarks.speculative import bench_speculative

    report = bench_speculative(tiny_autoregressive(), tiny_denoiser(), [1, 4], num=2)
    assert [row["drafted"] for row in report["rows"]] == [1, 4] and report["length"] == 16
    for row in report["rows"]:
        assert 1 <= row["tokens_per_causal_pass"] <= row["drafted"] + 1
        assert row["drafter_passes_per_token"] == pytest.approx(1 / row["tokens_per_causal_pass"], rel=0.3)
        low, high = row["speed_up_range"]
        assert 0 < low <= row["speed_up"] <= high and report["seconds_plain"] > 0
