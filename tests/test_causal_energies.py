"""Causal models from elsewhere as energies: against plain transformers, against enumeration, and in other tokens."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import oracle
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, is_normalised, is_normalised_at
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.generation import generate
from edlm.gguf_files import smollm2_file
from edlm.models.autoregressive import Autoregressive
from edlm.models.causal_files import load_causal
from edlm.models.causal_lm import CausalLM
from edlm.models.load import load_model, load_named
from edlm.oracle_spec import load_oracle
from edlm.randomness import make_generator
from edlm.retokenised import RetokenisedEnergy
from edlm.sample_config import SampleConfig
from edlm.strict_tokenizer import StrictTokenizer
from edlm.tokenization import CharacterTokenizer, train_bpe
from foreign import causal_model, copy_folder, masked_model, save_causal, save_masked
from toys import tiny_autoregressive, tiny_denoiser

TEXT = "the cat sat on the mat "
BPE = train_bpe([TEXT * 20], 265)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("causal")
    for kind in ("gpt2", "llama"):
        save_causal(path / kind, kind, BPE)
        save_causal(path / f"{kind}-padded", kind, BPE, rows=320)
    tiny_autoregressive().save_pretrained(path / "ours")
    return path


@pytest.fixture(scope="module")
def denoiser():
    model = tiny_denoiser(vocab_size=BPE.vocab_size)
    model.tokenizer = BPE
    return model


def plain_log_probs(model, x0, vocab_size):
    """The definition: a start symbol in front, one forward pass, log-softmax over the named ids in float64."""
    inputs = torch.cat([torch.full_like(x0[:, :1], model.start_id), x0[:, :-1]], dim=1)
    with torch.no_grad():
        logits = model.network(input_ids=inputs).logits.double()[..., :vocab_size]
    return logits.log_softmax(-1).gather(-1, x0.unsqueeze(-1)).squeeze(-1)


def some_tokens(*shape):
    return torch.randint(BPE.vocab_size, shape, generator=make_generator(0))


# --- log-probabilities


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt2-padded", "llama-padded"])
def test_log_probabilities_are_those_of_a_plain_forward_pass(folder, kind):
    model, x0 = load_causal(folder / kind), some_tokens(5, 16)
    assert isinstance(model, CausalLM) and model.vocab_size == BPE.vocab_size and model.length == 64
    with torch.no_grad():
        assert torch.allclose(model(x0).double(), plain_log_probs(model, x0, BPE.vocab_size), atol=1e-5)


def test_small_chunks_and_a_head_that_is_not_plain_change_nothing(folder, monkeypatch):
    model, x0 = load_causal(folder / "gpt2"), some_tokens(3, 16)
    assert model.has_plain_head
    with torch.no_grad():
        whole = model(x0)
        monkeypatch.setattr("edlm.models.causal_lm.CHUNK_LOGITS", 7 * 265)
        assert torch.allclose(model(x0), whole, atol=1e-5)
        model.has_plain_head = False
        assert torch.allclose(model(x0), whole, atol=1e-5)


def test_a_network_that_does_more_than_a_product_has_no_plain_head():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma2Config(vocab_size=265, head_dim=16, num_key_value_heads=2, final_logit_softcapping=2.0, **sizes)
    tokenizer = StrictTokenizer(BPE._inner, 265, {})
    model, x0 = CausalLM(Gemma2ForCausalLM(config), tokenizer, BPE.eos_id, "gemma"), some_tokens(2, 8)
    assert not model.has_plain_head
    with torch.no_grad():
        assert torch.allclose(model(x0).double(), plain_log_probs(model, x0, 265), atol=1e-5)


def test_padding_rows_get_no_mass(folder):
    model = load_causal(folder / "gpt2-padded")
    every = torch.arange(BPE.vocab_size).unsqueeze(-1)
    with torch.no_grad():
        assert model(every).double().logsumexp(0).item() == pytest.approx(0, abs=1e-5)


def test_the_first_token_follows_the_mark_between_documents(folder):
    model = load_causal(folder / "gpt2")
    assert model.tokenizer.tokens()[model.start_id] == "<|endoftext|>" and model.describe()["start"] == "<|endoftext|>"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_close_and_its_sums_are_float64(folder, denoiser, precision):
    full, half = (load_energy(f"ar:{folder}/gpt2{option}", denoiser) for option in ("", f",{precision}"))
    assert next(half.model.parameters()).dtype == getattr(torch, precision)
    x0, xt = some_tokens(2, 3, 16), torch.full((2, 16), denoiser.mask_id)
    with torch.no_grad():
        energies = [energy(x0, xt, torch.ones(2), torch.zeros(2, 3)) for energy in (full, half)]
    assert energies[1].dtype == torch.float64 and torch.allclose(*energies, rtol=0.02)


# --- the laws, by enumeration

V, L = 3, 3


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def toy(request, tmp_path_factory):
    """A network over three symbols and a start symbol, which the denoiser lacks; and its conditionals as a table."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import models

    network = causal_model(request.param, V + 3)  # two rows of padding besides
    inner = Inner(models.WordLevel({"a": 0, "b": 1, "c": 2, "<s>": 3}, unk_token="a"))
    model = CausalLM(network, StrictTokenizer(inner, V + 3, {}), 3, "toy")
    model.narrow(V)
    table = {}
    for prefixes in (oracle.sequences(V, n) for n in range(L)):
        with torch.no_grad():
            logits = network(input_ids=torch.tensor([[3, *prefix] for prefix in prefixes])).logits[:, -1, :V]
        table |= zip(prefixes, logits.double().softmax(-1).numpy(), strict=True)
    return model, table


