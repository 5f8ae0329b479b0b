"""`prepare`: from a `DataConfig` to splits of blocks, tokenised once and kept in the cache."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from edlm.data.blocks import Blocks
from edlm.data.cache import cache_folder, get_or_build, key_of
from edlm.data.config import Amount, DataConfig, parse_amount
from edlm.data.packing import DOCUMENTS, TOKENS, Encoder, first_documents, pack, progress_bar, read_meta
from edlm.data.source import Source
from edlm.data.sources import open_source
from edlm.data.splits import cut_splits
from edlm.errors import UserError
from edlm.tokenization import Tokenizer, train_bpe
from edlm.tokenizer_files import load_tokenizer

FORMAT = 1  # raise it when the same settings give other files


@dataclass(frozen=True)
class Packed:
    """One tokenised source in the cache."""

    folder: Path
    meta: dict[str, Any]

    def document_ends(self) -> np.ndarray:
        return np.memmap(self.folder / DOCUMENTS, dtype=np.int64, mode="r")


@final
class Corpus:
    """The splits of a data set: `corpus["train"]` is a `Blocks`."""

    def __init__(self, config: DataConfig, tokenizer: Tokenizer, parts: dict[str, tuple[Packed, int, int]]) -> None:
        self.config, self.tokenizer, self._parts = config, tokenizer, parts
        self._blocks = {name: self._view(name, *part) for name, part in parts.items()}

    def _view(self, name: str, packed: Packed, start: int, stop: int) -> Blocks:
        wrap_id = self.tokenizer.eos_id if self.config.wrap_eos else None
        path, dtype = packed.folder / TOKENS, packed.meta["dtype"]
        return Blocks(path, dtype, start, stop, self.config.length, name=name, wrap_id=wrap_id)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self._blocks)

    @property
    def unit(self) -> str:
        """What bits are counted per: "character" or "token"."""
        return self.tokenizer.unit

    def __getitem__(self, split: str) -> Blocks:
        if split not in self._blocks:
            remedy = f"choose {', '.join(self.splits)}"
            if split in ("validation", "test"):
                remedy = f"set {split} to a source or an amount such as 5%, or {remedy}"
            raise UserError(f"the data has no split {split!r}; {remedy}")
        return self._blocks[split]

    def __contains__(self, split: object) -> bool:
        return split in self._blocks

    def describe(self) -> dict[str, Any]:
        """The protocol behind every number computed on this corpus, ready for printing or JSON."""
        return {
            "tokenizer": self.config.tokenizer,
            "tokenizer_fingerprint": self.tokenizer.fingerprint,
            "vocab_size": self.tokenizer.vocab_size,
            "unit": self.unit,
            "length": self.config.length,
            "blocks": "consecutive, not overlapping, only the final partial block dropped",
            "special_tokens": self._special_tokens(),
            "splits": {name: self._describe_split(name) for name in self.splits},
        }

    def _special_tokens(self) -> str:
        if self.tokenizer.eos_id is None or not self.config.mark_documents:
            return "none"
        wrapped = "; every block starts and ends with it" if self.config.wrap_eos else ""
        return f"id {self.tokenizer.eos_id} after every document{wrapped}"

    def _describe_split(self, name: str) -> dict[str, Any]:
        (packed, start, stop), blocks = self._parts[name], self._blocks[name]
        per_block = blocks.length - (0 if blocks.wrap_id is None else 2)
        return {
            "source": packed.meta["source"],
            "normalised": packed.meta["normalise"],
            "first_token": start,
            "end_token": stop,
            "num_tokens": blocks.num_tokens,
            "num_blocks": len(blocks),
            "num_dropped": blocks.num_tokens - len(blocks) * per_block,
            "tokens_sha256": packed.meta["sha256"],
        }


def prepare(config: DataConfig, *, progress: bool | None = None) -> Corpus:
    """Tokenise what `config` names, or find it in the cache, and return its splits.

    `progress` shows a bar on standard error; None shows it on a terminal only.
    """
    cache = cache_folder(config.cache)
    source = open_source(config.source, config, cache)
    _require_no_training(config, source)
    held_out = {name: getattr(config, name) or source.own_split for name in ("validation", "test")}
    amounts = {name: parse_amount(spec) for name, spec in held_out.items()}
    tokenizer = _tokenizer(config, source, amounts, cache, progress)
    packed = _packed(source, tokenizer, config, cache, config.max_documents, progress)
    _require_room_for_own_split(config, source, packed)
    whole = {source.only_split: (0, packed.meta["num_tokens"])}
    ranges = whole if source.only_split else cut_splits(packed.document_ends(), unit=tokenizer.unit, **amounts)
    parts = {name: (packed, *part) for name, part in ranges.items()}
    for name, spec in held_out.items():
        if spec and amounts[name] is None:
            other = _packed(open_source(spec, config, cache), tokenizer, config, cache, 0, progress)
            parts[name] = (other, 0, other.meta["num_tokens"])
    return Corpus(config, tokenizer, {name: parts[name] for name in ("train", "validation", "test") if name in parts})


def _packed(
    source: Source, tokenizer: Tokenizer, config: DataConfig, cache: Path, limit: int, progress: bool | None
) -> Packed:
    """The tokens of a source. Splits, block length and workers are not part of the key: they do not change the file."""
    normalise = tokenizer.unit == "character" and (config.normalise or source.normalise_characters)
    encoder = Encoder(tokenizer, normalise, config.mark_documents)
    key = key_of(
        {
            "format": FORMAT,
            "source": source.identity,
            "tokenizer": tokenizer.fingerprint,
            "normalise": normalise,
            "limit": limit,
            **({} if config.mark_documents else {"marks": False}),  # no key by default: older caches stay good
        }
    )

    def build(folder: Path) -> None:
        pack(source, encoder, folder, limit=limit, num_workers=config.num_workers, progress=progress)

    folder = get_or_build(cache, f"tokens-{key}", is_whole=lambda path: read_meta(path) is not None, build=build)
    meta = read_meta(folder)
    if meta is None:
        raise UserError(f"{folder} vanished while it was read; run again")
    return Packed(folder, meta | {"source": source.description})


def _tokenizer(
    config: DataConfig, source: Source, amounts: dict[str, Amount | None], cache: Path, progress: bool | None
) -> Tokenizer:
    if config.tokenizer.startswith("bpe:"):
        tokenizer: Tokenizer = _trained(config, source, amounts, cache, progress)
    else:
        tokenizer = load_tokenizer(config.tokenizer)
    is_character = tokenizer.unit == "character"
    if config.normalise and not is_character:
        raise UserError(
            f"normalise needs the character tokenizer, but tokenizer is {config.tokenizer!r}; drop one of them"
        )
    if config.wrap_eos and is_character:
        raise UserError("wrap_eos needs a tokenizer with an end-of-document token; characters have none")
    if tokenizer.eos_id is None and config.mark_documents and not is_character:
        raise UserError(f"tokenizer {config.tokenizer!r} has no end-of-document token; set eos_token in its config")
    return tokenizer


def _trained(
    config: DataConfig, source: Source, amounts: dict[str, Amount | None], cache: Path, progress: bool | None
) -> Tokenizer:
    """A byte-level vocabulary learned on the training split alone, kept in the cache."""
    size_text = config.tokenizer.removeprefix("bpe:")
    if not size_text.isdecimal():
        raise UserError(f"tokenizer {config.tokenizer!r} must be bpe:SIZE with a whole number; for example bpe:4096")
    held_out = [[name, str(amount.number), amount.unit] for name, amount in amounts.items() if amount is not None]
    key = key_of({"format": FORMAT, "source": source.identity, "limit": config.max_documents, "held_out": held_out})

    def build(folder: Path) -> None:
        train_bpe(_training_texts(config, source, amounts, progress), int(size_text)).save(folder)

    name = f"bpe-{size_text}-{key}"
    return load_tokenizer(str(get_or_build(cache, name, is_whole=Path.is_dir, build=build)))


def _training_texts(
    config: DataConfig, source: Source, amounts: dict[str, Amount | None], progress: bool | None
) -> Iterator[str]:
    """The texts before the held-out part. Tokens do not exist yet, so a share of them is taken of the characters."""
    held_out = [amount for amount in amounts.values() if amount is not None]
    if any(amount.unit != "documents" and not amount.is_share for amount in held_out):
        raise UserError("bpe:SIZE is trained before there are tokens to count; hold out documents or a percentage")
    num_documents = num_characters = 0
    if held_out:
        for piece in first_documents(source.pieces(), config.max_documents):
            num_documents += piece.is_last
            num_characters += len(piece.text)
    documents_left = num_documents - sum(amount.of(num_documents) for amount in held_out if amount.unit == "documents")
    characters_left = num_characters - sum(
        amount.of(num_characters) for amount in held_out if amount.unit != "documents"
    )
    with progress_bar(source, progress, "learning the vocabulary of") as bar:
        for piece in first_documents(source.pieces(), config.max_documents):
            if held_out and (documents_left <= 0 or characters_left <= 0):
                return
            yield piece.text[:characters_left] if held_out else piece.text
            bar.update(piece.done - bar.n)
            documents_left -= piece.is_last
            characters_left -= len(piece.text)


def _require_no_training(config: DataConfig, source: Source) -> None:
    """A source that is one split as a whole has no text to hold out from, or to learn a vocabulary on."""
    if not source.only_split:
        return
    if config.validation or config.test:
        raise UserError(
            f"all of {config.source} is the {source.only_split} split; leave validation and test empty, "
            f"or make it the {source.only_split} text of another source"
        )
    if config.tokenizer.startswith("bpe:"):
        raise UserError(
            f"{config.source} is a {source.only_split} set and no text to learn a vocabulary from; "
            "name the tokenizer of the model instead of bpe:SIZE"
        )


def _require_room_for_own_split(config: DataConfig, source: Source, packed: Packed) -> None:
    is_used = source.own_split and not (config.validation and config.test)
    if is_used and packed.meta["num_tokens"] < source.own_split_needs:
        raise UserError(
            f"{source.description} has {packed.meta['num_tokens']} characters; its usual split of {source.own_split} "
            f"each needs at least {source.own_split_needs}; set validation and test, for example to 5%"
        )
