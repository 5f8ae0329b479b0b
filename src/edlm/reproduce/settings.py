"""How much of each experiment is run: in minutes on two cores with the nano models, or as in the paper on GPUs."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from edlm.errors import UserError
from edlm.reproduce.sampler_spec import parse_sampler

Name = Literal["text8-bpc", "zero-shot", "gen-ppl", "time", "ablation", "energy", "samplers"]
Scale = Literal["nano", "paper"]
Equal = Literal["passes", "steps"]
ENERGIES = ("ar", "coar", "nce")


@dataclass(frozen=True)
class Models:
    """The models of a scale by name; an empty name has to be given on the command line."""

    denoiser: str = ""
    ar: str = ""
    energy_model: str = ""
    step_energy_model: str = ""
    oracle: tuple[str, ...] = ()
    data: str = ""
    """Held-out text; empty for what the denoiser was trained with."""


MODELS: dict[str, Models] = {
    "nano": Models(
        denoiser="text8-nano-denoiser",
        ar="text8-nano-ar",
        energy_model="text8-nano-energy",
        step_energy_model="text8-nano-step-energy",
        oracle=("ar:text8-nano-oracle",),
        data="text8",
    ),
    "paper": Models(oracle=("hf:gpt2",)),
}


@dataclass(frozen=True)
class Likelihoods:
    """Tables 1 and 2: held-out text is scored by the certified bound of each sampler and by the paper's formula."""

    max_blocks: int
    """Evenly spaced blocks that are scored; 0 means all."""
    steps: tuple[int, ...]
    """T of the samplers."""
    candidates: tuple[int | None, ...] = (2,)
    """k of the samplers; None is the ideal one."""
    window: tuple[float, ...] = (1.0,)
    """w of the samplers."""
    inner: int = 4
    """R: draws inside the logarithm of the certified bound."""
    partition_samples: int = 16
    """n: draws behind log Z in the paper's formula."""
    seed: int = 0
    batch_size: int = 0
    """Blocks at once; 0 takes what fits."""
    energies: tuple[str, ...] = ENERGIES


@dataclass(frozen=True)
class Samples:
    """Table 3, and the figures of time and of k and w: texts are drawn and judged."""

    num: int
    """Samples of each setting."""
    steps: tuple[int, ...]
    candidates: tuple[int, ...] = (2,)
    window: tuple[float, ...] = (1.0,)
    completions: tuple[int, ...] = (0,)
    """0 is the paper's Algorithm 1, R of at least 1 reveal-first importance sampling."""
    smc: tuple[int, ...] = (0,)
    """Positions of a block of sequential Monte Carlo, for causal energies; 0 is none."""
    lookahead: tuple[float, ...] = (0.0,)
    """With smc: how strongly the denoiser tells the causal model what is coming; 0 draws from the denoiser."""
    seed: int = 0
    batch_size: int = 16
    """Samples drawn at once: matters for the time alone."""
    energies: tuple[str, ...] = ("ar", "nce")


@dataclass(frozen=True)
class Energies:
    """The appendix's figure of energies: true and drawn completions of held-out text at each of several times."""

    max_blocks: int
    times: tuple[float, ...] = tuple(n / 10 for n in range(1, 11))
    """t at which text is masked."""
    negatives: int = 16
    """Completions drawn of each masked text."""
    seed: int = 0
    batch_size: int = 0
    energies: tuple[str, ...] = ("nce", "ar", "coar")


@dataclass(frozen=True)
class Comparison:
    """Beyond the paper: every sampler with as many steps as a number of network passes buys, or with equal steps."""

    num: int
    """Samples of each setting."""
    passes: tuple[int, ...]
    """Passes of a sample through denoiser and energy together."""
    steps: tuple[int, ...]
    """T of the plain denoiser, with which all are compared; with equal steps those of all samplers."""
    max_blocks: int
    """Evenly spaced blocks of held-out text behind the certified bits; 0 means all."""
    equal: Equal = "passes"
    """What all samplers are given alike."""
    samplers: tuple[str, ...] = (
        "mdlm", "mdlm first-hitting", "mdlm order=confidence", "mdlm order=entropy:1", "mdlm order=remask-cap:0.05",
        "ar k=2 w=0.2", "ar k=8", "ar k=8 R=1", "ar k=16 R=1 ess=1.5 b=8", "ar k=8 smc=8", "ar k=16 smc=1",
        "ar k=4 smc=1 ahead=1", "coar k=8", "coar k=8 R=1", "coar k=16 smc=1", "nce k=8", "nce k=8 R=1", "step k=8",
        "causal", "drafts g=2",
    )  # fmt: skip
    inner: int = 4
    """R: draws inside the logarithm of the certified bound."""
    seed: int = 0
    batch_size: int = 16