def exact_z(energy, denoiser):
    """Z(xt) of every state: the sum over its completions of p_theta exp(-E), all in one call."""
    states, texts = oracle.states(V, L), oracle.sequences(V, L)
    fits = torch.tensor([[x in set(oracle.completions(xt, V)) for x in texts] for xt in states])
    p = torch.tensor([[oracle.proposal(x, xt, denoiser, V) for x in texts] for xt in states]).where(fits, 1.0)
    is_possible = fits & (p > 0)
    x0 = torch.tensor(texts).expand(len(states), -1, -1)
    with torch.no_grad():
        energies = energy(x0, torch.tensor(states), torch.ones(len(states)), p.where(is_possible, 1.0).log())
    return dict(zip(states, (p * (-energies).exp() * is_possible).sum(-1).tolist(), strict=True))


def test_the_carry_over_energy_has_z_one_in_every_state(toy):
    values = exact_z(CarryOverEnergy(toy[0]), oracle.random_denoiser(V, L, seed=1))
    assert list(values.values()) == pytest.approx([1] * 64, abs=1e-5)


def test_the_ar_energy_has_the_probability_of_the_known_tokens_for_z(toy):
    model, causal = toy
    law = {x: math.prod(causal[x[:i]][x[i]] for i in range(L)) for x in oracle.sequences(V, L)}
    for xt, value in exact_z(AutoregressiveEnergy(model), oracle.random_denoiser(V, L, seed=1)).items():
        assert value == pytest.approx(sum(law[x] for x in oracle.completions(xt, V)), rel=1e-4)


def test_a_denoiser_that_cannot_write_a_token_needs_a_narrowed_model_for_z_one(toy):
    model, _ = toy
    table = {xt: probs * np.array([1, 0, 1]) for xt, probs in oracle.random_denoiser(V, L, seed=1).items()}
    table = {xt: probs / probs.sum(-1, keepdims=True) for xt, probs in table.items()}
    assert exact_z(CarryOverEnergy(model), table)[V, 0, V] < 0.99
    model.narrow(V, without=(1,))
    try:
        assert list(exact_z(CarryOverEnergy(model), table).values()) == pytest.approx([1] * 64, abs=1e-5)
    finally:
        model.narrow(V)


def test_what_does_not_cover_is_not_taken_for_normalised():
    energies = [kind(tiny_autoregressive(), covers=False) for kind in (AutoregressiveEnergy, CarryOverEnergy)]
    for energy in energies:
        assert not is_normalised(energy)
        assert not is_normalised_at(energy, torch.full((2, 4), 27), 27).any()


# --- vocabularies


