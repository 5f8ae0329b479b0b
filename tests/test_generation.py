"""Prompts, holes, windows, energies by name, traces."""

import json

import numpy as np
import pytest
import torch

from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy, WeightedSum
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.generation import generate, windows
from edlm.models.energy_network import energy_from_denoiser
from edlm.sample_config import SampleConfig
from edlm.template import infill_tokens
from edlm.tokenization import CharacterTokenizer, train_bpe
from edlm.trace import trace_line
from toys import tiny_autoregressive, tiny_denoiser

ENCODE = CharacterTokenizer().encode


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    tiny_denoiser().save_pretrained(path / "denoiser")
    tiny_autoregressive().save_pretrained(path / "ar")
    energy_from_denoiser(tiny_denoiser()).save_pretrained(path / "nce")
    tiny_autoregressive(length=8).save_pretrained(path / "short")
    return path


# --- holes


def test_holes_stand_for_one_token_or_as_many_as_they_say():
    tokens = infill_tokens(ENCODE, "ab[MASK]c[MASK:3]", 16, 27)
    assert tokens.tolist() == [1, 2, 27, 3, 27, 27, 27]


@pytest.mark.parametrize("energy", [None, "ar"])
def test_infilling_keeps_what_is_known_and_fills_the_rest(energy):
    correction = AutoregressiveEnergy(tiny_autoregressive()) if energy else None
    texts = [
        s.text
        for s in generate(tiny_denoiser(), 3, SampleConfig(steps=4), energy=correction, infill="the [MASK:4] sat")
    ]
    assert all(text.startswith("the ") and text.endswith(" sat") and len(text) == 12 for text in texts)
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no hole here", "has no hole"),
        ("[MASK:0]", "stands for no token"),
        ("[MASK:17]", "longer than the model's 16 tokens"),
        ("[MASK:99999999999999]", "longer than the model's 16 tokens"),
        ("aaaaaaaaaaaa[MASK:5]", "has 17 tokens, but the model reads 16"),
        ("Hi [MASK]", "has 'H' at character 0"),
    ],
)
def test_bad_holes_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        infill_tokens(ENCODE, text, 16, 27)


def test_an_infill_text_allows_no_prompt_and_an_energy_no_causal_model():
    with pytest.raises(UserError, match="leave out prompt and length"):
        list(generate(tiny_denoiser(), 1, SampleConfig(), prompt="a", infill="b[MASK]"))
    with pytest.raises(UserError, match="an energy corrects a denoiser"):
        list(generate(tiny_autoregressive(), 1, SampleConfig(), energy=AutoregressiveEnergy(tiny_autoregressive())))


# --- windows


def test_windows_cover_a_long_text_and_share_what_they_overlap():
    assert windows(10, 16, None) == [(0, 10)] and windows(16, 16, 3) == [(0, 16)]
    assert windows(40, 16, 4) == [(0, 16), (12, 28), (24, 40)]
    assert windows(30, 16, None) == [(0, 16), (8, 24), (14, 30)]
    with pytest.raises(UserError, match="overlap must be at least 0 and below the model's 16 tokens, got 16"):
        windows(40, 16, 16)


@pytest.mark.parametrize("model", [tiny_denoiser(), tiny_autoregressive()], ids=["denoiser", "ar"])
def test_texts_longer_than_the_model_are_made_window_by_window(model):
    config = SampleConfig(steps=4, length=41, overlap=5)
    seen = []
    (sample,) = generate(
        model, 1, config, prompt="to be", watch=lambda i, state, info: seen.append(state.x[0].tolist())
    )
    assert len(sample.tokens) == 41 and sample.text.startswith("to be") and max(sample.tokens) < 27
    assert seen[-1] == sample.tokens[-16:]  # the last window is the end of the text
    again = [
        s.tokens for s in generate(model, 3, SampleConfig(steps=4, length=41, overlap=5, batch_size=2), prompt="to be")
    ]
    assert again[0] == sample.tokens  # batches do not matter here either


# --- energies by name


def test_energies_are_loaded_by_kind_and_composed(folder):
    denoiser = tiny_denoiser()
    for kind, cls, name in (
        ("ar", AutoregressiveEnergy, "ar"),
        ("coar", CarryOverEnergy, "ar"),
        ("nce", LearnedEnergy, "nce"),
    ):
        assert isinstance(load_energy(f"{kind}:{folder / name}", denoiser), cls)
    both = load_energy(f"ar:{folder / 'ar'} + 0.5*nce:{folder / 'nce'}", denoiser)
    assert isinstance(both, WeightedSum) and [weight for weight, _ in both.terms] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpt:x", "unknown energy 'gpt:x'; write ar:NAME, coar:NAME, nce:NAME or step:NAME"),
        ("ar:", "unknown energy 'ar:'"),
        ("two*ar:x", "the weight before * must be a number"),
        ("ar:{folder}/nce", "expected 'edlm-autoregressive'"),
        ("nce:{folder}/ar", "expected 'edlm-energy'"),
        ("ar:{folder}/short", "reads 8 tokens, but the denoiser writes 16"),
        ("ar:{folder}/nothing", "no model folder at"),
    ],
)
def test_bad_energies_are_refused(folder, spec, message):
    with pytest.raises(UserError) as error:
        load_energy(spec.format(folder=folder), tiny_denoiser())
    assert message in str(error.value)


def test_models_over_other_tokens_are_refused(tmp_path):
    tiny = tiny_autoregressive(vocab_size=30)
    tiny.tokenizer = None
    tiny.save_pretrained(tmp_path / "more")
    with pytest.raises(UserError, match=r"the denoiser has 27 tokens but .* has 30"):
        load_energy(f"ar:{tmp_path / 'more'}", tiny_denoiser())
    model, denoiser = tiny_autoregressive(vocab_size=258), tiny_denoiser(vocab_size=258)
    model.tokenizer = train_bpe(["the cat sat on the mat " * 50], 258)  # one merge each, of different letters
    denoiser.tokenizer = train_bpe(["a dog ate a hog " * 50], 258)
    model.save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match=r"has another tokenizer than the denoiser; .* so write ar:"):
        load_energy(f"coar:{tmp_path / 'other'}", denoiser)


# --- traces


def test_a_trace_has_every_step_and_rebuilds_the_text():
    energy, lines = AutoregressiveEnergy(tiny_autoregressive()), []
    config = SampleConfig(steps=5, candidates=3, window=0.5)
    samples = list(
        generate(tiny_denoiser(), 2, config, energy=energy, watch=lambda *step: lines.append(trace_line(*step)))
    )
    text = np.full((2, 16), 27)
    for line in json.loads(json.dumps(lines)):
        for row, revealed in enumerate(line["revealed"]):
            for position, token in revealed:
                assert text[row, position] == 27
                text[row, position] = token
        assert ("choice" in line) == (line["t"][0] >= 0.5)
        if "choice" in line:
            torch.testing.assert_close(
                torch.tensor(line["choice"]["weights"]).sum(-1), torch.ones(len(line["choice"]["chosen"]))
            )
    assert text.tolist() == [s.tokens for s in samples] and len(lines) == 5
    assert lines[-1]["energy_evaluations"] == [s.energy_evaluations for s in samples]


def test_tempered_settings_are_marked():
    assert not SampleConfig().is_tempered
    assert SampleConfig(temperature=0.9).is_tempered and SampleConfig(weight_temperature=2.0).is_tempered
