"""Load a model by folder, file, built-in name or hub name, whichever kind it is."""

from pathlib import Path
from typing import TypeVar

import torch

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.models.mdlm_files import is_public, load_public
from edlm.models.pretrained import find_folder, read_config

KINDS: dict[str, type[Denoiser] | type[Autoregressive] | type[EnergyNetwork]] = {
    Denoiser.model_type: Denoiser,
    Autoregressive.model_type: Autoregressive,
    EnergyNetwork.model_type: EnergyNetwork,
}
Model = TypeVar("Model", Denoiser, Autoregressive)


def load_model(name: str | Path, *, revision: str | None = None) -> Denoiser | Autoregressive | EnergyNetwork:
    """The model in a folder, a built-in one, or one in a hub repository, in eval mode, float32, on the CPU.

    Public MDLM folders and checkpoint files are converted on the way.
    """
    path = find_model(name, revision=revision)
    if is_public(path):
        return load_public(path)
    kind = read_config(path).get("model_type")
    if kind not in KINDS:
        raise UserError(f"{path} holds a model of type {kind!r}; known types are {', '.join(KINDS)}, and mdlm")
    return KINDS[kind].from_pretrained(path)


def load_as(kind: type[Model], name: str | Path) -> Model:
    """The model of that name, refused if it is of another kind."""
    path = find_model(name)
    if not is_public(path):
        return kind.from_pretrained(path)
    model = load_public(path)
    if not isinstance(model, kind):
        raise UserError(f"{name} holds a model of type {model.model_type!r}, expected {kind.model_type!r}")
    return model


def find_model(name: str | Path, *, revision: str | None = None) -> Path:
    """The checkpoint file of that name, or the folder of the model of that name."""
    folder, file = find_folder(name, revision=revision), Path(name).expanduser()
    return file if file.is_file() else folder


def load_named(denoiser: str, ar: str, device: str = "auto") -> Denoiser | Autoregressive:
    """The one model that was named, refused if it is of the other kind, on the device."""
    model = load_model(denoiser or ar)
    if not isinstance(model, Denoiser if denoiser else Autoregressive):
        remedy = f"--denoiser takes the type {Denoiser.model_type}, --ar {Autoregressive.model_type}"
        raise UserError(f"{denoiser or ar} holds a model of type {model.model_type}; {remedy}")
    return model.to(choose_device(device))


def choose_device(device: str) -> str:
    """cuda or cpu; auto takes a GPU if there is one, and cuda without one is refused."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no GPU; install a CUDA build or choose cpu")
    return "cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu"
