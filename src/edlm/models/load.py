"""Load a model by folder, file, built-in name or hub name, whichever kind it is, ours or from elsewhere."""

from pathlib import Path
from typing import TypeVar

from edlm.compute_config import FULL, ComputeConfig
from edlm.errors import UserError
from edlm.gguf_files import SMOLLM2
from edlm.models.autoregressive import Autoregressive
from edlm.models.causal_files import FILES, load_causal
from edlm.models.causal_lm import CausalLM
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.models.masked_files import PREFIX, load_masked
from edlm.models.masked_lm import AnyDenoiser, MaskedLM
from edlm.models.mdlm_files import find_model, is_public, load_public
from edlm.models.naming import parse_name
from edlm.models.placement import place
from edlm.models.pretrained import read_config
from edlm.models.transformers_files import is_causal_model, is_masked_model

AnyModel = Denoiser | Autoregressive | EnergyNetwork | MaskedLM | CausalLM

KINDS: dict[str, type[Denoiser] | type[Autoregressive] | type[EnergyNetwork]] = {
    Denoiser.model_type: Denoiser,
    Autoregressive.model_type: Autoregressive,
    EnergyNetwork.model_type: EnergyNetwork,
}
Model = TypeVar("Model", Denoiser, Autoregressive)


def load_model(name: str | Path, *, revision: str | None = None) -> AnyModel:
    """The model in a folder, a file or a hub repository, or a built-in one, in eval mode, on the CPU.

    What it is stands in its config.json; mlm: in front says that it is a masked language model. Ours are float32, and
    so are public MDLM checkpoints, which are converted on the way.
    """
    if str(name).startswith(PREFIX):
        return load_masked(name, revision=revision)
    plain = parse_name(name)
    if plain.name.endswith(FILES) or plain.name == SMOLLM2:
        return load_causal(name, revision=revision)
    path = find_model(plain.name, revision=revision)
    if is_public(path):
        plain.require_plain()
        return load_public(path)
    config = read_config(path)
    kind = config.get("model_type")
    if kind in KINDS:
        plain.require_plain()
        return KINDS[kind].from_pretrained(path)
    if is_masked_model(config):
        return load_masked(name, revision=revision)
    if is_causal_model(config):
        return load_causal(name, revision=revision)
    remedy = f"known types are {', '.join(KINDS)}, mdlm, and the masked and causal models of transformers"
    raise UserError(f"{path} holds a model of type {kind!r}; {remedy}; is it a masked one, write {PREFIX}{name}")


def load_as(kind: type[Model], name: str | Path) -> Model:
    """The model of ours of that name, refused if it is of another kind."""
    model = load_own(name)
    if not isinstance(model, kind):
        raise UserError(f"{name} holds a model of type {model.model_type!r}, expected {kind.model_type!r}")
    return model


def load_own(name: str | Path) -> Denoiser | Autoregressive | EnergyNetwork:
    """A model of ours, for what only ours can do, such as training."""
    model = load_model(name)
    if isinstance(model, MaskedLM | CausalLM):
        raise UserError(f"{name} is a model from elsewhere; only a model of edlm will do here")
    return model


def load_named(denoiser: str, ar: str, compute: ComputeConfig = FULL) -> AnyDenoiser | Autoregressive:
    """The one model that was named, refused if it is of the other kind, where and how it is to compute."""
    model = load_model(denoiser or ar)
    if isinstance(model, EnergyNetwork | CausalLM) or isinstance(model, Autoregressive) != bool(ar):
        remedy = f"--denoiser takes {Denoiser.model_type} or a masked model, --ar {Autoregressive.model_type}"
        raise UserError(f"{denoiser or ar} holds a model of type {model.model_type}; {remedy}")
    return place(model, compute, own_precision=names_precision(denoiser or ar))


def names_precision(name: str | Path) -> bool:
    """Whether a name says in which precision its model is to compute."""
    return bool(parse_name(str(name).removeprefix(PREFIX)).precision)
