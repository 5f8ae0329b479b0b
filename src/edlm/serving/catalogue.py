"""What a server offers: models and energies by name, all loaded before the first request."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edlm.compute_config import FULL, ComputeConfig
from edlm.energy import Energy, identity_of
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.generation import Model, require_denoiser, require_tokenizer
from edlm.models.autoregressive import Autoregressive
from edlm.models.load import load_named
from edlm.models.masked_lm import AnyDenoiser
from edlm.tokenization import Tokenizer

ALIAS = re.compile(r"([\w.-]+)=(.+)")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that clients may ask for."""

    id: str
    model: Model
    energies: Mapping[str, Energy]
    fingerprint: str

    @property
    def tokenizer(self) -> Tokenizer:
        return require_tokenizer(self.model)

    @property
    def mask_id(self) -> int:
        return self.model.mask_id

    @property
    def is_causal(self) -> bool:
        return isinstance(self.model, Autoregressive)


Catalogue = Mapping[str, ServedModel]


def load_catalogue(denoiser: str, ar: str, energies: Sequence[str], compute: ComputeConfig = FULL) -> Catalogue:
    """The denoiser with its energies, and the autoregressive model beside it, by the names that clients use."""
    if not denoiser and not ar:
        raise UserError("nothing to serve: name a model with --denoiser or --ar")
    if energies and not denoiser:
        raise UserError("--energy corrects a denoiser; name one with --denoiser, or leave it out")
    served = []
    if denoiser:
        model = require_denoiser(load_named(denoiser, "", compute))
        served.append(serve_model(denoiser, model, load_energies(energies, model)))
    if ar:
        served.append(serve_model(ar, load_named("", ar, compute), {}))
    if len(served) == 2 and served[0].id == served[1].id:
        raise UserError(f"--denoiser and --ar would both be called {served[0].id!r}; rename one folder")
    return {model.id: model for model in served}


def serve_model(name: str, model: Model, energies: Mapping[str, Energy]) -> ServedModel:
    """A loaded model under the name of its folder: clients do not learn where it lies."""
    require_tokenizer(model)
    hashes = identity_of(model, None)["model"]
    folder = Path(name).expanduser()
    return ServedModel(folder.resolve().name if folder.exists() else name, model, energies, f"edlm-{hashes[:16]}")


def load_energies(specs: Sequence[str], denoiser: AnyDenoiser) -> dict[str, Energy]:
    """Energies by name: SPEC is called what it says, NAME=SPEC is called NAME."""
    loaded: dict[str, Energy] = {}
    for spec in specs:
        alias = ALIAS.fullmatch(spec)
        name, spec = (alias[1], alias[2]) if alias else (spec, spec)
        if name in loaded or name == "none":
            raise UserError(f"--energy {name!r}: this name is taken; give it another one with NAME={spec}")
        loaded[name] = load_energy(spec, denoiser)
    return loaded
