"""edlm convert"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from edlm.errors import UserError

if TYPE_CHECKING:
    from edlm.models.autoregressive import Autoregressive
    from edlm.models.denoiser import Denoiser
    from edlm.models.mdlm import PublicModel
    from edlm.tokenization import Tokenizer

NONE = "none"
KINDS = {"mdlm": "MDLM", "sedd": "SEDD", "ar": "autoregressive"}


def convert(
    source: str,
    out: Path,
    /,
    *,
    tokenizer: str = "",
    raw_weights: bool = False,
    length: int | None = None,
    json: bool = False,
) -> None:
    """Write a public MDLM, SEDD or autoregressive checkpoint as a model of ours: config, safetensors and tokenizer.

    Such a checkpoint also serves directly wherever a model is named; a converted one is smaller, has its tokenizer
    with it and holds no pickle. Nothing in a checkpoint file is run.

    Parameters
    ----------
    source
        Folder or hub name of an MDLM model (model_type mdlm, safetensors), or a Lightning checkpoint file (.ckpt).
    out
        Folder to write; it must not hold anything yet.
    tokenizer
        Folder, tokenizer.json or hub name of the tokenizer the model was trained with; none writes the model without
        one. By default the one beside the checkpoint, else GPT-2's from the hub.
    raw_weights
        Take the weights being trained from a checkpoint file instead of their moving average.
    length
        Tokens that the model reads, if a checkpoint file does not say.
    json
        Print what was written as JSON.
    """
    require_empty(out)
    from edlm.commands.output import print_json, print_table
    from edlm.models.mdlm import to_model
    from edlm.models.mdlm_files import read_public
    from edlm.models.pretrained import find_folder

    path = Path(source).expanduser()
    path = path if path.is_file() else find_folder(source)
    public = read_public(path, raw_weights=raw_weights, length=length)
    model = to_model(public, choose_tokenizer(path, public, tokenizer))
    write(model, out)
    facts = describe(model, public, out)
    print_json(facts) if json else print_table(facts | {"parameters": f"{facts['parameters']:,}"})


def require_empty(out: Path) -> None:
    """Refuse to replace anything."""
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; choose another folder")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder")


def choose_tokenizer(path: Path, public: "PublicModel", name: str) -> "Tokenizer | None":
    """The tokenizer that was named or is found; that there is none has to be said."""
    from edlm.models.mdlm_files import NoTokenizerError, find_tokenizer

    if name == NONE:
        return None
    try:
        return find_tokenizer(path, public, name)
    except NoTokenizerError as error:
        remedy = f"name it with --tokenizer FOLDER, or convert without one with --tokenizer {NONE}"
        raise UserError(f"{error}; {remedy}") from error


def write(model: "Denoiser | Autoregressive", out: Path) -> None:
    """The whole folder, or nothing."""
    from edlm.models.pretrained import WEIGHTS
    from edlm.training.checkpoint import atomic_folder

    with atomic_folder(out) as folder:
        model.save_folder(folder, model.state_dict())
        (folder / WEIGHTS).chmod(0o644)  # safetensors makes files for their owner alone


def describe(model: "Denoiser | Autoregressive", public: "PublicModel", out: Path) -> dict[str, Any]:
    """What was converted into what."""
    tokenizer = model.tokenizer
    return {
        "out": str(out),
        "type": model.model_type,
        "from": KINDS[public.kind],
        "weights": "moving average" if public.averaged else "as stored",
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": model.vocab_size,
        "length": model.length,
        "time conditioning": "noise level" if public.time_conditioning else "none",
        "tokenizer": f"{tokenizer.vocab_size} tokens, per {tokenizer.unit}" if tokenizer else NONE,
    }
