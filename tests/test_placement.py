"""Precision and compilation change the work of a network, not what comes out of it beyond rounding."""

import json

import pytest
import torch

import edlm as package
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.models.energy_network import energy_from_denoiser
from edlm.models.placement import choose_precision, compile_network, is_compiled, precision_of, set_precision
from edlm.randomness import make_generator
from edlm.tokenization import train_bpe
from foreign import save_causal, save_masked
from test_cli import edlm, succeed  # noqa: F401
from toys import tiny_autoregressive, tiny_denoiser

V, L = 27, 16
HALVES = {"bfloat16": 0.3, "float16": 0.03}


def half_masked(num=4):
    x0 = torch.randint(V, (num, L), generator=make_generator(0))
    return x0, torch.where(torch.rand(num, L, generator=make_generator(1)) < 0.5, V, x0)


def soft(model):
    """Logits of the size that trained networks have."""
    with torch.no_grad():
        model.transformer.head.weight.mul_(0.1)
    return model


@pytest.mark.parametrize("precision", HALVES)
@torch.no_grad()
def test_log_probabilities_of_half_precision_networks_are_float32_and_close(precision):
    (x0, xt), t = half_masked(), torch.full((4,), 0.5)
    for model, inputs in ((soft(tiny_denoiser(time_conditioning=True)), (xt, t)), (soft(tiny_autoregressive()), (x0,))):
        full = model(*inputs)
        set_precision(model, precision)
        half = model(*inputs)
        assert precision_of(model) == precision and half.dtype == torch.float32
        torch.testing.assert_close(half, full, atol=HALVES[precision], rtol=0)
    assert not torch.equal(half, full)


@pytest.mark.parametrize("precision", HALVES)
@torch.no_grad()
def test_energies_of_half_precision_networks_are_float64_and_close(precision):
    (x0, xt), t = half_masked(), torch.full((4,), 0.5)
    candidates, log_proposal = torch.stack([x0, x0.flip(0)], dim=1), torch.zeros(4, 2).double()
    candidates = torch.where((xt == V).unsqueeze(1), candidates, xt.unsqueeze(1))
    learned = energy_from_denoiser(tiny_denoiser()).eval()
    torch.nn.init.normal_(learned.transformer.head.weight, generator=make_generator(6))
    causal = soft(tiny_autoregressive())
    for model, energy in (
        (causal, AutoregressiveEnergy(causal)),
        (causal, CarryOverEnergy(causal)),
        (learned, LearnedEnergy(learned)),
    ):
        model.float()
        full = energy(candidates, xt, t, log_proposal)
        set_precision(model, precision)
        half = energy(candidates, xt, t, log_proposal)
        assert half.dtype == torch.float64
        torch.testing.assert_close(half, full, atol=4 * HALVES[precision], rtol=0)


def test_auto_is_bfloat16_only_on_gpus_that_have_it(monkeypatch):
    assert choose_precision("auto", "cpu") == "float32"
    for has, wanted in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has: has)
        assert choose_precision("auto", "cuda") == wanted
    assert choose_precision("float16", "cpu") == "float16"


def test_an_energy_follows_its_denoiser_unless_its_name_says_otherwise(tmp_path):
    ours = package.load("text8-nano-denoiser", precision="bfloat16")
    assert precision_of(load_energy("ar:text8-nano-ar", ours).model) == "bfloat16"
    bpe = train_bpe(["the cat sat on the mat " * 20], 265)
    save_causal(tmp_path / "gpt2", "gpt2", bpe)
    denoiser = tiny_denoiser(vocab_size=bpe.vocab_size)
    denoiser.tokenizer = bpe
    set_precision(denoiser, "bfloat16")
    for name, precision in (("gpt2", "bfloat16"), ("gpt2,float32", "float32"), ("gpt2,float16", "float16")):
        assert precision_of(load_energy(f"coar:{tmp_path}/{name}", denoiser).model) == precision
    assert precision_of(package.load(f"{tmp_path}/gpt2,bfloat16", precision="float32")) == "bfloat16"


def test_a_weight_that_float16_cannot_hold_is_refused():
    model = tiny_denoiser()
    with torch.no_grad():
        model.transformer.embedding.weight[3, 4] = 1e5
    with pytest.raises(
        UserError, match=r"transformer.embedding.weight has a weight of size 100000, which float16 cannot"
    ):
        set_precision(model, "float16")
    assert precision_of(model) == "float32"


def test_samples_say_in_which_precision_they_were_drawn(edlm):  # noqa: F811
    options = ["--denoiser", "text8-nano-denoiser", "--energy", "coar:text8-nano-ar", "--steps", 2, "--length", 8]
    for flags, wanted in (([], "float32"), (["--precision", "bfloat16"], "bfloat16")):
        about = json.loads(succeed(edlm("sample", *options, *flags, "--json")))["settings"]
        assert about["precision"] == wanted
    score = ["score", "the", "--ar", "text8-nano-ar", "--precision", "bfloat16"]
    assert float(succeed(edlm(*score)).splitlines()[1].split()[0]) == pytest.approx(
        package.score("text8-nano-ar", "the")[0].nats, abs=0.2
    )


def test_a_masked_model_from_elsewhere_is_not_compiled(tmp_path):
    with pytest.raises(UserError, match="is a masked model from elsewhere, which is not compiled"):
        package.load(save_masked(tmp_path / "bert"), compile=True)


@pytest.mark.slow
@torch.no_grad()
def test_a_learned_energy_is_compiled_where_it_computes():
    (x0, xt), t = half_masked(), torch.full((4,), 0.5)
    network = energy_from_denoiser(tiny_denoiser()).eval()
    torch.nn.init.normal_(network.transformer.head.weight, generator=make_generator(6))
    plain = network(x0, xt, t)
    compile_network(network)
    compiled_before = torch._dynamo.utils.counters["frames"]["ok"]
    torch.testing.assert_close(network(x0, xt, t), plain, atol=1e-5, rtol=1e-5)
    assert torch._dynamo.utils.counters["frames"]["ok"] > compiled_before


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_network_gives_the_same_numbers_and_texts(tmp_path):
    plain, compiled = tiny_denoiser(), tiny_denoiser()
    tiny_autoregressive().save_pretrained(tmp_path / "ar")
    compile_network(compiled)
    assert is_compiled(load_energy(f"ar:{tmp_path / 'ar'}", compiled).model) and not is_compiled(plain)
    _, xt = half_masked()
    torch.testing.assert_close(compiled(xt), plain(xt), atol=1e-5, rtol=0)
    texts = [[s.text for s in package.sample(model, num=3, steps=4, length=8)] for model in (plain, compiled)]
    assert texts[0] == texts[1]
