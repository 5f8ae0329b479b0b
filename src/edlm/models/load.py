"""Load a model of ours by folder, built-in name or hub name, whichever kind it is."""

from pathlib import Path

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.models.pretrained import find_folder, read_config

KINDS: dict[str, type[Denoiser] | type[Autoregressive] | type[EnergyNetwork]] = {
    Denoiser.model_type: Denoiser,
    Autoregressive.model_type: Autoregressive,
    EnergyNetwork.model_type: EnergyNetwork,
}


def load_model(name: str | Path, *, revision: str | None = None) -> Denoiser | Autoregressive | EnergyNetwork:
    """The model in a folder, a built-in one, or one in a hub repository, in eval mode, float32, on the CPU."""
    folder = find_folder(name, revision=revision)
    kind = read_config(folder).get("model_type")
    if kind not in KINDS:
        raise UserError(f"{folder} holds a model of type {kind!r}; known types are {', '.join(KINDS)}")
    return KINDS[kind].from_pretrained(folder)
