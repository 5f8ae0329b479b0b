"""Our models in lm-evaluation-harness. Importing this registers them there under the name edlm.

    loglikelihood            log p(continuation | context): exact for a causal model, else the certified lower bound
    loglikelihood_rolling    the same of a whole text, in windows if it does not fit the model
    generate_until           the text drawn after the prompt, up to the first stop string

A bound ranks continuations by how likely they are at least, and averages over random masks: two that are close may
change places with another seed. Continuations of one context share their masks, so that they can be compared; different
contexts have masks of their own, so that a mean over questions averages over masks too, and its standard error holds.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from edlm.api import as_energy, as_model
from edlm.config import with_options
from edlm.energy import Energy
from edlm.errors import UserError
from edlm.generation import Model, generate, require_tokenizer
from edlm.greedy import is_greedy
from edlm.harness_config import HarnessConfig
from edlm.models.placement import choose_device
from edlm.text_score import Pair, key_of, normalise_pair, score_ids, score_of
from edlm.tokenization import TextError

MOST_TOKENS = 256
"""Tokens that are drawn where a task does not say how many at most."""
logger = logging.getLogger(__name__)


@register_model("edlm")
class HarnessModel(LM):
    """A denoiser, perhaps with an energy, or an autoregressive model, named or loaded. `options` change the config.

    `device` None leaves a loaded model where it is.
    """

    def __init__(
        self, model: str | Path | Model, *, energy: str | Energy | None = None, device: str | None = "cpu",
        config: HarnessConfig = HarnessConfig(), progress: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config = with_options(config, options)
        self.model = as_model(model) if device is None else as_model(model).to(choose_device(device))
        self.energy = as_energy(energy, self.model)
        self.tokenizer = require_tokenizer(self.model)
        self.score = score_of(self.model, self.config.likelihood, self.energy)
        self.effort = self.config.effort(self.model.length)
        self.progress = progress

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log p of each continuation after its context, and whether it is what greedy decoding would write."""
        pairs = [self.encode(*request.args) for request in requests]
        values = self.log_likelihoods(pairs, [key_of(given) for given, _ in pairs])
        overlap = self.effort.overlap or 0
        return [(value, is_greedy(self.model, pair, overlap)) for value, pair in zip(values, pairs, strict=True)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """log p of each whole text."""
        pairs = [self.encode("", request.args[0]) for request in requests]
        return self.log_likelihoods(pairs, [key_of(text) for _, text in pairs])

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """What is drawn after each prompt. Request i draws from the stream of numbers of sequence i."""
        numbered = tqdm(enumerate(requests), total=len(requests), disable=not self.progress, desc="drawing")
        return [self.write(number, *request.args) for number, request in numbered]

    def log_likelihoods(self, pairs: Sequence[Pair], keys: Sequence[int]) -> list[float]:
        values = score_ids(self.model, self.score, pairs, self.effort, keys=keys, progress=self.progress)
        errors = [error for _, error in values]
        if errors and any(errors):
            logger.info("standard errors of %d bounds: mean %.3f nats", len(errors), sum(errors) / len(errors))
        return [-nats for nats, _ in values]

    def encode(self, context: str, continuation: str) -> Pair:
        """Ids of both parts, tokenised together and then parted; a space between them counts to the second."""
        if self.config.normalise:
            context, continuation = normalise_pair(context, continuation)
        front = context.rstrip()
        whole, given = self.ids(context + continuation), self.ids(front)
        if len(whole) == len(given):
            raise UserError(f"a task asks for the likelihood of {continuation!r}, in which the tokenizer finds nothing")
        return whole[: len(given)], whole[len(given) :]

    def write(self, number: int, prompt: str, wishes: Mapping[str, Any]) -> str:
        """The text after the prompt, up to the first of the task's stop strings."""
        prompt = normalise_pair(prompt, "")[0] if self.config.normalise else prompt
        known = len(self.ids(prompt))
        length = known + int(wishes.get("max_gen_toks") or MOST_TOKENS)
        config = replace(self.config.sampling, length=length, first=number)
        (sample,) = generate(self.model, 1, config, energy=self.energy, prompt=prompt)
        return cut_at(self.tokenizer.decode(before_end(sample.tokens[known:], self.tokenizer.eos_id)), wishes)

    def ids(self, text: str) -> Any:
        try:
            return self.tokenizer.encode(text)
        except TextError as error:
            remedy = "set normalise to map text to a-z and space, or use a model with another tokenizer"
            raise TextError(error.character, error.position, remedy, where="a task's text") from error


def before_end(tokens: list[int], eos_id: int | None) -> list[int]:
    """The tokens before the one that ends a document, if there is one."""
    return tokens[: tokens.index(eos_id)] if eos_id in tokens else tokens


def cut_at(text: str, wishes: Mapping[str, Any]) -> str:
    """The text up to the first of the stop strings that a task names."""
    until = wishes.get("until") or []
    stops = [text.find(stop) for stop in ([until] if isinstance(until, str) else until) if stop]
    return text[: min((at for at in stops if at >= 0), default=len(text))]
