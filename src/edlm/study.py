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
from typing import Any, cast

from torch.nn import Module

from edlm.durable import LineStore
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, Energy, identity_of, judges_steps
from edlm.errors import UserError
from edlm.generation import Model, generate
from edlm.models.autoregressive import Autoregressive
from edlm.models.pretrained import fingerprint
from edlm.oracle import Oracle, score_samples
from edlm.sample_config import SampleConfig
from edlm.speculative import Drafts
from edlm.tokenization import Tokenizer

OF_THE_ENERGY = ("candidates", "completions", "smc", "lookahead", "ess", "budget", "window", "weight_temperature")
"""Settings that mean nothing without an energy."""


@dataclass(frozen=True)
class Method:
    """A model that draws samples, with what corrects it."""

    label: str
    model: Model
    energy: Energy | None = None
    spec: str = ""
    """The energy as it was named."""
    drafts: Drafts | None = None
    """What drafts for a causal model; its law is the same without."""

    @property
    def is_causal(self) -> bool:
        return isinstance(self.model, Autoregressive)

    def identity(self) -> dict[str, Any]:
        """What the samples depend on: hashes of all weights, so that paths may change and weights may not."""
        drafter = (
            {}
            if self.drafts is None
            else {"drafter": fingerprint(cast(Module, self.drafts.denoiser)), "g": self.drafts.num}
        )
        return identity_of(self.model, self.energy) | drafter


@dataclass(frozen=True)
class Setting:
    """One cell of the grid: a method and how it draws."""

    method: Method
    config: SampleConfig

    @property
    def curve(self) -> str:
        """The method with everything but its steps: what one line of a plot is named after."""
        if self.method.energy is None:
            return self.name
        return f"{self.name}, k={self.config.candidates}, w={self.config.window:g}"

    @property
    def name(self) -> str:
        """The method, its kind of importance sampling and its order."""
        words, config = [self.method.label], self.config
        if self.method.energy is not None:
            words += ["reveal-first"] if config.completions else []
            words += [f"R={config.completions}"] if config.completions > 1 else []
            words += [f"smc={config.smc}"] if config.smc else []
            words += [f"lookahead={config.lookahead:g}"] if config.lookahead else []
            words += [f"ess={config.ess:g}"] if config.ess else []
            words += [f"budget={config.budget}"] if config.budget else []
        words += ["first-hitting"] if config.first_hitting else []
        words += [config.order] if config.order != "uniform" and not self.method.is_causal else []
        return " ".join(words)

    @property
    def steps(self) -> int | None:
        """Denoising steps, or None for what takes as many as it needs: a causal model, or an order without a grid."""
        has_grid = not (self.config.first_hitting or self.config.order.startswith("entropy"))
        return self.config.steps if has_grid and not self.method.is_causal else None

    @property
    def label(self) -> str:
        return self.curve if self.steps is None else f"{self.curve}, T={self.steps}"

    @property
    def cost(self) -> float:
        """Roughly the network passes of one sample, to foretell how long the rest will take."""
        if self.steps is None:
            return self.config.length or self.method.model.length  # at most, with drafts or an order without a grid
        scored = self.config.candidates * max(1, self.config.completions)
        passes = scored * self.method.energy.num_passes if self.method.energy else 0
        return self.steps * (1 + self.config.window * passes)

    def identity(self, method: dict[str, Any] | None = None) -> dict[str, Any]:
        """What a sample depends on beside its index; the rest (batch size, first index) does not change it."""
        settings = asdict(self.config)
        for name in ("batch_size", "first"):
            settings.pop(name)
        unused = ["steps"] if self.steps is None else []
        unused += ["order"] if self.method.is_causal else []
        unused += OF_THE_ENERGY if self.method.energy is None else ()
        return (method or self.method.identity()) | {k: v for k, v in settings.items() if k not in unused}


def make_grid(
    methods: Sequence[Method], steps: Sequence[int], candidates: Sequence[int], windows: Sequence[float],
    base: SampleConfig, completions: Sequence[int] = (0,), *, smc: Sequence[int] = (0,), ess: Sequence[float] = (0.0,),
    orders: Sequence[str] = ("uniform",), lookahead: Sequence[float] = (0.0,),
) -> list[Setting]:  # fmt: skip
    """All settings: every method with every number of steps; candidates and window only where there is an energy.

    Kinds of importance sampling that exclude each other, or that an energy cannot have, are left out.
    """
    grid, plain = [], replace(base, completions=0, smc=0, lookahead=0.0, ess=0.0, budget=0)
    for method in methods:
        configs = [plain]
        if method.energy is not None:
            configs = [
                replace(base, candidates=k, window=w, budget=base.budget if kind["ess"] else 0, **kind)
                for kind, k, w in product(
                    kinds_of(method.energy, completions, smc, ess, lookahead), candidates, windows
                )
            ]
        if method.is_causal:
            grid += [Setting(method, replace(config, order="uniform")) for config in configs]
            continue
        for order, config, T in product(orders, configs, steps):
            grid.append(Setting(method, replace(config, order=order, steps=T)))
    return list({setting.label: setting for setting in grid}.values())  # an order without a grid has no steps


def kinds_of(
    energy: Energy, completions: Sequence[int], smc: Sequence[int], ess: Sequence[float], lookahead: Sequence[float]
) -> list[dict[str, Any]]:
    """The settings of every kind of importance sampling that there is for an energy.

    A step energy reads no completions, so it is there once whatever they are; only causal energies come in pieces.
    """
    shared = (0,) if judges_steps(energy) else completions
    blocks = smc if isinstance(energy, AutoregressiveEnergy | CarryOverEnergy) else (0,)
    return [
        {"completions": R, "smc": b, "ess": e, "lookahead": ahead}
        for R, b, e in product(shared, blocks, ess)
        for ahead in (lookahead if b else (0.0,))
        if not (b and (R or e))
    ]


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
    method = setting.method
    tick(min(num, len(store.rows)))
    while len(store.rows) < num:
        size = min(setting.config.batch_size, num - len(store.rows))
        config = replace(setting.config, first=len(store.rows), batch_size=size)
        start = time.perf_counter()
        samples = list(generate(method.model, size, config, energy=method.energy, drafts=method.drafts))
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
