"""edlm push"""

import re
from pathlib import Path

from edlm.errors import UserError


def push(folder: str, repo: str, /, *, private: bool = False, licence: str = "") -> None:
    """Upload a model to the Hugging Face hub: config, safetensors, tokenizer, recipe without paths, and a model card.

    The card is written from the record of the training. Export the run first (`edlm export`) for a card with measured
    figures and smaller weights.

    Parameters
    ----------
    folder
        Folder of a model: an exported one, a training run, or a built-in name.
    repo
        Where to: OWNER/NAME. It is made if it does not exist.
    private
        Make it a private repository.
    licence
        Licence of the weights, as in the header of a model card; by default the one in the folder's card, if any.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise UserError(f"a repository is named OWNER/NAME, got {repo}")
    require_local(folder)
    require_hub()
    from edlm.models.load import load_own

    model = load_own(folder)
    try:
        print(model.push_to_hub(repo, private=private or None, licence=licence))
    except UserError:
        raise
    except Exception as error:  # the hub's client raises what its HTTP library raises, which differs by version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = "check the name, the token's rights and the network"
        raise UserError(f"{repo} could not be pushed: {reason}; {remedy}") from error


def require_local(folder: str) -> None:
    """Refuse a name that would first have to be fetched."""
    from edlm.models.builtin import builtin_folder, builtin_names

    if not Path(folder).expanduser().exists() and builtin_folder(folder) is None:
        raise UserError(f"there is no folder {folder}; built-in are {', '.join(builtin_names())}")


def require_hub() -> None:
    """Refuse at once what could not be uploaded after the work is done."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise UserError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it")
    if get_token() is None:
        raise UserError("the hub wants a token; log in with `hf auth login`, or set HF_TOKEN")
