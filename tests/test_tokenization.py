"""Tokenizers: round trips, known ids, folders that load again, and errors that name the remedy."""

import json
import os
import pickle
import random
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from edlm.errors import UserError
from edlm.tokenization import BPETokenizer, CharacterTokenizer, normalise_text8, train_bpe
from edlm.tokenizer_files import load_tokenizer

SHARED = Path(os.environ.get("EDLM_SHARED", Path(__file__).parents[2] / "shared" / "data"))
HOSTILE = [
    "",
    " ",
    "\x00\x01",
    "a\r\n\tb",
    "naïve 戦場 🙂‍↔️",
    "<|endoftext|>",
    "\ufeffbom",
    "e\u0301",
    "  two  spaces  ",
]


@pytest.fixture(scope="module")
def small_bpe() -> BPETokenizer:
    return train_bpe(["the cat sat on the mat and the dog sat on the log"] * 20, 300)


@pytest.fixture(scope="module")
def gpt2_folder() -> Path:
    folder = SHARED / "gpt2_bpe"
    if not folder.is_dir():
        pytest.skip(f"needs GPT-2's vocabulary files in {folder}")
    return folder


def test_characters_survive_the_round_trip():
    tokenizer = CharacterTokenizer()
    ids = tokenizer.encode(" az ")
    assert ids.tolist() == [0, 1, 26, 0]
    assert tokenizer.decode(ids) == " az "
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.unit) == (27, None, "character")


@pytest.mark.parametrize(
    "text, position", [("abcD", 3), ("é", 0), ("ab\ncd", 2), ("a\x00", 1), ("ab\ud800", 2), ("a?b", 1)]
)
def test_a_character_outside_the_27_is_named_with_its_position(text, position):
    with pytest.raises(UserError, match=f"at character {position}") as error:
        CharacterTokenizer().encode(text)
    assert repr(text[position]) in str(error.value) and "normalise" in str(error.value)


def test_a_hundred_million_characters_encode_in_seconds():
    text = "the quick brown fox " * 5_000_000
    start = time.monotonic()
    assert len(CharacterTokenizer().encode(text)) == 100_000_000
    assert time.monotonic() - start < 5


def test_normalising_spells_digits_and_drops_accents():
    assert normalise_text8("Café №12,\tdon't!") == "cafe no one two don t"
    assert normalise_text8("Ærø straße ½ 戦場 -- x") == "aero strasse one two x"


@pytest.mark.parametrize("text", HOSTILE)
def test_normalised_text_is_always_encodable_and_stable(text):
    once = normalise_text8(text)
    CharacterTokenizer().encode(once)
    assert normalise_text8(once) == once


@pytest.mark.parametrize("text", HOSTILE)
def test_a_trained_vocabulary_gives_back_any_text(small_bpe, text):
    assert small_bpe.decode(small_bpe.encode(text)) == text


def test_a_trained_vocabulary_gives_back_random_text(small_bpe):
    draw = random.Random(0)
    for _ in range(200):
        codes = (
            draw.choice((draw.randrange(128), draw.randrange(0xE000, 0x110000))) for _ in range(draw.randrange(40))
        )
        text = "".join(map(chr, codes))
        assert small_bpe.decode(small_bpe.encode(text)) == text


def test_a_spelled_out_special_token_stays_text(small_bpe):
    assert small_bpe.eos_id not in small_bpe.encode("one<|endoftext|>two")
    assert small_bpe.decode([small_bpe.eos_id]) == "<|endoftext|>"


def test_a_vocabulary_too_small_for_the_bytes_is_refused():
    with pytest.raises(UserError, match="at least 257"):
        train_bpe(["abc"], 100)


def test_gpt2_files_give_the_known_ids(gpt2_folder):
    tokenizer = load_tokenizer(str(gpt2_folder))
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.unit) == (50257, 50256, "token")


