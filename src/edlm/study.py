"""A grid of samplers, and the samples of each: drawn once, kept on disk, continued after an interruption.

Sample i depends on the setting, the seed and i alone, so a study may be stopped anywhere and continued: the samples are
those of a study that never stopped.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from edlm.durable import LineStore
from edlm.energy import Energy, identity_of, judges_steps
from edlm.errors import UserError
from edlm.generation import Model, generate
from edlm.models.autoregressive import Autoregressive
from edlm.oracle import Oracle, score_samples
from edlm.sample_config import SampleConfig
from edlm.tokenization import Tokenizer


@dataclass(frozen=True)
class Method:
    """A model that draws samples, with what corrects it."""

    label: str
    model: Model
    energy: Energy | None = None
    spec: str = ""
    """The energy as it was named."""

    @property
    def is_causal(self) -> bool:
        return isinstance(self.model, Autoregressive)

    def identity(self) -> dict[str, Any]:
        """What the samples depend on: hashes of all weights, so that paths may change and weights may not."""
        return identity_of(self.model, self.energy)


@dataclass(frozen=True)
class Setting:
    """One cell of the grid: a method and how it draws."""

    method: Method
    config: SampleConfig

    @property
    def curve(self) -> str:
        """The method with everything but its steps: what one line of a plot is named after."""
        if self.method.energy is None:
            return self.method.label
        return f"{self.name}, k={self.config.candidates}, w={self.config.window:g}"

    @property
    def name(self) -> str:
        """The method and its kind of importance sampling."""
        R = self.config.completions if self.method.energy is not None else 0
        return f"{self.method.label} reveal-first" + (f" R={R}" if R > 1 else "") if R else self.method.label

    @property
    def steps(self) -> int | None:
        """Denoising steps, or None for a causal model, which takes one step per token."""
        return None if self.method.is_causal else self.config.steps

    @property
    def label(self) -> str:
        return self.curve if self.steps is None else f"{self.curve}, T={self.steps}"

    @property
    def cost(self) -> float:
        """Roughly the network passes of one sample, to foretell how long the rest will take."""
        if self.steps is None:
            return self.config.length or self.method.model.length
        scored = self.config.candidates * max(1, self.config.completions)
        passes = scored * self.method.energy.num_passes if self.method.energy else 0
        return self.steps * (1 + self.config.window * passes)

    def identity(self, method: dict[str, Any] | None = None) -> dict[str, Any]:
        """What a sample depends on beside its index; the rest (batch size, first index) does not change it."""
        settings = asdict(self.config)
        for name in ("batch_size", "first"):
            settings.pop(name)
        unused = ["steps"] if self.steps is None else []
        unused += ["candidates", "completions", "window", "weight_temperature"] if self.method.energy is None else []
        return (method or self.method.identity()) | {k: v for k, v in settings.items() if k not in unused}


def make_grid(
    methods: Sequence[Method], steps: Sequence[int], candidates: Sequence[int], windows: Sequence[float],
    base: SampleConfig, completions: Sequence[int] = (0,),
) -> list[Setting]:  # fmt: skip
    """All settings: every method with every number of steps; candidates and window only where there is an energy.

    A step energy reads no completions, so it is there once whatever they are.
    """
    grid = []
    for method in methods:
        some_steps = [base.steps] if method.is_causal else steps
        unused = [(0, base.candidates, base.window)]
        kinds = (0,) if method.energy is not None and judges_steps(method.energy) else completions
        choices = product(kinds, candidates, windows) if method.energy is not None else unused
        for (R, k, w), T in product(choices, some_steps):
            grid.append(Setting(method, replace(base, steps=T, candidates=k, completions=R, window=w)))
    return grid


def file_name(setting: Setting) -> str:
    """A file name that a person can read, such as EDLM-AR-k2-w0.2-T16.jsonl."""
    return f"{readable(setting.label)}.jsonl"


def readable(label: str) -> str:
    """A label in letters that any file system takes."""
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", label.replace("=", "").replace(":", "-").replace("*", "")).strip("-")


def draw_samples(
    setting: Setting, num: int, store: LineStore, *, tick: Callable[[int], object] = lambda num: None
) -> list[dict[str, Any]]:
    """The first `num` samples of a setting: those in the store, and the missing ones, which are added batch by batch.

    Each carries the seconds it took: the batch's time shared out among its samples.
    """
    tick(min(num, len(store.rows)))
    while len(store.rows) < num:
        size = min(setting.config.batch_size, num - len(store.rows))
        config = replace(setting.config, first=len(store.rows), batch_size=size)
        start = time.perf_counter()
        samples = list(generate(setting.method.model, size, config, energy=setting.method.energy))
        seconds = (time.perf_counter() - start) / size
        store.append([asdict(sample) | {"seconds": seconds, "batch": size} for sample in samples])
        tick(size)
    return store.rows[:num]


def score_stored(
    oracle: Oracle, samples: Sequence[dict[str, Any]], tokenizer: Tokenizer, store: LineStore, *, batch_size: int,
    tick: Callable[[int], object] = lambda num: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Nats, tokens and characters of each sample under an oracle: those in the store, and the missing ones."""
    tick(min(len(samples), len(store.rows)))
    while len(store.rows) < len(samples):
        batch = samples[len(store.rows) : len(store.rows) + batch_size]
        texts, tokens = [s["text"] for s in batch], [s["tokens"] for s in batch]
        scores = score_samples(oracle, texts, tokens, tokenizer)
        columns = zip(scores.nats.tolist(), scores.num_tokens.tolist(), scores.num_characters.tolist(), strict=True)
        store.append([dict(zip(("nats", "tokens", "characters"), row, strict=True)) for row in columns])
        tick(len(batch))
    return store.rows[: len(samples)]


def open_stores(folder: Path, grid: Sequence[Setting]) -> list[LineStore]:
    """The sample file of every setting; all are opened first, so that one that does not fit is refused at once."""
    identities = {id(setting.method): setting.method.identity() for setting in grid}
    stores = [LineStore(folder / f"samples-{file_name(s)}", s.identity(identities[id(s.method)])) for s in grid]
    for store in stores:
        if [row.get("index") for row in store.rows] != list(range(len(store.rows))):
            raise UserError(
                f"{store.path} does not hold samples 0, 1, 2 and so on; remove it, or run one study at a time"
            )
    return stores


def open_scores(folder: Path, oracle: Oracle, name: str, samples: dict[str, Any]) -> LineStore:
    """The file of an oracle's scores of some samples. Its settings are the oracle's weights and what was scored."""
    judge = re.sub(r"[^A-Za-z0-9.+-]+", "-", oracle.name).strip("-")
    settings = {"oracle": oracle.fingerprint, "start": oracle.describe()["start"], "samples": samples}
    return LineStore(folder / f"scores-{judge}-{name}", settings)
