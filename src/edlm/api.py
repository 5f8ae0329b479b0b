"""The Python interface: load a model, sample from it, score texts with it. Importing it loads no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from edlm.compute_config import ComputeConfig
from edlm.config import with_options
from edlm.errors import UserError
from edlm.sample_config import SampleConfig

if TYPE_CHECKING:
    from edlm.energy import Energy
    from edlm.generation import Model, Sample
    from edlm.likelihood_config import LikelihoodConfig
    from edlm.models.energy_network import EnergyNetwork
    from edlm.models.load import AnyModel
    from edlm.text_score import TextScore


class SampleOptions(TypedDict, total=False):
    """The fields of `SampleConfig`, as keywords."""

    steps: int
    first_hitting: bool
    order: str
    candidates: int
    completions: int
    smc: int
    lookahead: float
    ess: float
    budget: int
    window: float
    temperature: float
    weight_temperature: float
    length: int | None
    overlap: int | None
    seed: int
    batch_size: int
    first: int


class ScoreOptions(TypedDict, total=False):
    """The fields of `LikelihoodConfig`, as keywords."""

    protocol: Literal["certified", "paper"]
    steps: int | None
    order: str
    candidates: int | None
    completions: int
    smc: int
    lookahead: float
    ess: float
    window: float
    inner: int
    partition_samples: int
    trajectories: int
    seed: int


def load(
    name: str | Path, *, revision: str | None = None, device: Literal["auto", "cpu", "cuda"] = "cpu",
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "float32", compile: bool = False,
) -> "AnyModel":  # fmt: skip
    """The model called `name`: a folder, a training run, a built-in model, a file or a hub repository, in this order.

    It is in eval mode, with its tokenizer as `model.tokenizer`. `revision` is of a hub repository; `device`,
    `precision` and `compile` are those of `ComputeConfig`. An energy that is named later follows its denoiser in these.
    Built-in are text8-nano-denoiser and its like; `edlm info` lists them. Checkpoints in MDLM's public forms become
    models of ours. Masked and causal models of `transformers` are found in the same way, the one as a denoiser, the
    other as what energies are made of; `mlm:` in front of a name says that it is a masked one. GGUF and llama2.c files
    are causal.
    """
    from edlm.models.load import load_model, names_precision
    from edlm.models.placement import place

    compute = ComputeConfig(device, precision, compile)
    return place(load_model(name, revision=revision), compute, own_precision=names_precision(name))


def sample(
    model: "str | Path | Model", *, energy: "str | Energy | EnergyNetwork | None" = None, num: int = 1,
    prompt: str = "", infill: str = "", config: SampleConfig | None = None, **options: Unpack[SampleOptions],
) -> "list[Sample]":  # fmt: skip
    """`num` texts from a denoiser, with or without an energy, or from an autoregressive model, named or loaded.

    Each is a `Sample`: `text`, `tokens`, and what it cost in `denoiser_evaluations` and `energy_evaluations`. `prompt`
    is what every text begins with, `infill` a text with holes such as [MASK:12]. All fields of `SampleConfig` are
    keywords: `steps`, `candidates`, `window`, `temperature`, `length`, `seed` and others; `config` is where they start
    from. The same seed gives the same texts, whatever `batch_size` is.

    An energy is named as on the command line, 'ar:NAME', 'coar:NAME', 'nce:NAME', 'step:NAME' or a sum; or it is an
    object that can be called like one. It works on the denoiser's device.
    """
    from edlm.generation import generate

    settings = with_options(SampleConfig() if config is None else config, options)
    generator = as_model(model)
    correction = as_energy(energy, generator)
    return list(generate(generator, num, settings, energy=correction, prompt=prompt, infill=infill))


def score(
    model: "str | Path | Model", texts: str | Sequence[str], *, given: str | Sequence[str] = "",
    energy: "str | Energy | EnergyNetwork | None" = None, num_draws: int = 64, overlap: int | None = None,
    normalise: bool = False, config: "LikelihoodConfig | None" = None, **options: Unpack[ScoreOptions],
) -> "list[TextScore]":  # fmt: skip
    """How likely each text is: exact for an autoregressive model, a bound for a denoiser with or without an energy.

    Each is a `TextScore`: `nats` is -log p(text | given) or an upper bound on it in expectation, with its
    `standard_error` over `num_draws` random masks; `quantity` says which; `log_likelihood` is its negative. `given` is
    a prefix that every text follows, or one for each. A text that does not fit the model is refused unless `overlap`
    says how many tokens the windows it is cut into share. `normalise` maps text to a-z and space first.

    The bound is of the sampler that draws texts of this many tokens, with the `steps`, `candidates` and `window` that
    are named. All fields of `LikelihoodConfig` are keywords; `config` is where they start from.
    """
    from edlm.likelihood_config import LikelihoodConfig
    from edlm.score_config import Effort
    from edlm.text_score import score_texts

    settings = with_options(LikelihoodConfig() if config is None else config, options)
    scorer = as_model(model)
    return score_texts(
        scorer, [texts] if isinstance(texts, str) else list(texts), settings, Effort(num_draws, overlap),
        energy=as_energy(energy, scorer), given=given, normalise=normalise,
    )  # fmt: skip


def as_model(model: "str | Path | Model") -> "Model":
    """A model that writes text, loaded if it was named."""
    from edlm.models.causal_lm import CausalLM
    from edlm.models.energy_network import EnergyNetwork

    loaded = load(model) if isinstance(model, str | Path) else model
    if isinstance(loaded, EnergyNetwork):
        raise UserError(
            "an energy writes no text by itself; name a denoiser, and give this with energy='nce:NAME' or 'step:NAME'"
        )
    if isinstance(loaded, CausalLM):
        raise UserError("a causal model from elsewhere is an energy or an oracle here: give it with energy='ar:NAME'")
    return loaded


def as_energy(energy: "str | Energy | EnergyNetwork | None", model: "Model") -> "Energy | None":
    """What corrects the model, loaded if it was named."""
    from edlm.energy import learned_energy
    from edlm.energy_spec import load_energy
    from edlm.generation import require_denoiser
    from edlm.models.autoregressive import Autoregressive
    from edlm.models.energy_network import EnergyNetwork

    if energy is None:
        return None
    denoiser = require_denoiser(model)
    if isinstance(energy, str):
        return load_energy(energy, denoiser)
    if isinstance(energy, Autoregressive):
        choice = "AutoregressiveEnergy(model) or CarryOverEnergy(model), both in edlm.energy"
        raise UserError(f"an autoregressive model makes two kinds of energy; say which: {choice}")
    return learned_energy(energy) if isinstance(energy, EnergyNetwork) else energy
