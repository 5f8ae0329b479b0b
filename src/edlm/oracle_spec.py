"""An oracle from its name on the command line: ar:DIR, hf:NAME_OR_DIR, gguf:FILE or smollm2."""

import torch

from edlm import causal_lm
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.load import load_as
from edlm.oracle import AutoregressiveOracle, Oracle

GRAMMAR = "ar:DIR, hf:NAME_OR_DIR, gguf:FILE or smollm2"


def load_oracle(spec: str, *, device: torch.device | str = "cpu", batch_size: int = 16) -> Oracle:
    """The oracle that `spec` names: ar:DIR, hf:NAME_OR_DIR, gguf:FILE or smollm2."""
    kind, _, name = spec.partition(":")
    if kind == "ar" and name:
        model = load_as(Autoregressive, name).to(device)
        return AutoregressiveOracle(model, spec, batch_size=batch_size)
    if kind == "hf" and name:
        return causal_lm.from_folder(name, spec, device=device, batch_size=batch_size)
    if kind == "gguf" and name:
        return causal_lm.from_gguf(name, spec, device=device, batch_size=batch_size)
    if spec == "smollm2":
        return causal_lm.from_gguf(causal_lm.smollm2_file(), spec, device=device, batch_size=batch_size)
    raise UserError(f"unknown oracle {spec!r}; write {GRAMMAR}")
