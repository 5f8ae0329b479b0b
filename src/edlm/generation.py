"""Texts from a model: tokenizer in front, the right sampler behind, any number of sequences in batches.

Legend: B batch, L positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from edlm import causal_sampler, sampler, speculative
from edlm.correction import make_correction
from edlm.energy import Energy
from edlm.errors import UserError
from edlm.lookahead import look_ahead
from edlm.models.autoregressive import Autoregressive
from edlm.models.masked_lm import AnyDenoiser
from edlm.order import make_order
from edlm.randomness import make_streams
from edlm.sample_config import SampleConfig
from edlm.sampler import Info, State
from edlm.schedule import uniform_times
from edlm.speculative import Drafts
from edlm.template import infill_tokens, prompt_tokens
from edlm.tokenization import Tokenizer

Model = AnyDenoiser | Autoregressive
Watch = Callable[[range, State, Info], None]
"""Called after every step with the indices of the batch's sequences."""


@dataclass(frozen=True)
class Sample:
    """One finished sequence."""

    index: int
    tokens: list[int]
    text: str
    denoiser_evaluations: int
    """Passes through the denoiser (or causal model); with drafts, through the drafter."""
    energy_evaluations: int
    """Passes of its candidates through energy networks; with drafts, through the causal model."""


def generate(
    model: Model, num: int, config: SampleConfig, *, energy: Energy | None = None, drafts: Drafts | None = None,
    prompt: str = "", infill: str = "", watch: Watch = lambda indices, state, info: None,
) -> Iterator[Sample]:  # fmt: skip
    """Draw `num` sequences that begin with `prompt`, or fill the holes of `infill`. `watch` sees every step.

    With `drafts` an autoregressive model keeps what it can of a denoiser's drafts, which does not change its law.
    """
    if num < 1:
        raise UserError(f"num must be at least 1, got {num}")
    if energy is not None:
        require_denoiser(model)
    if drafts is not None:
        require_drafter(drafts.denoiser, model)
    tokenizer = require_tokenizer(model)
    fixed = known_tokens(model, tokenizer, config, prompt, infill)
    indices = range(config.first, config.first + num)
    for start in range(0, num, config.batch_size):
        batch = indices[start : start + config.batch_size]
        state = draw_batch(model, config, batch, fixed, drafts if energy is None else energy, watch)
        for row, (index, tokens) in enumerate(zip(batch, state.x.tolist(), strict=True)):
            yield Sample(index, tokens, tokenizer.decode(tokens), *evaluations(state, row))


def evaluations(state: State, row: int) -> tuple[int, int]:
    assert state.denoiser_evaluations is not None and state.energy_evaluations is not None
    return int(state.denoiser_evaluations[row]), int(state.energy_evaluations[row])


def draw_batch(
    model: Model, config: SampleConfig, indices: range, fixed: Tensor, helper: Energy | Drafts | None, watch: Watch
) -> State:
    """The last state of one batch: one window of the model's length after another, each seeing the end of the last."""
    device = next(model.parameters()).device
    generators = make_streams(config.seed, indices)
    state = sampler.init(len(fixed), generators, model.mask_id, fixed=fixed, device=device)
    for start, stop in windows(len(fixed), model.length, config.overlap):
        x = state.x[:, start:stop]
        part = replace(state, x=x, step=0, start=start, is_fixed=x != model.mask_id)
        for part, info in trajectory(model, part, config, helper):  # noqa: B020
            watch(indices, part, info)
        state = replace(part, x=torch.cat([state.x[:, :start], part.x, state.x[:, stop:]], dim=1), start=0)
    return state


def trajectory(
    model: Model, state: State, config: SampleConfig, helper: Energy | Drafts | None
) -> Iterator[tuple[State, Info]]:
    """The sampler that fits the model and what helps it: an energy a denoiser, drafts an autoregressive model."""
    if isinstance(model, Autoregressive):
        if config.order != "uniform":
            raise UserError(f"order {config.order}: an autoregressive model writes from left to right; leave it out")
        if isinstance(helper, Drafts):
            return speculative.trajectory(state, model, helper, temperature=config.temperature)
        return causal_sampler.trajectory(state, model, temperature=config.temperature)
    importance = None
    if helper is not None:
        assert not isinstance(helper, Drafts)
        importance = make_correction(
            helper, config.candidates, config.window, config.weight_temperature, config.completions,
            smc=config.smc, ess=config.ess, budget=config.budget, ahead=look_ahead(model, config.lookahead),
        )  # fmt: skip
    if config.first_hitting:
        return sampler.first_hitting(state, model, temperature=config.temperature, importance=importance)
    times, order = uniform_times(config.steps), make_order(config.order)
    return sampler.trajectory(state, model, times, temperature=config.temperature, importance=importance, order=order)


def count_steps(model: Model, config: SampleConfig, fixed: Tensor) -> int:
    """How many steps a sequence with these known tokens (L,) takes, or at most takes if that shows only on the way."""
    if isinstance(model, Autoregressive) or config.first_hitting or config.order.startswith("entropy"):
        return int((fixed == model.mask_id).sum())
    return config.steps * len(windows(len(fixed), model.length, config.overlap))


def windows(length: int, model_length: int, overlap: int | None) -> list[tuple[int, int]]:
    """Where the windows of a sequence begin and end; the first one alone if the model can hold the sequence."""
    overlap = model_length // 2 if overlap is None else overlap
    if length > model_length and not 0 <= overlap < model_length:
        raise UserError(f"overlap must be at least 0 and below the model's {model_length} tokens, got {overlap}")
    stops = [min(length, model_length)]
    while stops[-1] < length:
        stops.append(min(length, stops[-1] + model_length - overlap))
    return [(max(0, stop - model_length), stop) for stop in stops]


def known_tokens(model: Model, tokenizer: Tokenizer, config: SampleConfig, prompt: str, infill: str) -> Tensor:
    """The tokens that are fixed from the start, masks elsewhere: (L,)."""
    if not infill:
        return prompt_tokens(tokenizer.encode, prompt, config.length or model.length, model.mask_id)
    if prompt or config.length is not None:
        raise UserError("an infill text says by itself where it begins and ends; leave out prompt and length")
    return infill_tokens(tokenizer.encode, infill, model.length, model.mask_id)


def require_denoiser(model: Model) -> AnyDenoiser:
    """Refuse an energy for a model that has nothing to correct."""
    if isinstance(model, Autoregressive):
        raise UserError("an energy corrects a denoiser; an autoregressive model needs none")
    return model


def require_drafter(drafter: Any, model: Model, name: str = "the drafter") -> AnyDenoiser:
    """Refuse a drafter that could not draft for the model."""
    if not isinstance(model, Autoregressive) or isinstance(drafter, Autoregressive):
        raise UserError("drafts are a denoiser's, for an autoregressive model; name one of each (--draft, --ar)")
    ours, theirs = model.tokenizer, drafter.tokenizer
    same = ours is None or theirs is None or ours.fingerprint == theirs.fingerprint
    if drafter.vocab_size != model.vocab_size or drafter.mask_id != model.start_id or not same:
        raise UserError(f"{name} has other tokens than the autoregressive model; name a denoiser with its tokenizer")
    if drafter.length < model.length:
        raise UserError(
            f"{name} reads {drafter.length} tokens, the autoregressive model {model.length}; use a longer one"
        )
    return drafter


def require_tokenizer(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        remedy = "put the tokenizer it was trained with beside its weights"
        raise UserError(f"the model folder has no tokenizer.json, so its tokens cannot be turned into text; {remedy}")
    return model.tokenizer
