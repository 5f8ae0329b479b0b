"""What is known of a text before it is drawn: a prompt, or a text with holes."""

import re
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from edlm.errors import UserError

HOLE = re.compile(r"\[MASK(?::(\d+))?\]")


def prompt_tokens(encode: Callable[[str], np.ndarray], prompt: str, length: int, mask_id: int) -> Tensor:
    """The prompt's tokens, then masks up to `length`: (L,)."""
    tokens = encode(prompt)
    if len(tokens) >= length:
        raise UserError(f"the prompt has {len(tokens)} tokens, but a sequence only {length}; shorten the prompt")
    fixed = torch.full((length,), mask_id)
    fixed[: len(tokens)] = torch.as_tensor(tokens.astype(np.int64))
    return fixed


def infill_tokens(encode: Callable[[str], np.ndarray], text: str, max_length: int, mask_id: int) -> Tensor:
    """The tokens of `text`, in which [MASK] stands for one unknown token and [MASK:12] for twelve: (L,)."""
    parts: list[np.ndarray] = []
    end = 0
    for hole in HOLE.finditer(text):
        size = int(hole[1] or 1)
        if size < 1:
            raise UserError(f"{hole[0]} stands for no token; the number must be at least 1")
        if size > max_length:
            raise UserError(f"{hole[0]} is longer than the model's {max_length} tokens; use a smaller number")
        parts += [encode(text[end : hole.start()]).astype(np.int64), np.full(size, mask_id)]
        end = hole.end()
    if not parts:
        raise UserError("the infill text has no hole; mark what to fill in with [MASK] or [MASK:12]")
    tokens = np.concatenate([*parts, encode(text[end:]).astype(np.int64)])
    if len(tokens) > max_length:
        raise UserError(f"the infill text has {len(tokens)} tokens, but the model reads {max_length}; shorten it")
    return torch.as_tensor(tokens)