@pytest.mark.parametrize("kind", ["ar", "coar"])
def test_an_energy_over_the_same_tokens_reads_them_as_they_are(folder, denoiser, kind):
    for name in ("gpt2", "gpt2-padded"):
        energy = load_energy(f"{kind}:{folder / name}", denoiser)
        assert isinstance(energy, AutoregressiveEnergy if kind == "ar" else CarryOverEnergy) and energy.covers
    xt = some_tokens(2, 16)
    xt[:, 3:9] = denoiser.mask_id  # beyond the causal model's vocabulary
    x0 = torch.where(xt == denoiser.mask_id, some_tokens(2, 16).roll(1, 1), xt)
    with torch.no_grad():
        value = energy(x0.unsqueeze(1), xt, torch.ones(2), torch.zeros(2, 1)).squeeze(1)
    each = plain_log_probs(energy.model, x0, BPE.vocab_size)
    assert torch.allclose(value, -(each if kind == "ar" else each[:, 3:9]).sum(-1), atol=1e-4)


def test_samples_with_a_causal_model_from_elsewhere(folder, denoiser):
    energy = load_energy(f"coar:{folder}/llama", denoiser)
    samples = list(generate(denoiser, 2, SampleConfig(steps=3, candidates=2), energy=energy))
    assert all(len(sample.tokens) == 16 and sample.energy_evaluations > 0 for sample in samples)


def test_gpt2s_own_files_and_a_tokenizer_json_are_one_vocabulary(shared, tmp_path):
    from edlm.tokenizer_files import load_tokenizer

    tokenizer = load_tokenizer(str(shared / "data" / "gpt2_bpe"))
    save_causal(tmp_path / "gpt2", "gpt2", tokenizer, rows=50304)
    denoiser = tiny_denoiser(vocab_size=50257)
    denoiser.tokenizer = tokenizer
    energy = load_energy(f"coar:{tmp_path}/gpt2", denoiser)
    assert isinstance(energy, CarryOverEnergy) and energy.model.vocab_size == 50257


def test_a_model_that_reads_less_than_the_denoiser_writes_is_refused(tmp_path, denoiser):
    save_causal(tmp_path / "short", "gpt2", BPE, context=8)
    with pytest.raises(UserError, match="reads 8 tokens, but the denoiser writes 16; use a longer one"):
        load_energy(f"ar:{tmp_path}/short", denoiser)


# --- other tokens: the text is read


def test_a_model_over_other_tokens_reads_the_text(folder):
    denoiser = tiny_denoiser()
    energy = load_energy(f"ar:{folder}/gpt2", denoiser)
    assert isinstance(energy, RetokenisedEnergy) and not is_normalised(energy)
    xt = torch.full((2, 16), 27)
    assert not is_normalised_at(energy, xt, 27).any()  # not even where all is masked
    texts = [["the cat sat on t", "the mat the cat "], ["aaaaaaaaaaaaaaaa", "the cat sat on t"]]
    x0 = torch.tensor([[denoiser.tokenizer.encode(text).tolist() for text in row] for row in texts])
    log_proposal = torch.tensor([[-3.0, -1.0], [-2.0, -0.5]])
    value = energy(x0, xt, torch.ones(2), log_proposal)
    for b, k in np.ndindex(2, 2):
        ids = torch.tensor([energy.oracle.encode(texts[b][k])])
        expected = log_proposal[b, k] - plain_log_probs(energy.model, ids, BPE.vocab_size).sum()
        assert value[b, k].item() == pytest.approx(expected.item(), rel=1e-5)
    assert ids.shape[1] < 16 and value.dtype == torch.float64


def test_a_model_of_ours_reads_text_too(folder, denoiser):
    energy = load_energy(f"ar:{folder}/gpt2", tiny_denoiser())
    assert next(iter(generate(tiny_denoiser(), 1, SampleConfig(steps=3, candidates=3), energy=energy))).text
    with pytest.raises(UserError, match=r"oracle .*ours cannot read .*, which the samples may contain"):
        load_energy(f"ar:{folder}/ours", denoiser)  # 27 characters cannot spell bytes


def test_carry_over_is_refused_over_other_tokens_with_the_reason(folder):
    with pytest.raises(
        UserError, match=r"gpt2 has another tokenizer than the denoiser; masked positions have no count"
    ):
        load_energy(f"coar:{folder}/gpt2", tiny_denoiser())


def test_equal_candidates_are_scored_once(folder, monkeypatch):
    energy, seen = load_energy(f"ar:{folder}/gpt2", tiny_denoiser()), []
    forward = energy.model.forward
    monkeypatch.setattr(energy.model, "forward", lambda x0: seen.append(len(x0)) or forward(x0))
    x0 = torch.ones(2, 4, 16, dtype=torch.long)
    value = energy(x0, torch.full((2, 16), 27), torch.ones(2), torch.zeros(2, 4))
    assert seen == [1] and value.unique().numel() == 1


