"""Models on disk: safetensors and config.json in the Hugging Face layout, tokenizer beside them, never a pickle."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edlm._version import __version__
from edlm.config import from_dict, to_dict
from edlm.errors import UserError
from edlm.hub import fetch
from edlm.models.builtin import builtin_folder, builtin_names
from edlm.tokenization import Tokenizer
from edlm.tokenizer_files import load_tokenizer

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
CHECKPOINT_FILES = (".ckpt", ".pt", ".pth")
"""Endings of files in which other programs keep a model."""


class PretrainedModel(nn.Module, PyTorchModelHubMixin, library_name="edlm"):
    """`save_pretrained`, `from_pretrained` and `push_to_hub` for a model built from one frozen dataclass.

    The mixin alone accepts missing weights and drops unknown config keys; here both are refused.
    """

    model_type: ClassVar[str]
    config_class: ClassVar[type]

    def __init__(self, config: Any, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.folder: Path | None = None
        """Where it was loaded from."""

    def save_pretrained(self, save_directory: str | Path, *, licence: str = "", **options: Any) -> str | None:
        """Write config, weights, tokenizer, and the record and card of the training if it is known.

        `licence` is that of the weights; by default the one in the card of the folder they were loaded from. `options`
        are those of huggingface_hub.
        """
        card = {"name": Path(save_directory).name, "licence": licence}
        return super().save_pretrained(save_directory, **{"model_card_kwargs": card} | options)

    def push_to_hub(self, repo_id: str, *, licence: str = "", **options: Any) -> str:
        """Upload what `save_pretrained` writes; `options` are those of huggingface_hub, such as `private`."""
        card = {"name": repo_id, "licence": licence}
        return super().push_to_hub(repo_id, **{"model_card_kwargs": card} | options)

    def _save_pretrained(self, save_directory: Path) -> None:
        from edlm.training.publish import save_with_record  # only here: training knows models, not they it

        save_with_record(self, save_directory)

    def generate_model_card(self, *, name: str, licence: str = "") -> ModelCard:
        from edlm.training.publish import make_card

        return ModelCard(make_card(self, name, licence))

    def save_folder(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write config, tokenizer and the given weights of this model."""
        header = {"model_type": self.model_type, "edlm_version": __version__}
        text = json.dumps(header | to_dict(self.config), indent=2) + "\n"
        (folder / CONFIG).write_text(text, encoding="utf-8")
        tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        if self.tokenizer is not None:
            self.tokenizer.save(folder)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, *, revision: str | None = None) -> Self:  # type: ignore[override]
        """Load from a folder or, by name, from the hub. The model is in eval mode, float32, on the CPU."""
        folder = find_folder(pretrained_model_name_or_path, revision=revision)
        config = read_config(folder)
        model_type = config.pop("model_type", None)
        config.pop("edlm_version", None)
        if model_type != cls.model_type:
            raise UserError(f"{folder} holds a model of type {model_type!r}, expected {cls.model_type!r}")
        tokenizer = load_tokenizer(str(folder)) if (folder / TOKENIZER).exists() else None
        model = cls(from_dict(cls.config_class, config, where=str(folder / CONFIG)), tokenizer)
        model._check_tokenizer(folder)
        load_weights(model, folder / WEIGHTS)
        model.folder = folder
        return model.eval()

    def _check_tokenizer(self, folder: Path) -> None:
        vocab_size = self.config.transformer.vocab_size
        if self.tokenizer is not None and self.tokenizer.vocab_size != vocab_size:
            raise UserError(
                f"{folder}: the tokenizer has {self.tokenizer.vocab_size} tokens but the model {vocab_size}; "
                "put the tokenizer the model was trained with beside its weights"
            )


def find_folder(name: str | Path, *, revision: str | None = None, patterns: Sequence[str] = HUB_FILES) -> Path:
    """The folder of a model: `name` itself, a training run's model, a built-in one, or a download from the hub.

    Of a checkpoint file it is the folder that the file is in.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_run(path)
    if (builtin := builtin_folder(str(name))) is not None:
        return builtin
    if path.suffix in CHECKPOINT_FILES:
        if not path.is_file():
            raise UserError(f"there is no checkpoint file {name}; check the name")
        return path.parent
    can_be_on_hub = HUB_NAME.fullmatch(str(name)) and not path.exists()
    if "/" in str(name) and not can_be_on_hub:
        raise UserError(f"no model folder at {name}; expected a folder with {CONFIG} and {WEIGHTS}")
    known = "" if "/" in str(name) else f"; built-in are {', '.join(builtin_names())}"
    if not can_be_on_hub:
        raise UserError(f"no model called {name}: there is no such folder here{known}")
    try:
        return fetch(str(name), patterns, revision=revision)
    except UserError as error:
        raise UserError(f"no model called {name}: there is no such folder here, and {error}{known}") from error


def _in_run(path: Path) -> Path:
    """A training run keeps its finished model in `model`, and until then has checkpoints; the newest one serves."""
    if (path / CONFIG).exists():
        return path
    checkpoints = sorted(path.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    candidates = [path / "model", *reversed(checkpoints)]
    return next((folder for folder in candidates if (folder / CONFIG).exists()), path)


def fingerprint(model: nn.Module) -> str:
    """A hash of all weights: two models with the same one are the same model, wherever they are stored."""
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a model folder."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder} has no {CONFIG}: it is not a model folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); copy the model again") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    if not path.is_file():
        raise UserError(f"{path} is missing; copy the model again")
    try:
        return load_file(path)
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); copy the model again") from error


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill `model` from a safetensors file that must hold exactly its weights, in their shapes."""
    stored, wanted = read_weights(path), model.state_dict()
    missing, unknown = sorted(wanted.keys() - stored.keys()), sorted(stored.keys() - wanted.keys())
    if missing:
        raise UserError(f"{path} lacks {len(missing)} weights of this model, {missing[0]} first; wrong or damaged file")
    if unknown:
        raise UserError(f"{path} has {len(unknown)} weights this model lacks, {unknown[0]} first; wrong file or config")
    for name, tensor in stored.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)} in the file, {tuple(wanted[name].shape)} in the model"
            raise UserError(f"{path}: {name} is {shapes}; config and weights do not belong together")
    model.load_state_dict(stored)
