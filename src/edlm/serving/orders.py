"""From a request to sequences to draw: everything a client can get wrong is refused here, before anything is queued."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from edlm.energy import judges_steps
from edlm.errors import UserError
from edlm.serving.catalogue import Catalogue, ServedModel
from edlm.serving.config import ServeConfig
from edlm.serving.problems import RequestError, UnknownModelError
from edlm.serving.protocol import CompletionRequest
from edlm.tokenization import CharacterTokenizer, TextError, normalise_text8

MAX_STOPS = 4
NONE = "none"
"""The name of no energy."""


@dataclass(frozen=True)
class Settings:
    """What all sequences of one batch have in common, besides the model."""

    temperature: float
    energy: str | None = None
    candidates: int = 1
    window: float = 1.0
    completions: int = 0


@dataclass(frozen=True, eq=False)
class Task:
    """One sequence to draw."""

    model: ServedModel
    index: int
    """Which of the request's choices it is."""
    fixed: Tensor
    """(L,) what is known, masks elsewhere."""
    start: int
    """The completion begins here,"""
    stop: int
    """and ends here."""
    seed: int
    steps: int
    settings: Settings
    stops: Sequence[str] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Tasks with the same key can share a batch."""
        return (self.model.id, self.settings, self.start if self.model.is_causal else len(self.fixed))


@dataclass(frozen=True)
class Order:
    """What a request comes down to."""

    model: ServedModel
    tasks: Sequence[Task]
    prompts: Sequence[str]
    """The prompt of each task, as the model reads it."""
    seed: int
    num_prompt_tokens: int
    """Of all prompts and suffixes, each counted once."""


def make_order(request: CompletionRequest, catalogue: Catalogue, config: ServeConfig) -> Order:
    """The sequences that a request asks for, or a `RequestError`.

    Choice i is drawn from the stream of numbers (seed, i), as by `edlm sample --seed SEED --first i`.
    """
    model = find_model(request.model, catalogue)
    settings, steps = choose_settings(request, model, config)
    check_counts(request, config)
    normalise = config.normalise if request.normalise is None else request.normalise
    prompts = [readable(prompt, model, normalise) for prompt in request.prompts]
    suffix = readable(request.suffix, model, normalise)
    seed = secrets.randbits(32) if request.seed is None else request.seed
    encoded = [encode(prompt, "prompt", model) for prompt in prompts]
    after = encode(suffix, "suffix", model)
    tasks: list[Task] = []
    for ids in encoded:
        fixed = lay_out(ids, after, request.max_tokens, model, config)
        for _ in range(request.n):
            stop = len(ids) + request.max_tokens
            tasks.append(Task(model, len(tasks), fixed, len(ids), stop, seed, steps, settings, request.stops))
    by_task = [prompt for prompt in prompts for _ in range(request.n)]
    return Order(model, tasks, by_task, seed, sum(len(ids) + len(after) for ids in encoded))


def find_model(name: str, catalogue: Catalogue) -> ServedModel:
    if name not in catalogue:
        raise UnknownModelError(f"no model {name[:100]!r} here; choose {' or '.join(catalogue)}", param="model")
    return catalogue[name]


def choose_settings(request: CompletionRequest, model: ServedModel, config: ServeConfig) -> tuple[Settings, int]:
    """Settings and number of steps. Without an energy, candidates and window mean nothing, and are not part of them."""
    if model.is_causal:
        for name in ("steps", "energy", "candidates", "window", "completions", "suffix"):
            if getattr(request, name) not in (None, "", NONE):
                raise RequestError(f"{name} needs a denoiser, and {model.id} writes left to right", param=name)
        return Settings(request.temperature), request.max_tokens
    steps = config.steps if request.steps is None else request.steps
    at_most("steps", steps, config.max_steps)
    candidates = 2 if request.candidates is None else request.candidates
    completions = request.completions or 0
    scored = "candidates times completions" if completions else ""
    at_most("candidates", candidates * max(1, completions), config.max_candidates, scored)
    if request.energy in (None, NONE):
        return Settings(request.temperature), steps
    if request.energy not in model.energies:
        known = ", ".join([NONE, *model.energies])
        raise RequestError(f"no energy {request.energy[:100]!r} here; choose from {known}", param="energy")
    if completions and judges_steps(model.energies[request.energy]):
        raise RequestError(f"{request.energy} judges single steps and reads no completions", param="completions")
    window = 1.0 if request.window is None else request.window
    return Settings(request.temperature, request.energy, candidates, window, completions), steps


def check_counts(request: CompletionRequest, config: ServeConfig) -> None:
    if not request.prompts:
        raise RequestError("prompt: the list is empty; send a text, or a list of texts", param="prompt")
    at_most("n", len(request.prompts) * request.n, config.max_n, "prompts times n")
    at_most("stop", len(request.stops), MAX_STOPS, "the number of stop sequences")
    if "" in request.stops:
        raise RequestError("stop: an empty text would stop before anything; leave it out", param="stop")


def at_most(name: str, value: int, most: int, what: str = "") -> None:
    if value > most:
        raise RequestError(f"{what or name} must be at most {most}, got {value}", param=name)


def readable(text: str, model: ServedModel, normalise: bool) -> str:
    """The text, normalised if that was asked for; a space at either end, which separates words, is kept."""
    if not normalise or not text:
        return text
    if not isinstance(model.tokenizer, CharacterTokenizer):
        raise RequestError(f"normalise is for models of a-z and space, and {model.id} reads more", param="normalise")
    return normalise_text8(f"x{text}x")[1:-1]


def encode(text: str, name: str, model: ServedModel) -> np.ndarray:
    try:
        return model.tokenizer.encode(text).astype(np.int64)
    except TextError as error:
        remedy = error.remedy
        if isinstance(model.tokenizer, CharacterTokenizer):
            remedy = 'keep to a-z and space, or send "normalise": true'
        problem = TextError(error.character, error.position, remedy, where=f"the {name}")
        raise RequestError(str(problem), param=name) from error
    except UserError as error:
        raise RequestError(f"{name}: {error}", param=name) from error


def lay_out(prompt: np.ndarray, suffix: np.ndarray, num_tokens: int, model: ServedModel, config: ServeConfig) -> Tensor:
    """Prompt, masks, suffix, and for a denoiser masks up to the next round length: (L,)."""
    longest = model.model.length
    at_most("max_tokens", num_tokens, longest if config.max_tokens is None else config.max_tokens)
    given = len(prompt) + len(suffix)
    at_most("prompt", given, longest if config.max_prompt is None else config.max_prompt, "tokens of prompt and suffix")
    length = given + num_tokens
    if length > longest:
        parts = f"prompt and suffix have {given} tokens and max_tokens is {num_tokens}"
        raise RequestError(f"{parts}, but {model.id} reads {longest} in all; shorten one", param="max_tokens")
    if not model.is_causal:
        length = min(longest, -(-length // config.round_to) * config.round_to)
    fixed = torch.full((length,), model.mask_id)
    fixed[: len(prompt)] = torch.as_tensor(prompt)
    fixed[len(prompt) + num_tokens :][: len(suffix)] = torch.as_tensor(suffix)
    return fixed
