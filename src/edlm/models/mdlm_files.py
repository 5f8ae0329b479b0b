"""Public checkpoints as files: MDLM's Hugging Face folder, and Lightning's of MDLM, SEDD and the causal model."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.mdlm import FREQUENCIES, SIZES, PublicModel, measure, to_model
from edlm.models.pickled import lookup, read_checkpoint, require_tensors
from edlm.models.pretrained import WEIGHTS, find_folder, read_config, read_weights
from edlm.tokenization import Tokenizer
from edlm.tokenizer_files import GPT2, holds_tokenizer, load_tokenizer

MODEL_TYPE = "mdlm"
GPT2_TOKENS = 50_257
MASK_INSIDE = ("bert-base-uncased", "text8")
"""Tokenizers of the public code whose mask is one of their own tokens instead of one more."""


def find_model(name: str | Path, *, revision: str | None = None) -> Path:
    """The checkpoint file of that name, or the folder of the model of that name."""
    folder, file = find_folder(name, revision=revision), Path(name).expanduser()
    return file if file.is_file() else folder


def is_public(path: Path) -> bool:
    """Whether a checkpoint file, or a folder of MDLM's Hugging Face form, and not a folder of ours."""
    return path.is_file() or read_config(path).get("model_type") == MODEL_TYPE


def load_public(path: Path) -> Denoiser | Autoregressive:
    """The model of a public checkpoint, with the tokenizer beside it, or GPT-2's if that can be had, or none."""
    public = read_public(path)
    try:
        return to_model(public, find_tokenizer(path, public))
    except NoTokenizerError:
        return to_model(public)


def read_public(path: Path, *, raw_weights: bool = False, length: int | None = None) -> PublicModel:
    """What is in a folder or a checkpoint file. `length` is for a file that does not say how much its model reads.

    A checkpoint file has two sets of weights; the moving average is taken, as public code does, unless told otherwise.
    """
    if not path.is_dir():
        return _from_checkpoint(path, raw_weights, length)
    if raw_weights or length is not None:
        flag = "--raw-weights" if raw_weights else "--length"
        raise UserError(f"{flag} is for a checkpoint file, but {path} is a folder; leave it out")
    return _from_folder(path)


def _from_folder(folder: Path) -> PublicModel:
    config = read_config(folder)
    if config.get("model_type") != MODEL_TYPE:
        raise UserError(f"{folder} holds a model of type {config.get('model_type')!r}, expected {MODEL_TYPE!r}")
    missing = [key for key in ("vocab_size", "hidden_dim", "n_blocks", "n_heads", "model_length") if key not in config]
    if missing:
        raise UserError(f"{folder}: config.json lacks {missing[0]}; copy the model again")
    return PublicModel(
        where=str(folder),
        kind="mdlm",
        weights=_backbone(read_weights(folder / WEIGHTS), folder),
        stated={key: value for key, value in config.items() if key in SIZES},
        length=config["model_length"],
        time_conditioning=_flag(folder, config.get("time_conditioning", False)),
        dropout=_dropout(folder, config.get("dropout", 0.0)),
    )


def _from_checkpoint(path: Path, raw_weights: bool, length: int | None) -> PublicModel:
    content = read_checkpoint(path)
    weights = _backbone(require_tensors(content.get("state_dict"), f"{path}: state_dict"), path)
    average = None if raw_weights else lookup(content, "ema", "shadow_params")
    if average is not None:
        weights = _averaged(weights, average, path)
    stated = {key: lookup(content, "hyper_parameters", "config", "model", key) for key in SIZES}
    public = PublicModel(
        where=str(path),
        kind=_kind(content, weights, path),
        weights=weights,
        stated={key: value for key, value in stated.items() if value is not None},
        length=_length(content, length, path),
        dropout=_dropout(path, lookup(content, "hyper_parameters", "config", "model", "dropout") or 0.0),
        averaged=average is not None,
    )
    return replace(public, time_conditioning=_time_conditioning(content, public))


def _length(content: Any, given: int | None, path: Path) -> Any:
    stated = lookup(content, "hyper_parameters", "config", "model", "length")
    if stated is None and given is None:
        raise UserError(f"{path} does not say how many tokens its model reads; give it with --length")
    if stated is not None and given is not None and stated != given:
        raise UserError(f"{path} says that its model reads {stated} tokens, got --length {given}; leave it out")
    return given if stated is None else stated


