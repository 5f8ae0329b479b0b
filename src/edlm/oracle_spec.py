"""An oracle from its name on the command line: ar:NAME, with NAME as in an energy's; or smollm2."""

import torch

from edlm.errors import UserError
from edlm.gguf_files import SMOLLM2
from edlm.models.causal_files import load_causal
from edlm.oracle import CausalOracle

GRAMMAR = "ar:NAME, hf:NAME, gguf:FILE or smollm2"
KINDS = ("ar", "hf", "gguf")


def load_oracle(spec: str, *, device: torch.device | str = "cpu", batch_size: int = 16) -> CausalOracle:
    """The oracle that `spec` names. ar:, hf: and gguf: mean the same: what stands behind them says what it is."""
    kind, _, name = spec.partition(":")
    if spec != SMOLLM2 and not (kind in KINDS and name):
        raise UserError(f"unknown oracle {spec!r}; write {GRAMMAR}")
    return CausalOracle(load_causal(name or spec).to(device), spec, batch_size=batch_size)
