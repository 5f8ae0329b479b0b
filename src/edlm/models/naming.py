"""How a model from elsewhere is asked for: its name, then options behind commas.

gpt2    runs/my-model    SmolLM2.gguf    gpt2-large,bfloat16    mlm:some/model,shifted,trust-remote-code
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from edlm.errors import UserError
from edlm.models.precision import PRECISIONS

SHIFTED, TRUST = "shifted", "trust-remote-code"
OPTIONS = (*PRECISIONS, SHIFTED, TRUST)


@dataclass(frozen=True)
class ModelName:
    """A name and what was asked for along with it."""

    name: str
    """Folder, file, built-in name or hub name."""
    precision: str = ""
    """Of the weights while they are used; empty if the name leaves it open, and float32 then."""
    shifted: bool = False
    """A masked model whose output at position i is about position i + 1."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model. It can do whatever you can do."""

    @property
    def dtype(self) -> torch.dtype:
        return PRECISIONS[self.precision or "float32"]

    def require_plain(self) -> None:
        """Refuse options where a model of ours was named: it needs none."""
        if self != ModelName(self.name):
            raise UserError(f"{self.name} is a model of edlm: options after a comma are for models from elsewhere")


def parse_name(text: str | Path) -> ModelName:
    """Name and options. A folder whose own name has commas is taken as it is."""
    name, *options = [str(text)] if Path(text).exists() else str(text).split(",")
    if unknown := [option for option in options if option not in OPTIONS]:
        raise UserError(f"{text}: unknown option {unknown[0]!r}; after a comma may follow {', '.join(OPTIONS)}")
    precisions = [option for option in options if option in PRECISIONS]
    if len(precisions) > 1:
        raise UserError(f"{text}: one precision, please, not {' and '.join(precisions)}")
    return ModelName(name, "".join(precisions), SHIFTED in options, TRUST in options)