def _backbone(weights: dict[Any, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights of the network itself, without their prefix."""
    found = {str(k).removeprefix("backbone."): v for k, v in weights.items() if str(k).startswith("backbone.")}
    if not found:
        raise UserError(f"{path} has no weights called backbone.*; it is no checkpoint of the public MDLM code")
    return found


def _averaged(weights: dict[str, Tensor], average: Any, path: Path) -> dict[str, Tensor]:
    """The weights with the moving average in their place: a list in their order, which leaves tables that are not
    learned out and may go on with what is not the network's."""
    learned = [name for name in weights if name != FREQUENCIES]
    shadows = require_tensors(dict(enumerate(average)) if isinstance(average, list) else None, f"{path}: ema")
    pairs = list(zip(learned, shadows.values(), strict=False))
    if len(pairs) < len(learned) or any(weights[name].shape != shadow.shape for name, shadow in pairs):
        raise UserError(f"{path}: its moving average does not fit its weights; take the others with --raw-weights")
    return weights | dict(pairs)


def _kind(content: Any, weights: dict[str, Tensor], path: Path) -> Literal["mdlm", "sedd", "ar"]:
    """What was learned. The causal network has no time code; what is not stated is the public code's default."""
    vocabulary = lookup(content, "hyper_parameters", "config", "data", "tokenizer_name_or_path")
    if vocabulary in MASK_INSIDE:
        remedy = "only vocabularies with the mask behind the last token, such as GPT-2's, can be converted"
        raise UserError(
            f"{path} was trained with the tokenizer {vocabulary}, whose mask is one of its tokens; {remedy}"
        )
    if not any(name.startswith("sigma_map.") for name in weights):
        return "ar"
    stated = lookup(content, "hyper_parameters", "config", "parameterization")
    if stated not in (None, "subs", "sedd"):
        remedy = "only subs (MDLM) and sedd give one distribution over the real tokens"
        raise UserError(f"{path} has the parameterization {stated!r}; {remedy}")
    return "sedd" if stated == "sedd" else "mdlm"


def _time_conditioning(content: Any, public: PublicModel) -> bool:
    """Whether the noise level enters; by default for SEDD, whose public code cannot do without, and not for MDLM."""
    if public.kind == "ar":
        return False
    stated = lookup(content, "hyper_parameters", "config", "time_conditioning")
    flag = public.kind == "sedd" if stated is None else _flag(Path(public.where), stated)
    noise = lookup(content, "hyper_parameters", "config", "noise", "type")
    if flag and noise not in (None, "loglinear"):
        raise UserError(f"{public.where} is conditioned on the levels of {noise!r} noise; only loglinear is supported")
    if flag and lookup(content, "hyper_parameters", "config", "training", "change_of_variables"):
        raise UserError(f"{public.where} is conditioned on another variable than the noise level (change_of_variables)")
    return flag


def _flag(path: Path, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{path}: time_conditioning must be true or false, got {value!r}")
    return value


def _dropout(path: Path, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise UserError(f"{path}: dropout must be a number in [0, 1), got {value!r}")
    return float(value)


class NoTokenizerError(UserError):
    """No tokenizer was named, none lies beside the checkpoint, and GPT-2's does not fit or cannot be had."""


def find_tokenizer(path: Path, public: PublicModel, name: str = "") -> Tokenizer:
    """The tokenizer that is named, else the one beside the checkpoint, else GPT-2's; refused if it does not fit."""
    num_tokens = measure(public).rows - 1
    folder = path if path.is_dir() else path.parent
    if name or holds_tokenizer(folder):
        tokenizer = load_tokenizer(name or str(folder))
        if tokenizer.vocab_size != num_tokens:
            counts = f"has {tokenizer.vocab_size} tokens but the model {num_tokens}"
            raise UserError(f"the tokenizer {name or folder} {counts}; name the one it was trained with")
        return tokenizer
    if num_tokens != GPT2_TOKENS:
        raise NoTokenizerError(f"{path} has no tokenizer beside it for its {num_tokens} tokens")
    try:
        return load_tokenizer(GPT2)
    except UserError as error:
        raise NoTokenizerError(
            f"{path} has no tokenizer beside it, and GPT-2's could not be had from the hub"
        ) from error
