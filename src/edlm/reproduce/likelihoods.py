"""What tables 1 and 2 share: which likelihoods are measured, of which model, with which settings."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from edlm.energy_spec import energy_label
from edlm.evaluation import Likelihood
from edlm.evaluator import Evaluator, HeldOut, Work
from edlm.likelihood import num_groups
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.load import load_named
from edlm.reproduce.settings import Likelihoods
from edlm.reproduce.stage import Stage
from edlm.sweep_config import IDEAL
from edlm.zeroshot_report import require_same_tokens

if TYPE_CHECKING:
    from edlm.data import Corpus
    from edlm.generation import Model


@dataclass(frozen=True)
class Measurement:
    """One row: a model, perhaps an energy, and the protocol."""

    method: str
    config: LikelihoodConfig
    energy: str | None = None
    is_causal: bool = False

    @property
    def label(self) -> str:
        if self.energy is None:
            return self.method if self.config.steps is None else f"{self.method}, T={self.config.steps}"
        return f"{self.method}, {'paper' if self.config.protocol == 'paper' else sampler_of(self.config)}"

    @property
    def passes(self) -> float:
        """Roughly the network passes for one block: R clamped completions and about as many fresh ones."""
        config, n = self.config, self.config.partition_samples
        if self.energy is None or (config.protocol == "paper" and self.energy.startswith("coar:")):
            return 1
        if config.protocol == "paper":
            return 2 + n
        if config.candidates:
            n = num_groups(config.inner, config.candidates) * (config.candidates - 1) if config.candidates > 1 else 0
        return 1 + config.window * (config.inner + n)


def sampler_of(config: LikelihoodConfig) -> str:
    return f"T={config.steps}, k={config.candidates or IDEAL}, w={config.window:g}"


def measurements(stage: Stage) -> Iterator[Measurement]:
    """AR exactly, MDLM in continuous time and with T steps, energies by the paper's formula and by certified bounds."""
    settings, cast = stage.settings, stage.cast
    assert isinstance(settings, Likelihoods)
    if not cast.ar:
        stage.require("denoiser")
    common: dict[str, Any] = {"seed": settings.seed, "partition_samples": settings.partition_samples}
    if cast.ar:
        yield Measurement("AR", LikelihoodConfig(**common), is_causal=True)
    if not cast.denoiser:
        return
    yield Measurement("MDLM", LikelihoodConfig(**common))
    for T in settings.steps:  # what the bounds of the corrected samplers are to be compared with
        yield Measurement("MDLM", LikelihoodConfig(steps=T, **common))
    specs = cast.energies(settings.energies)
    for spec in specs:
        yield Measurement(energy_label(spec), LikelihoodConfig(protocol="paper", **common), spec)
    for spec, T, k, w in product(specs, settings.steps, settings.candidates, settings.window):
        config = LikelihoodConfig(steps=T, candidates=k, window=w, inner=settings.inner, **common)
        yield Measurement(energy_label(spec), config, spec)


def work_of(stage: Stage) -> Work:
    settings = stage.settings
    assert not hasattr(settings, "num")
    return Work(max_blocks=settings.max_blocks, batch_size=settings.batch_size)


@dataclass(frozen=True)
class Measured:
    """The models of the experiment, and one way to ask them."""

    stage: Stage
    measuring: Evaluator
    models: "dict[bool, Model]"
    """By whether it is causal."""

    def corpus(self, held_out: HeldOut) -> "Corpus":
        """The text in the denoiser's tokens and blocks, or in the causal model's if that is alone: one for all rows."""
        cast = self.stage.cast
        model = self.models.get(False) or self.models[True]
        return self.measuring.corpus(model, cast.denoiser or cast.ar, held_out)

    def measure(self, row: Measurement, corpus: "Corpus", split: str, where: str = "") -> Likelihood:
        model = self.models[row.is_causal]
        label = f"{row.label}{where}"
        return self.measuring.measure(model, corpus, split, row.config, energy=row.energy, label=label)


def load_models(stage: Stage, measuring: Evaluator) -> Measured:
    """The denoiser and the causal model, as far as they are there."""
    cast = stage.cast
    flags = {True: ("", cast.ar), False: (cast.denoiser, "")}
    models = {causal: load_named(*names, stage.compute) for causal, names in flags.items() if any(names)}
    require_same_tokens(list(models.values()))
    return Measured(stage, measuring, models)


def describe(row: Measurement, result: Likelihood) -> dict[str, Any]:
    """A row of the results: what was measured beside everything that the measurement says of itself."""
    return {"method": row.method, "label": row.label} | asdict(result)
