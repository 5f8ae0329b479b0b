"""What the page offers: models by name, each loaded when first needed. Nothing else that a page names is loaded."""

from collections.abc import Sequence
from functools import cache
from typing import final

from edlm.compute_config import FULL, ComputeConfig
from edlm.energy import Energy
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.generation import require_denoiser, require_tokenizer
from edlm.models.builtin import builtin_names
from edlm.models.load import load_named
from edlm.models.masked_lm import AnyDenoiser
from edlm.oracle import CausalOracle, check_readable
from edlm.oracle_spec import load_oracle

NONE = "none"


@final
class Shelf:
    """Denoisers, energies and oracles; the built-in ones where none are named."""

    def __init__(
        self, denoisers: Sequence[str] = (), energies: Sequence[str] = (), oracles: Sequence[str] = (),
        compute: ComputeConfig = FULL,
    ) -> None:  # fmt: skip
        self.denoisers = list(dict.fromkeys(denoisers)) or ending("denoiser")
        self.energies = list(dict.fromkeys(energies)) or builtin_energies()
        self.oracles = list(dict.fromkeys(oracles)) or [f"ar:{name}" for name in ending("oracle")]
        self.compute = compute
        self.denoiser, self.energy, self.oracle = cache(self._denoiser), cache(self._energy), cache(self._oracle)

    def _denoiser(self, name: str) -> AnyDenoiser:
        require_offered("denoiser", name, self.denoisers)
        model = require_denoiser(load_named(name, "", self.compute))
        require_tokenizer(model)
        return model

    def _energy(self, spec: str, denoiser: str) -> Energy | None:
        """What corrects a denoiser; refused if it reads other tokens."""
        if spec == NONE:
            return None
        require_offered("energy", spec, self.energies)
        return load_energy(spec, self.denoiser(denoiser))

    def _oracle(self, spec: str, denoiser: str) -> CausalOracle | None:
        """Who judges a denoiser's texts; refused if it cannot read them."""
        if spec == NONE:
            return None
        require_offered("oracle", spec, self.oracles)
        model = self.denoiser(denoiser)
        oracle = load_oracle(spec, device=next(model.parameters()).device)
        check_readable(oracle, require_tokenizer(model))
        return oracle


def require_offered(kind: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise UserError(f"the {kind} {name!r} is not offered; choose one of {', '.join(names) or 'none'}")


def ending(kind: str) -> list[str]:
    """The built-in models of a kind, which is the last part of their name."""
    return [name for name in builtin_names() if name.endswith(f"-{kind}")]


def builtin_energies() -> list[str]:
    causal = [f"{kind}:{name}" for kind in ("ar", "coar") for name in ending("ar")]
    learned = [f"{'step' if name in ending('step-energy') else 'nce'}:{name}" for name in ending("energy")]
    return causal + learned
