"""Oracles against the sum of all probabilities and plain loops, whatever the batch, the length and the vocabulary."""

import itertools

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Inner
from tokenizers import models, pre_tokenizers

from edlm.errors import UserError
from edlm.gguf_files import smollm2_file
from edlm.oracle import CausalOracle, check_readable, fingerprint, score_samples, split
from edlm.oracle_spec import load_oracle
from edlm.tokenization import BPETokenizer, CharacterTokenizer, TextError, train_bpe
from foreign import causal_model
from toys import tiny_autoregressive

TEXTS = ["the cat sat on the mat", "a", "the mat", "", "on the cat the cat the cat sat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("oracles")
    tokenizer = train_bpe(["the cat sat on the mat " * 20], 265)
    for kind in ("gpt2", "llama"):
        causal_model(kind, tokenizer.vocab_size).save_pretrained(path / kind)
        tokenizer.save(path / kind)
    tiny_autoregressive(length=16).save_pretrained(path / "ar")
    return path


@pytest.fixture(scope="module", params=["hf:gpt2", "hf:llama", "ar:ar"])
def oracle(request, folder):
    kind, _, name = request.param.partition(":")
    return load_oracle(f"{kind}:{folder / name}", batch_size=3)


# --- what is scored


def test_probabilities_of_all_texts_of_one_length_sum_to_one(folder):
    oracle = load_oracle(f"ar:{folder / 'ar'}", batch_size=256)
    texts = ["".join(pair) for pair in itertools.product(CharacterTokenizer().decode(range(27)), repeat=2)]
    scores = oracle.nll(texts)
    assert np.exp(-scores.nats).sum() == pytest.approx(1, abs=1e-5)
    assert set(scores.num_tokens) == {2} and set(scores.num_characters) == {2}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_all_tokens_are_scored_after_the_mark_between_documents(folder, kind):
    oracle = load_oracle(f"hf:{folder / kind}")
    ids = oracle.encode(TEXTS[0])
    start = oracle.tokenizer.tokens().index("<|endoftext|>")
    with torch.no_grad():
        log_probs = oracle.model.network(torch.tensor([[start, *ids]])).logits[0].double().log_softmax(-1)
    expected = -sum(log_probs[i, token].item() for i, token in enumerate(ids))
    scores = oracle.nll(TEXTS[:1])
    assert scores.nats[0] == pytest.approx(expected, rel=1e-6) and scores.nats.dtype == np.float64
    assert scores.num_tokens[0] == len(ids) < scores.num_characters[0] == len(TEXTS[0])
    assert oracle.describe()["start"] == "<|endoftext|>"


def test_a_batch_scores_like_its_texts_alone(oracle):
    together = oracle.nll(TEXTS)
    for i, text in enumerate(TEXTS):
        assert oracle.nll([text]).nats[0] == pytest.approx(together.nats[i], abs=1e-4)
    assert together.nats[3] == 0 and together.num_tokens[3] == 0  # nothing to score in an empty text
    assert (together.nats[[0, 1, 2, 4]] > 0).all()


def test_a_tokenizer_that_puts_a_start_in_front_decides_which(tmp_path, folder):
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    inner = Inner.from_file(str(folder / "llama" / "tokenizer.json"))
    inner.add_special_tokens(["<s>"])
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))])
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>").save_pretrained(tmp_path)
    causal_model("llama", inner.get_vocab_size()).save_pretrained(tmp_path)
    oracle = load_oracle(f"hf:{tmp_path}")
    assert oracle.model.start_id == inner.token_to_id("<s>") not in oracle.encode("the cat")


# --- long texts


def test_windows_score_every_token_once_behind_half_a_context():
    tokens = list(range(41))
    pieces = list(split([tokens, [7]], 16))
    assert [part[skip:] for row, part, skip in pieces if row == 1] == [[7]]
    scored = [token for row, part, skip in pieces if row == 0 for token in part[skip:]]
    assert scored == tokens and all(len(part) <= 16 for _, part, _ in pieces)
    assert all(skip >= 8 for row, _, skip in pieces[1:] if row == 0)


def test_a_text_longer_than_the_context_is_read_window_by_window(oracle):
    text = "the cat sat on the mat " * 12
    context = oracle.describe()["context"]
    ids = oracle.encode(text)
    assert len(ids) > context
    scores = oracle.nll([text])
    assert scores.num_tokens[0] == len(ids) and np.isfinite(scores.nats[0])
    with torch.no_grad():
        per_token = [-oracle.model(torch.tensor([part]))[0, skip:].sum() for _, part, skip in split([ids], context)]
    assert scores.nats[0] == pytest.approx(float(sum(per_token)), rel=1e-5)


def test_a_text_that_just_fits_is_read_whole(folder):
    oracle = load_oracle(f"hf:{folder / 'gpt2'}")
    text = "z" * 64  # one token each: as many as positions
    assert oracle.nll([text]).num_tokens[0] == 64 == oracle.context


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_features_are_the_last_hidden_state_of_the_text_alone(folder, kind):
    oracle = load_oracle(f"hf:{folder / kind}", batch_size=2)
    vectors = oracle.embed([*TEXTS, "the cat sat " * 40])
    with torch.no_grad():
        inputs = torch.tensor([[oracle.model.start_id, *oracle.encode(TEXTS[0])]])
        expected = oracle.model.network(inputs, output_hidden_states=True).hidden_states[-1][0, -1]
    assert vectors.shape == (6, 32) and vectors[0] == pytest.approx(expected.numpy(), abs=1e-4)