# --- names


def test_one_place_turns_a_name_into_a_causal_model(folder, monkeypatch):
    assert isinstance(load_causal(folder / "ours"), Autoregressive)
    assert isinstance(load_causal("text8-nano-ar"), Autoregressive)
    assert isinstance(load_model(folder / "gpt2"), CausalLM)
    monkeypatch.setattr("edlm.models.pretrained.fetch", lambda name, patterns, **_: folder / name)
    assert load_causal("gpt2").start_id == load_causal(folder / "gpt2").start_id
    fingerprints = {load_oracle(f"{kind}:{folder}/gpt2").fingerprint for kind in ("ar", "hf")}
    assert len(fingerprints) == 1


def edited(folder, target, change):
    weights = load_file(copy_folder(folder, target) / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_weights_that_are_not_numbers_are_refused(folder, tmp_path):
    def spoil(weights):
        weights["transformer.wte.weight"][100, 3] = math.nan

    path = edited(folder / "gpt2", tmp_path / "nan", spoil)
    with pytest.raises(UserError, match=r"the weight transformer.wte.weight is not a finite number everywhere; fetch"):
        load_causal(path)


def test_options_follow_any_name(folder, smollm2_stub):
    for name in (folder / "gpt2", smollm2_stub):
        with pytest.raises(UserError, match="unknown option 'tiny'"):
            load_model(f"{name},tiny")
    with pytest.raises(UserError, match="is not a GGUF file"):
        load_model(f"{smollm2_stub},bfloat16")


@pytest.fixture
def smollm2_stub(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"no model")
    return tmp_path / "model.gguf"


def test_damaged_and_strange_folders_are_refused(folder, tmp_path):
    short = copy_folder(folder / "gpt2", tmp_path / "short")
    (short / "model.safetensors").write_bytes((short / "model.safetensors").read_bytes()[:5000])
    save_masked(tmp_path / "bert")
    for name, message in (
        ("short", "cannot load"),
        ("bert", "is a masked model, which sees what it should predict; it can be the denoiser"),
        ("nothing", "no model folder at"),
        ("x.gguf", "there is no file"),
        ("short,float64", "unknown option 'float64'; after a comma may follow float32, float16"),
        ("short,float16,bfloat16", "one precision, please"),
    ):
        with pytest.raises(UserError) as error:
            load_causal(f"{tmp_path}/{name}")
        assert message in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="options after a comma are for models from elsewhere"):
        load_causal(f"{folder}/ours,bfloat16")


def test_a_network_that_looks_ahead_is_refused():
    tokenizer = StrictTokenizer(BPE._inner, 265, {})
    with pytest.raises(UserError, match="bert sees the tokens that it should predict: it is no causal model"):
        CausalLM(masked_model("bert", 265), tokenizer, BPE.eos_id, "bert")


def test_a_causal_model_is_no_denoiser(folder):
    with pytest.raises(
        UserError, match="holds a model of type causal; --denoiser takes edlm-denoiser or a masked model"
    ):
        load_named(str(folder / "gpt2"), "")


# --- a real one


@pytest.fixture(scope="module")
def smollm2():
    try:
        return smollm2_file()
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_smollm2_prefers_english_among_candidates_of_characters(smollm2):
    denoiser = load_model("text8-nano-denoiser")
    energy = load_energy("ar:smollm2", denoiser)
    texts = [
        "in the year one nine four five the war ended in europe",
        "in yhe tear one nihe four pive the wor enged in ezrope",
    ]
    x0 = torch.tensor([[CharacterTokenizer().encode(text).tolist() for text in texts]])
    value = energy(x0, torch.full_like(x0[:, 0], 27), torch.ones(1), torch.zeros(1, 2))
    assert value[0, 0] + 40 < value[0, 1]


@pytest.mark.slow
def test_a_truncated_gguf_is_refused(smollm2, tmp_path):
    for size in (100, 5_000_000):
        with smollm2.open("rb") as file:
            (tmp_path / "short.gguf").write_bytes(file.read(size))
        with pytest.raises(UserError, match="cannot load"):
            load_causal(tmp_path / "short.gguf")
