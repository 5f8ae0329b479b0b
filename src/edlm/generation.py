"""Texts from a model: tokenizer in front, the right sampler behind, any number of sequences in batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from edlm import causal_sampler, sampler
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.randomness import make_streams
from edlm.sample_config import SampleConfig
from edlm.sampler import Info, State
from edlm.schedule import uniform_times
from edlm.tokenization import Tokenizer

Model = Denoiser | Autoregressive


@dataclass(frozen=True)
class Sample:
    """One finished sequence."""

    index: int
    tokens: list[int]
    text: str
    num_evaluations: float
    """Passes through the network, per sequence of its batch."""


def generate(
    model: Model, num: int, config: SampleConfig, *, prompt: str = "",
    watch: Callable[[State, Info], None] = lambda state, info: None,
) -> Iterator[Sample]:  # fmt: skip
    """Draw `num` sequences, all beginning with `prompt`. `watch` sees every step of every batch."""
    if num < 1:
        raise UserError(f"num must be at least 1, got {num}")
    tokenizer = require_tokenizer(model)
    fixed = fixed_tokens(model, tokenizer, prompt, config.length)
    indices = range(config.first, config.first + num)
    for start in range(0, num, config.batch_size):
        batch = indices[start : start + config.batch_size]
        state = draw_batch(model, config, batch, fixed, watch)
        for index, tokens in zip(batch, state.x.tolist(), strict=True):
            yield Sample(index, tokens, tokenizer.decode(tokens), state.num_evaluations / len(batch))


def draw_batch(
    model: Model, config: SampleConfig, indices: range, fixed: Tensor, watch: Callable[[State, Info], None]
) -> State:
    """The last state of one batch's trajectory."""
    device = next(model.parameters()).device
    mask_id = model.config.transformer.mask_id
    state = sampler.init(len(fixed), make_streams(config.seed, indices), mask_id, fixed=fixed, device=device)
    if isinstance(model, Autoregressive):
        steps = causal_sampler.trajectory(state, model, temperature=config.temperature)
    else:
        steps = sampler.trajectory(state, model, uniform_times(config.steps), temperature=config.temperature)
    for state, info in steps:
        watch(state, info)
    return state


def fixed_tokens(model: Model, tokenizer: Tokenizer, prompt: str, length: int | None) -> Tensor:
    """The prompt's tokens, then masks up to `length`: (L,)."""
    transformer = model.config.transformer
    length = transformer.length if length is None else length
    if not 1 <= length <= transformer.length:
        raise UserError(f"length must be between 1 and the model's {transformer.length}, got {length}")
    tokens = tokenizer.encode(prompt)
    if len(tokens) >= length:
        raise UserError(f"the prompt has {len(tokens)} tokens, but a sequence only {length}; shorten the prompt")
    fixed = torch.full((length,), transformer.mask_id)
    fixed[: len(tokens)] = torch.as_tensor(tokens, dtype=torch.long)
    return fixed


def require_tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise UserError("the model folder has no tokenizer.json, so its tokens cannot be turned into text")
    return model.tokenizer
