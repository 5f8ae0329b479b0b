"""Networks and tokenizers that `transformers` reads, from a folder or a GGUF file.

Weights come from safetensors or GGUF only: nothing is unpickled. No code of a model is run unless that is asked for by
name. What is missing or not a number is refused, never made up.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edlm.errors import UserError
from edlm.extras import require_extra
from edlm.gguf_files import require_gguf
from edlm.models.naming import TRUST, ModelName
from edlm.models.pretrained import read_config


def is_causal_model(config: dict[str, Any]) -> bool:
    """Whether a config.json is that of a causal language model."""
    return any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in config.get("architectures") or [])


def is_masked_model(config: dict[str, Any]) -> bool:
    """Whether a config.json is that of a masked language model, or of a masked diffusion model of another project."""
    classes = config.get("architectures") or []
    has_mask = isinstance(config.get("mask_token_id"), int) and bool(config.get("auto_map"))
    return has_mask or any(str(name).endswith("ForMaskedLM") for name in classes)


@dataclass(frozen=True)
class Loaded:
    """What came out of a folder or file."""

    network: Any
    tokenizer: Any
    """The tokenizer of `transformers`, with a `tokenizers.Tokenizer` behind it."""

    @property
    def num_rows(self) -> int:
        """Rows of the embedding: often more than there are tokens, rounded up for speed."""
        return int(self.network.get_input_embeddings().weight.shape[0])


def load_folder(kind: str, folder: Path, name: ModelName) -> Loaded:
    """The network in a folder, by the class of `transformers` called `kind`, such as AutoModelForCausalLM."""
    require_extra("eval", "transformers")
    if not [*folder.glob("*.safetensors")]:
        raise UserError(f"{name.name}: {folder} has no .safetensors file, and no other kind of weights is read")
    _refuse_own_code(folder, name)
    return _load(kind, folder, name, {"use_safetensors": True}, {})


def load_gguf(file: Path, name: ModelName) -> Loaded:
    """The causal network in a GGUF file, its weights taken out of their quantisation."""
    require_gguf(file, name.name)
    return _load("AutoModelForCausalLM", file.parent, name, {}, {"gguf_file": file.name})


def _refuse_own_code(folder: Path, name: ModelName) -> None:
    """A model that is code as well is refused unless its code is trusted by name."""
    from transformers import CONFIG_MAPPING

    config = read_config(folder)
    if config.get("auto_map") and config.get("model_type") not in CONFIG_MAPPING and not name.trust_remote_code:
        raise UserError(
            f"{name.name} comes with Python code of its own, which is not run; "
            f"if you have read it and trust it, write {name.name},{TRUST}"
        )


def _load(kind: str, folder: Path, name: ModelName, weights: dict[str, Any], both: dict[str, Any]) -> Loaded:
    import transformers

    options = {"trust_remote_code": name.trust_remote_code, "local_files_only": True, **both}
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
            network, report = getattr(transformers, kind).from_pretrained(
                folder, dtype=name.dtype, output_loading_info=True, **options, **weights
            )
    except Exception as error:  # transformers and its readers raise every kind for what they cannot read
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        wanted = {"AutoModelForCausalLM": "causal", "AutoModelForMaskedLM": "masked"}.get(kind, "readable")
        raise UserError(f"{name.name}: cannot load {folder} ({reason}); name a {wanted} language model") from error
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"{name.name}: {folder} lacks {len(missing)} weights, {missing[0]} first; wrong file")
    require_finite(network, name.name)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise UserError(f"{name.name}: {folder} has no tokenizer.json; save its tokenizer as a fast one")
    return Loaded(network.eval(), tokenizer)


def require_finite(network: nn.Module, name: str) -> None:
    """Refuse weights that are not numbers before anything is computed with them."""
    for key, weight in network.named_parameters():
        if not torch.isfinite(weight).all():
            raise UserError(f"{name}: the weight {key} is not a finite number everywhere; fetch the model again")


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings of transformers while a model is loaded; errors are exceptions."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logger.setLevel(level)
