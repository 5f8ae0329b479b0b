"""Finding and reading tokenizers: our own folders, Hugging Face's, GPT-2's, llama2.c's and GGUF files, or the hub."""

import difflib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edlm.errors import UserError
from edlm.gguf_files import SMOLLM2, read_gguf_tokenizer, smollm2_file
from edlm.llama2c_tokenizer import read_llama2c_tokenizer
from edlm.tokenization import BPETokenizer, CharacterTokenizer, Tokenizer

if TYPE_CHECKING:
    import tokenizers

CHOICES = "characters, bpe:SIZE, a folder, a tokenizer.json, tok*.bin or GGUF file, smollm2, or a hub name such as gpt2"
GPT2_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
GPT2 = "openai-community/gpt2"
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")
HUB_FILES = ["tokenizer.json", "vocab.json", "merges.txt", *SETTINGS_FILES]


def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that `spec` names: `characters`, a folder, a tokenizer.json, or a name on the Hugging Face hub."""
    if spec == "characters":
        return CharacterTokenizer()
    if spec.startswith("bpe:"):
        raise UserError(f"tokenizer {spec!r} is trained on text by data preparation; load the folder it was saved in")
    if not spec.strip():
        raise UserError(f"unknown tokenizer {spec!r}; choose {CHOICES}")
    path = Path(spec).expanduser()
    if path.is_dir():
        return _from_folder(path)
    if spec == SMOLLM2:
        path = smollm2_file()
    if path.is_file() and path.suffix == ".gguf":
        return BPETokenizer(read_gguf_tokenizer(path))
    if path.is_file() and path.suffix == ".bin":
        return BPETokenizer(read_llama2c_tokenizer(path))
    if path.is_file():
        inner = _read_tokenizer(path)
        return BPETokenizer(inner, _eos_of(path.parent, inner))
    return _from_hub(spec)


def holds_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files of a tokenizer."""
    pairs = [("tokenizer.json",), *GPT2_FILES]
    return any(all((folder / name).is_file() for name in files) for files in pairs)


def tokenizer_of(folder: Path) -> str:
    """What names the tokenizer of a model: its folder, or GPT-2's for a public checkpoint that came without one."""
    return str(folder) if holds_tokenizer(folder) else GPT2


def _from_folder(folder: Path) -> Tokenizer:
    settings = _read_json(folder / "tokenizer_config.json")
    if settings.get("edlm_kind") == "characters":
        return _characters_from(folder)
    if (folder / "tokenizer.json").is_file():
        inner = _read_tokenizer(folder / "tokenizer.json")
        return BPETokenizer(inner, _eos_of(folder, inner))
    for vocabulary, merges in GPT2_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            inner = _read_gpt2(folder / vocabulary, folder / merges)
            return BPETokenizer(inner, _eos_of(folder, inner))
    raise UserError(f"folder {folder} holds no tokenizer; expected tokenizer.json, or vocab.json with merges.txt")


def _characters_from(folder: Path) -> CharacterTokenizer:
    """The character tokenizer, once its file is seen to hold the 27 symbols in our order."""
    tokenizer = CharacterTokenizer()
    vocabulary = _read_tokenizer(folder / "tokenizer.json").get_vocab()
    if vocabulary != {tokenizer.decode([index]): index for index in range(tokenizer.vocab_size)}:
        raise UserError(f"{folder / 'tokenizer.json'} is not the 27-character vocabulary; save the tokenizer again")
    return tokenizer


def _read_tokenizer(path: Path) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # `tokenizers` raises bare Exceptions for what it cannot parse
        raise UserError(
            f"cannot read {path} as a tokenizer.json ({_one_line(error)}); fetch or save it again"
        ) from error


def _read_gpt2(vocabulary: Path, merges: Path) -> "tokenizers.Tokenizer":
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    try:
        inner = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:
        raise UserError(
            f"cannot read {vocabulary} with {merges.name} ({_one_line(error)}); fetch them again"
        ) from error
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if inner.token_to_id("<|endoftext|>") is not None:
        inner.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    return inner


def _eos_of(folder: Path, inner: "tokenizers.Tokenizer") -> str | None:
    """The end token that the folder's settings declare; None leaves the choice to the usual names."""
    for name in SETTINGS_FILES:
        settings = _read_json(folder / name)
        token = settings.get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and inner.token_to_id(token) is not None:
            return token
        ids = settings.get("eos_token_id")
        first = ids[0] if isinstance(ids, list) and ids else ids
        if isinstance(first, int) and inner.id_to_token(first) is not None:
            return str(inner.id_to_token(first))
    return None


def _from_hub(spec: str) -> Tokenizer:
    """Only the tokenizer's files are fetched; a copy in the local cache serves without a network."""
    _refuse_what_cannot_be_a_hub_name(spec)
    from edlm.hub import fetch

    try:
        return _from_folder(fetch(spec, HUB_FILES))
    except UserError as error:
        raise UserError(f"tokenizer {spec!r} is no local path, and {error}; or choose {CHOICES}") from error


def _refuse_what_cannot_be_a_hub_name(spec: str) -> None:
    looks_local = spec.startswith((".", "/", "~")) or spec.endswith(".json") or spec.count("/") > 1
    if looks_local:
        raise UserError(f"tokenizer {spec!r} does not exist; choose {CHOICES}")
    close = difflib.get_close_matches(
        spec.lower(), ["characters", "character", "chars", "text8", "bpe"], n=1, cutoff=0.8
    )
    if close:
        meant = "bpe:SIZE" if close == ["bpe"] else "characters"
        raise UserError(f"unknown tokenizer {spec!r}; did you mean {meant!r}?")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", spec):
        raise UserError(f"unknown tokenizer {spec!r}; choose {CHOICES}")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"cannot read {path} as JSON ({_one_line(error)}); fetch or save it again") from error
    return content if isinstance(content, dict) else {}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
