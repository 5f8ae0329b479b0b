"""A masked language model from its name, as a denoiser."""

from pathlib import Path
from typing import Any

from edlm.errors import UserError
from edlm.models.masked_lm import MaskedLM
from edlm.models.naming import ModelName, parse_name
from edlm.models.pretrained import HUB_FILES, find_folder, read_config
from edlm.models.transformers_files import Loaded, load_folder
from edlm.tokenization import BPETokenizer

PREFIX = "mlm:"
CLASSES = ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel")


def load_masked(text: str | Path, *, revision: str | None = None) -> MaskedLM:
    """The masked model that `text` names, with or without mlm: in front: a folder or a hub name, perhaps with options.

    BERT and its kind are read by `transformers`; masked diffusion models such as LLaDA bring their own code, which is
    run only where the option trust-remote-code says so.
    """
    name = parse_name(str(text).removeprefix(PREFIX))
    patterns = (*HUB_FILES, "*.py") if name.trust_remote_code else HUB_FILES
    folder = find_folder(name.name, revision=revision, patterns=patterns)
    config = read_config(folder)
    loaded = load_folder(_class_of(config), folder, name)
    inner = loaded.tokenizer.backend_tokenizer
    mask_id = _mask_id(loaded, config, name)
    tokenizer = BPETokenizer(inner)
    front, back = _around(inner, loaded.tokenizer, name)
    return MaskedLM(
        loaded.network, tokenizer, mask_id, name.name, vocab_size=min(tokenizer.vocab_size, loaded.num_rows),
        never=_special_ids(loaded.tokenizer), front=front, back=back, shifted=name.shifted, folder=folder,
    )  # fmt: skip


def _class_of(config: dict[str, Any]) -> str:
    """The class of `transformers` to load by: the model's own, where it brings code, else the usual one."""
    own = config.get("auto_map") or {}
    return next((name for name in CLASSES if name in own), CLASSES[0])


def _mask_id(loaded: Loaded, config: dict[str, Any], name: ModelName) -> int:
    """The network's mask, as its config says, else its tokenizer."""
    found = config.get("mask_token_id")
    found = loaded.tokenizer.mask_token_id if found is None else found
    if not isinstance(found, int):
        raise UserError(f"{name.name} has no mask; set mask_token_id in its config.json, or name a masked model")
    if not 0 <= found < loaded.num_rows:
        raise UserError(f"{name.name}: its mask is id {found}, but it has only {loaded.num_rows} rows; one is wrong")
    return found


def _special_ids(tokenizer: Any) -> tuple[int, ...]:
    """Ids that are no text: what the tokenizer declares as special, and ids that name nothing."""
    inner = tokenizer.backend_tokenizer
    added = {id for id, token in inner.get_added_tokens_decoder().items() if token.special}
    vocabulary = inner.get_vocab(with_added_tokens=True).values()
    return tuple({*tokenizer.all_special_ids, *added} | set(range(max(vocabulary))) - set(vocabulary))


def _around(inner: Any, tokenizer: Any, name: ModelName) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer puts before and behind a text. Shifted output needs something before it: the beginning."""
    text = next((word for word in ("a", "the", "0") if inner.encode(word, add_special_tokens=False).ids), "a")
    plain, whole = inner.encode(text, add_special_tokens=False).ids, inner.encode(text).ids
    starts = [i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain]
    if not starts:
        raise UserError(f"{name.name}: its tokenizer changes a text that it puts tokens around; save a plain one")
    front, back = tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(plain) :])
    if name.shifted and not front and tokenizer.bos_token_id is not None:
        front = (int(tokenizer.bos_token_id),)
    return front, back