def test_gpt2_files_load_under_their_later_names_too(gpt2_folder, tmp_path):
    (tmp_path / "vocab.json").write_bytes((gpt2_folder / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((gpt2_folder / "vocab.bpe").read_bytes())
    assert load_tokenizer(str(tmp_path)) == load_tokenizer(str(gpt2_folder))


def test_gpt2_gives_back_any_text(gpt2_folder):
    tokenizer = load_tokenizer(str(gpt2_folder))
    assert [tokenizer.decode(tokenizer.encode(text)) for text in HOSTILE] == HOSTILE


def test_a_saved_tokenizer_loads_as_an_equal_one(small_bpe, tmp_path):
    for name, tokenizer in (("characters", CharacterTokenizer()), ("bpe", small_bpe)):
        tokenizer.save(tmp_path / name)
        again = load_tokenizer(str(tmp_path / name))
        assert again == tokenizer and again.fingerprint == tokenizer.fingerprint
        assert again.encode("the cat").tolist() == tokenizer.encode("the cat").tolist()
    assert load_tokenizer(str(tmp_path / "bpe" / "tokenizer.json")) == small_bpe


def test_others_can_read_the_saved_characters(tmp_path):
    CharacterTokenizer().save(tmp_path)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode("a  z").ids == [1, 0, 0, 26]
    assert plain.decode([1, 0, 0, 26]) == "a  z"


def test_tokenizers_travel_to_other_processes(small_bpe):
    again = pickle.loads(pickle.dumps(small_bpe))
    assert again == small_bpe and again.encode("cat").tolist() == small_bpe.encode("cat").tolist()


@pytest.mark.parametrize("settings", [{"eos_token": "x"}, {"eos_token": {"content": "x"}}, {"eos_token_id": [1, 0]}])
def test_the_end_token_comes_from_the_settings(settings, tmp_path):
    inner = tokenizers.Tokenizer(models.WordLevel({"<|endoftext|>": 0, "x": 1}, unk_token="x"))
    (tmp_path / "tokenizer.json").write_text(inner.to_str())
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(str(tmp_path)).eos_id == 1


def test_the_vocabulary_covers_added_tokens_and_gaps():
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 40}, unk_token="a"))
    assert BPETokenizer(inner).vocab_size == 41
    inner.add_special_tokens(["</s>"])
    assert BPETokenizer(inner).vocab_size > max(inner.get_vocab().values())


def test_a_vocabulary_that_would_drop_characters_is_refused_that_text():
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    assert BPETokenizer(inner).encode("ab ba").tolist() == [0, 1, 1, 0]
    with pytest.raises(UserError, match="'z' at character 3"):
        BPETokenizer(inner).encode("ab z")


def test_half_a_surrogate_pair_is_refused(small_bpe):
    with pytest.raises(UserError, match="at character 2"):
        small_bpe.encode("ab\ud800")


def test_decoding_the_mask_says_so(small_bpe):
    for tokenizer in (CharacterTokenizer(), small_bpe):
        with pytest.raises(UserError, match="mask"):
            tokenizer.decode([tokenizer.vocab_size])
        with pytest.raises(UserError, match="ids run from 0"):
            tokenizer.decode(np.array([-1]))


@pytest.mark.parametrize("keep", [0, 1, 100, 5000])
def test_a_truncated_file_is_reported_by_name(small_bpe, tmp_path, keep):
    small_bpe.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text()[:keep])
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    "spec, message",
    [
        ("character", "did you mean 'characters'"),
        ("bpe", "bpe:SIZE"),
        ("bpe:300", "trained on text"),
        ("./nowhere", "does not exist"),
        ("no such name!", "unknown tokenizer"),
        ("", "unknown tokenizer"),
    ],
)
def test_an_unknown_tokenizer_gets_a_suggestion(spec, message):
    with pytest.raises(UserError, match=message):
        load_tokenizer(spec)


def test_a_folder_without_a_tokenizer_says_what_it_lacks(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_hub_name_offline_fails_at_once(monkeypatch, tmp_path):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    start = time.monotonic()
    with pytest.raises(UserError, match="is not in the local cache, and HF_HUB_OFFLINE is set"):
        load_tokenizer("edlm-tests/no-such-tokenizer")
    assert time.monotonic() - start < 5
