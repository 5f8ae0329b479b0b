"""Tiny models for tests: a denoiser that is a table, and small real networks."""

import numpy as np
import torch

from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
from edlm.models.denoiser import Denoiser, DenoiserConfig
from edlm.models.transformer import TransformerConfig
from edlm.schedule import LogLinear
from edlm.tokenization import CharacterTokenizer


class TableDenoiser:
    """The oracle's table behind the library's protocol."""

    uses_time = False

    def __init__(self, table, vocab_size, schedule=None):
        self.vocab_size, self.mask_id = vocab_size, vocab_size
        self.schedule = schedule or LogLinear()
        self.log_probs = torch.tensor(np.stack([table[state] for state in sorted(table)])).log()  # (states, L, V)
        self.calls = 0

    def __call__(self, xt, t=None, where=None):
        self.calls += 1
        where = xt == self.mask_id if where is None else where
        digits = (self.vocab_size + 1) ** torch.arange(xt.shape[1]).flip(0)
        return self.log_probs[(xt * digits).sum(-1)][where]

    def eval(self):
        return self

    def requires_grad_(self, _):
        return self


class TableAutoregressive:
    """The oracle's causal table behind the library's protocol."""

    def __init__(self, table, vocab_size):
        self.table, self.vocab_size, self.start_id = table, vocab_size, vocab_size

    def __call__(self, x0):
        rows = [[self.table[tuple(row[:i])][token] for i, token in enumerate(row)] for row in x0.tolist()]
        return torch.tensor(rows, dtype=torch.float64).log()


class TableEnergy:
    """An arbitrary energy: a number for every pair of completion and state."""

    num_passes = 1

    def __init__(self, table):
        self.table = table

    def __call__(self, x0, xt, t, log_proposal):
        rows = zip(x0.tolist(), xt.tolist(), strict=True)
        return torch.tensor([[self.table[tuple(c), tuple(state)] for c in candidates] for candidates, state in rows])


def tiny_config(**changes):
    values = {"vocab_size": 27, "length": 16, "num_layers": 2, "num_heads": 2, "width": 32, "dropout": 0.0}
    return TransformerConfig(**(values | changes))


def tiny_denoiser(seed=0, **changes):
    torch.manual_seed(seed)
    model = Denoiser(DenoiserConfig(tiny_config(**changes)), CharacterTokenizer()).eval()
    return sharpen(model)


def tiny_autoregressive(seed=0, **changes):
    torch.manual_seed(seed)
    return sharpen(Autoregressive(AutoregressiveConfig(tiny_config(**changes)), CharacterTokenizer()).eval())


def sharpen(model):
    """Larger weights, so that an untrained network's output depends visibly on its input."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(8)
    return model