# --- tokens and vocabularies


def test_an_oracle_of_the_samplers_own_tokens_scores_them_as_they_were_drawn():
    tokenizer = train_bpe(["the cat sat on the mat " * 20], 265)
    model = tiny_autoregressive(vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    oracle = CausalOracle(model)
    tokens = [int(tokenizer.encode(letter)[0]) for letter in "the"]  # not how the tokenizer would cut "the"
    scores = score_samples(oracle, ["the"], [tokens], tokenizer)
    assert scores.num_tokens[0] == 3 != len(oracle.encode("the"))
    with torch.no_grad():
        assert scores.nats[0] == pytest.approx(-model(torch.tensor([tokens])).sum().item(), rel=1e-5)
    assert score_samples(oracle, ["the"], [[0]], CharacterTokenizer()).num_tokens[0] == len(oracle.encode("the"))


def test_an_oracle_that_cannot_read_what_may_be_written_is_refused_before_sampling(folder):
    characters, bytes_ = load_oracle(f"ar:{folder / 'ar'}"), load_oracle(f"hf:{folder / 'gpt2'}")
    check_readable(characters, CharacterTokenizer())
    check_readable(bytes_, CharacterTokenizer())
    with pytest.raises(UserError, match=r"cannot read '.*', which the samples may contain; use an oracle with"):
        check_readable(characters, train_bpe(["Hello!"], 257))


def test_characters_that_become_the_unknown_token_or_nothing_are_refused(tmp_path):
    for name, unknown in (("unknown", "[UNK]"), ("nothing", None)):
        vocabulary = {"[UNK]": 0, "<|endoftext|>": 1, "a": 2, "b": 3}
        inner = Inner(models.BPE(vocabulary, [], unk_token=unknown))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        BPETokenizer(inner).save(tmp_path / name)
        causal_model("gpt2", 4).save_pretrained(tmp_path / name)
        oracle = load_oracle(f"hf:{tmp_path / name}")
        assert oracle.nll(["abba"]).num_tokens[0] == 4
        with pytest.raises(TextError, match=f"a text for oracle hf:{tmp_path / name} has 'c' at character 2"):
            oracle.nll(["abc"])


# --- names


def test_models_with_equal_weights_have_one_fingerprint():
    assert fingerprint(tiny_autoregressive(0)) == fingerprint(tiny_autoregressive(0))
    assert fingerprint(tiny_autoregressive(0)) != fingerprint(tiny_autoregressive(1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gpt2", "unknown oracle 'gpt2'; write ar:NAME, hf:NAME, gguf:FILE or smollm2"),
        ("hf:", "unknown oracle 'hf:'"),
        ("smollm2:x", "unknown oracle"),
        ("hf:./nowhere", "no model folder at ./nowhere"),
        ("hf:{folder}/pickle", "has no .safetensors file, and no other kind of weights is read"),
        ("hf:{folder}/mute", "has no token to start a text with; set bos_token"),
        ("gguf:{folder}/none.gguf", "there is no file"),
        ("gguf:{folder}/gpt2/config.json", "is not a GGUF file"),
        ("gguf:{folder}/short.gguf", "cannot load"),
    ],
)
def test_bad_oracles_are_refused(folder, spec, message):
    (folder / "short.gguf").write_bytes(b"GGUF\3\0\0\0")
    (folder / "pickle").mkdir(exist_ok=True)
    (folder / "pickle" / "config.json").write_text((folder / "gpt2" / "config.json").read_text())
    (folder / "pickle" / "pytorch_model.bin").write_bytes(b"")
    causal_model("gpt2", 27).save_pretrained(folder / "mute")
    CharacterTokenizer().save(folder / "mute")
    with pytest.raises(UserError) as error:
        load_oracle(spec.format(folder=folder))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_without_a_network_a_name_on_the_hub_is_refused_at_once(monkeypatch, tmp_path):
    import time

    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    start = time.perf_counter()
    with pytest.raises(UserError, match="is not in the local cache, and HF_HUB_OFFLINE is set"):
        load_oracle("hf:some/model")
    assert time.perf_counter() - start < 5


def test_weights_that_are_missing_are_refused_and_not_made_up(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in (folder / "gpt2").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks 1 weights, transformer.h.1.mlp.c_fc.weight first"):
        load_oracle(f"hf:{tmp_path}")


@pytest.mark.slow
def test_a_real_oracle_prefers_a_sentence_to_its_words_in_disorder():
    try:
        smollm2_file()
    except UserError as error:
        pytest.skip(str(error))
    sentence = "The quick brown fox jumps over the lazy dog."
    oracle = load_oracle("smollm2")
    scores = oracle.nll([sentence, "dog The over jumps lazy quick the brown. fox"])
    per_character = scores.nats / scores.num_characters
    assert oracle.describe()["start"] == "<|endoftext|>" and oracle.describe()["context"] == 8192
    assert per_character[0] == pytest.approx(0.511, abs=0.01) and per_character[1] > 2
    assert scores.num_tokens[0] == 10
