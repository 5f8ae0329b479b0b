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
        self.vocab_size, self.start_id = vocab_size, vocab_size
        self.log_probs = {}  # length of the prefix -> (number of prefixes, V)
        for prefix in sorted(table):
            self.log_probs.setdefault(len(prefix), []).append(table[prefix])
        self.log_probs = {n: torch.tensor(np.stack(rows)).log() for n, rows in self.log_probs.items()}

    def __call__(self, x0):
        prefix, columns = torch.zeros_like(x0[:, 0]), []
        for i, token in enumerate(x0.T):
            columns.append(self.log_probs[i][prefix, token])
            prefix = prefix * self.vocab_size + token
        return torch.stack(columns, dim=1)


class TableEnergy:
    """An arbitrary energy: a number for every pair of completion and state, of V symbols and the mask."""

    num_passes = 1

    def __init__(self, table, vocab_size):
        self.base = vocab_size + 1
        length = len(next(iter(table))[0])
        self.table = torch.full((self.base**length,) * 2, torch.nan, dtype=torch.float64)
        for (x0, xt), value in table.items():
            self.table[self.code(torch.tensor(x0)), self.code(torch.tensor(xt))] = value

    def code(self, x):
        return (x * self.base ** torch.arange(x.shape[-1]).flip(0)).sum(-1)

    def __call__(self, x0, xt, t, log_proposal):
        return self.table[self.code(x0), self.code(xt).unsqueeze(1)]


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
