"""Texts drawn step by step for a page that can stop at any of them, as the films that it shows."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from edlm import sampler
from edlm.demo.shelf import NONE, Shelf
from edlm.energy import judges_steps
from edlm.energy_spec import energy_label
from edlm.errors import UserError
from edlm.generation import count_steps, evaluations, known_tokens, require_tokenizer, trajectory
from edlm.metrics import Estimate, estimate, perplexity, token_entropy
from edlm.models.masked_lm import AnyDenoiser
from edlm.oracle import score_samples
from edlm.randomness import make_streams
from edlm.sample_config import SampleConfig
from edlm.show.film import Film, Reel
from edlm.template import HOLE
from edlm.tokenization import TextError
from edlm.trace import Tracer


@dataclass(frozen=True)
class Order:
    """What to draw, as it was chosen on the page."""

    denoiser: str
    energy: str
    text: str
    """A prompt, or a text with holes."""
    config: SampleConfig
    num: int = 1

    @property
    def has_holes(self) -> bool:
        return HOLE.search(self.text) is not None

    @property
    def settings(self) -> SampleConfig:
        """How it is drawn: a text with holes says by itself how long it is."""
        return replace(self.config, length=None) if self.has_holes else self.config

    @property
    def known_text(self) -> dict[str, str]:
        return {"prompt": "", "infill": self.text} if self.has_holes else {"prompt": self.text, "infill": ""}

    def describe(self, config: SampleConfig) -> dict[str, Any]:
        """What the text is, for its film; as `edlm sample` writes it."""
        about = {"model": self.denoiser, "kind": "denoiser", "energy": None if self.energy == NONE else self.energy}
        return about | self.known_text | asdict(config)

    @property
    def label(self) -> str:
        return "MDLM" if self.energy == NONE else energy_label(self.energy)


@dataclass(frozen=True)
class Measured:
    """How good and how dear the texts of a drawing are."""

    perplexity: Estimate | None
    """Under the oracle, if there is one."""
    entropy: Estimate
    """Of each text's tokens, in nats."""
    seconds: float
    """Of all drawing, without showing it."""
    denoiser_passes: int
    energy_passes: int


class Drawing:
    """One order being carried out. Nothing is computed but when the next step is asked for.

    Setting `is_stopped`, from any thread, makes its next step the last.
    """

    def __init__(self, order: Order, shelf: Shelf) -> None:
        self.order, self.model = order, shelf.denoiser(order.denoiser)
        self.energy = shelf.energy(order.energy, order.denoiser)
        self.tokenizer = require_tokenizer(self.model)
        self.config, self.seconds, self.is_stopped = order.settings, 0.0, False
        if self.energy is not None and judges_steps(self.energy):
            self.config = replace(self.config, completions=0)  # it weighs revealed tokens, and reads nothing else
        fixed = known(order, self.model)
        device = next(self.model.parameters()).device
        streams = make_streams(self.config.seed, range(order.num))
        self.state = sampler.init(len(fixed), streams, self.model.mask_id, fixed=fixed, device=device)
        self._tracer = Tracer(self.tokenizer, self.model.mask_id)
        num_steps = count_steps(self.model, self.config, fixed)
        self._reel = Reel(self._tracer.header(order.describe(self.config), fixed, num_steps))

    @property
    def film(self) -> Film:
        """How the first text comes about."""
        return self._reel.film(0)

    def steps(self) -> Iterator[Film]:
        """The film after each step, until it is finished or stopped."""
        walk = trajectory(self.model, self.state, self.config, self.energy)
        while not self.is_stopped and (step := self._timed(walk)) is not None:
            self.state, info = step
            self._reel.add(self._tracer.line(range(self.order.num), self.state, info))
            yield self.film

    def _timed(self, walk: Iterator[Any]) -> Any:
        start = time.perf_counter()
        step = next(walk, None)
        self.seconds += time.perf_counter() - start
        return step

    def texts(self) -> list[str]:
        return [self.tokenizer.decode(tokens) for tokens in self.state.x.tolist()]

    def measure(self, shelf: Shelf, oracle: str) -> Measured:
        """What the finished texts are worth."""
        tokens, judge = self.state.x.tolist(), shelf.oracle(oracle, self.order.denoiser)
        judged = None
        if judge is not None:
            scores = score_samples(judge, self.texts(), tokens, self.tokenizer)
            judged = perplexity(scores.nats, scores.num_tokens, scores.num_characters).perplexity
        passes = [evaluations(self.state, row) for row in range(self.order.num)]
        entropy = estimate([token_entropy(row) for row in tokens])
        return Measured(judged, entropy, self.seconds, *(sum(each) for each in zip(*passes, strict=True)))


def known(order: Order, model: AnyDenoiser) -> Tensor:
    """The tokens that are known from the start (L,); texts longer than the model are not drawn here."""
    try:
        fixed = known_tokens(model, require_tokenizer(model), order.settings, **order.known_text)
    except TextError as error:
        raise TextError(error.character, error.position, "write it in the model's vocabulary") from error
    if len(fixed) > model.length:
        raise UserError(f"length must be at most the model's {model.length} tokens, got {len(fixed)}")
    return fixed
