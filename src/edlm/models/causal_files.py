"""A causal model from its name, ours or anybody's: the one place where energies and oracles get theirs from."""

from pathlib import Path
from typing import Any

from edlm.errors import UserError
from edlm.gguf_files import SMOLLM2, smollm2_file
from edlm.models.autoregressive import Autoregressive
from edlm.models.causal_lm import CausalLM
from edlm.models.llama2c import load_llama2c
from edlm.models.mdlm_files import find_model, is_public, load_public
from edlm.models.naming import ModelName, parse_name
from edlm.models.pretrained import CHECKPOINT_FILES, read_config
from edlm.models.transformers_files import Loaded, is_masked_model, load_folder, load_gguf
from edlm.strict_tokenizer import StrictTokenizer, unknown_tokens

DOCUMENT_MARK = "<|endoftext|>"
FILES = (".gguf", ".bin")


def load_causal(text: str | Path, *, revision: str | None = None) -> Autoregressive | CausalLM:
    """The causal model that `text` names, in eval mode, on the CPU.

    A folder, a built-in model or a hub name, of ours or of any causal model that `transformers` reads; a GGUF file; a
    llama2.c file, with its tokenizer beside it; or smollm2. Options may follow behind commas (`naming`).
    """
    name = parse_name(text)
    path = Path(name.name).expanduser()
    if name.name == SMOLLM2 and not path.is_dir():
        path = smollm2_file()
    if path.suffix == ".bin":
        return load_llama2c(path, name)
    if path.suffix == ".gguf" or (path.is_file() and path.suffix not in CHECKPOINT_FILES):
        return _adapted(load_gguf(path, name), name, path.name)
    folder = find_model(name.name, revision=revision)
    if is_public(folder):
        return _public(folder, name)
    config = read_config(folder)
    if str(config.get("model_type")).startswith("edlm-"):
        name.require_plain()
        return Autoregressive.from_pretrained(folder)
    if is_masked_model(config):
        raise UserError(f"{name.name} is a masked model, which sees what it should predict; it can be the denoiser")
    return _adapted(load_folder("AutoModelForCausalLM", folder, name), name, folder.name)


def _public(path: Path, name: ModelName) -> Autoregressive:
    name.require_plain()
    model = load_public(path)
    if not isinstance(model, Autoregressive):
        raise UserError(
            f"{name.name} holds a model of type {model.model_type!r}, expected {Autoregressive.model_type!r}"
        )
    return model


def _adapted(loaded: Loaded, name: ModelName, file: str) -> CausalLM:
    start_id = start_symbol(loaded.tokenizer, loaded.num_rows, name.name)
    inner, unknown = loaded.tokenizer.backend_tokenizer, unknown_tokens(loaded.tokenizer)
    tokenizer = StrictTokenizer(inner, loaded.num_rows, unknown)
    return CausalLM(loaded.network, tokenizer, start_id, name.name, file=file)


def start_symbol(tokenizer: Any, num_rows: int, name: str) -> int:
    """The token that stands before a text, so that its first token can be scored.

    It is what the tokenizer itself puts in front, else the mark between documents of the pretraining text, else the
    declared beginning or end. A chat model's declared beginning is no start of a text: SmolLM2's is the mark before a
    speaker's name, after which plain text is most unlikely.
    """
    front = tokenizer("")["input_ids"][:1]
    if front and front[0] == tokenizer.bos_token_id:
        return int(front[0])
    marks = [tokenizer.get_vocab().get(DOCUMENT_MARK), tokenizer.bos_token_id, tokenizer.eos_token_id]
    found = next((mark for mark in marks if mark is not None and mark < num_rows), None)
    if found is None:
        raise UserError(f"{name} has no token to start a text with; set bos_token in its tokenizer_config.json")
    return int(found)