Settings = Likelihoods | Samples | Energies | Comparison

SCALES: dict[str, dict[str, Settings]] = {
    "text8-bpc": {
        "nano": Likelihoods(max_blocks=256, steps=(64,)),
        "paper": Likelihoods(max_blocks=0, steps=(64, 1024), inner=64),
    },
    "zero-shot": {
        "nano": Likelihoods(max_blocks=48, steps=(64,)),
        "paper": Likelihoods(max_blocks=0, steps=(1024,), inner=64),
    },
    "gen-ppl": {
        "nano": Samples(num=32, steps=(16, 32, 64)),
        "paper": Samples(num=2048, steps=(256, 512, 1024, 2048)),
    },
    "time": {
        "nano": Samples(num=16, steps=(16, 32, 64, 128), window=(0.2, 1.0), batch_size=1, energies=("ar",)),
        "paper": Samples(
            num=2048, steps=(256, 512, 768, 1024), window=(0.2, 0.4, 0.6, 0.8, 1.0), batch_size=1
        ),
    },
    "ablation": {
        "nano": Samples(num=16, steps=(32,), candidates=(2, 4, 8), window=(0.2, 0.6, 1.0), energies=("ar",)),
        "paper": Samples(
            num=2048, steps=(1024,), candidates=(2, 4, 8, 16), window=(0.2, 0.4, 0.6, 0.8, 1.0), energies=("nce",)
        ),
    },
    "energy": {"nano": Energies(max_blocks=32), "paper": Energies(max_blocks=1024)},
    "samplers": {
        "nano": Comparison(num=16, passes=(16, 64), steps=(16, 32, 64, 128, 256), max_blocks=32),
        "paper": Comparison(num=256, passes=(256, 1024), steps=(256, 512, 1024, 2048), max_blocks=256, inner=16),
    },
}  # fmt: skip


def choose_settings(name: str, scale: str, changes: dict[str, Any]) -> Settings:
    """The settings of an experiment, with those that were named on the command line in their place."""
    base = SCALES[name][scale]
    known = [field.name for field in fields(base)]
    for key, value in changes.items():
        if key not in known:
            flags = ", ".join(flag(name) for name in known if name not in ("times", "negatives"))
            raise UserError(f"{flag(key)} means nothing to {name}; it knows {flags}")
        check(key, value)
    if changes.get("equal") == "steps" and "passes" in changes:
        raise UserError("--passes means nothing with --equal steps, where --steps are those of all samplers")
    if isinstance(base, Samples) and None in changes.get("candidates", ()):
        raise UserError(f"--candidates ideal can be scored but not drawn, and {name} draws; name numbers such as 2,8")
    return replace(base, **changes)


def check(key: str, value: Any) -> None:
    """Refuse, before anything is loaded, what could not be run."""
    least = {"num": 1, "max_blocks": 0, "batch_size": 0, "inner": 1, "partition_samples": 1, "seed": 0}
    if key in least and value < least[key]:
        raise UserError(f"{flag(key)} must be at least {least[key]}, got {value}")
    for count in value if key in ("steps", "passes") else ():
        if count < 1:
            raise UserError(f"{flag(key)} must be at least 1, got {count}")
    for spec in value if key == "samplers" else ():
        parse_sampler(spec)
    for count in value if key in ("completions", "smc", "lookahead") else ():
        if count < 0:
            raise UserError(f"{flag(key)} must be at least 0, got {count:g}")
    for window in value if key == "window" else ():
        if not 0 <= window <= 1:
            raise UserError(f"--window must be between 0 and 1, got {window:g}")
    for kind in value if key == "energies" else ():
        if kind not in ENERGIES:
            raise UserError(f"--energies: unknown energy {kind!r}; choose from {', '.join(ENERGIES)}")


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


NAMES: tuple[str, ...] = get_args(Name)
