"""edlm reproduce"""

from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from edlm.commands.generation import numbers
from edlm.commands.output import print_json
from edlm.commands.sample import Compute
from edlm.compute_config import FULL
from edlm.durable import require_folder
from edlm.errors import UserError
from edlm.evaluator import HeldOut
from edlm.extras import require_extra
from edlm.reproduce.sampler_spec import parse_samplers
from edlm.reproduce.settings import MODELS, Comparison, Equal, Name, Samples, Scale, choose_settings
from edlm.sweep_config import parse_candidates

MODULES = {
    "text8-bpc": "text8_bpc", "zero-shot": "zero_shot", "gen-ppl": "gen_ppl", "time": "wall_clock",
    "ablation": "ablation", "energy": "energy_by_time", "samplers": "samplers",
}  # fmt: skip


@dataclass(frozen=True)
class Changes:
    """What differs from the scale's settings."""

    num: int | None = None
    """Samples of each setting."""
    max_blocks: int | None = None
    """Evenly spaced blocks of text that are scored; 0 means all."""
    steps: str = ""
    """Denoising steps T, as a list such as 16,32,64."""
    candidates: str = ""
    """k, as a list such as 2,8; where text is scored also 'ideal'."""
    window: str = ""
    """w, as a list such as 0.2,1."""
    completions: str = ""
    """0 for the paper's Algorithm 1, R of at least 1 for reveal-first importance sampling; a list such as 0,1."""
    smc: str = ""
    """Positions of a block of sequential Monte Carlo for causal energies, 0 for none; a list such as 0,8."""
    lookahead: str = ""
    """With --smc: how strongly the denoiser tells the causal model what is coming, 0 to draw from the denoiser."""
    inner: int | None = None
    """R: draws inside the logarithm of a certified bound."""
    partition_samples: int | None = None
    """n: draws behind log Z in the paper's formula."""
    energies: str = ""
    """Which energies, of ar,coar,nce."""
    passes: str = ""
    """samplers: network passes of a sample, denoiser and energy together, as a list such as 64,256."""
    equal: Equal | None = None
    """samplers: what all are given alike: network passes, as in --passes, or steps, as in --steps."""
    samplers: str = ""
    """samplers: which, as a list such as 'mdlm, ar k=8 R=1, step k=8, causal'."""
    seed: int | None = None
    """Seeds everything that is drawn."""
    batch_size: int | None = None
    """Sequences at once; changes the time only."""

    def given(self) -> dict[str, Any]:
        """Those that were typed, read."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        read = {
            "steps": lambda text: tuple(numbers("--steps", text, int)),
            "candidates": lambda text: tuple(parse_candidates(text)),
            "window": lambda text: tuple(numbers("--window", text, float)),
            "completions": lambda text: tuple(numbers("--completions", text, int)),
            "smc": lambda text: tuple(numbers("--smc", text, int)),
            "lookahead": lambda text: tuple(numbers("--lookahead", text, float)),
            "passes": lambda text: tuple(numbers("--passes", text, int)),
            "samplers": parse_samplers,
            "energies": lambda text: tuple(dict.fromkeys(word.strip() for word in text.split(","))),
        }
        typed = {key: value for key, value in values.items() if value not in (None, "")}
        return {key: read[key](value) if key in read else value for key, value in typed.items()}


def reproduce(
    name: Name,
    /,
    *,
    scale: Scale = "nano",
    denoiser: str | None = None,
    ar: str | None = None,
    energy_model: str | None = None,
    step_energy_model: str | None = None,
    oracle: Annotated[list[str] | None, Parameter(negative=())] = None,
    held_out: Annotated[HeldOut, Parameter(name="*")] = HeldOut(),
    files: Path | None = None,
    sets: str = "",
    changes: Annotated[Changes, Parameter(name="*")] = Changes(),
    compute: Compute = FULL,
    out: Path | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """One of the paper's tables or figures: a table, a plot and the numbers behind them, beside the paper's.

    Interrupted, it goes on where it was when the same command is given again. Rows whose model is not there are left
    out and named; the word none leaves a model out on purpose.

    Parameters
    ----------
    name
        text8-bpc (table 1), zero-shot (table 2), gen-ppl (table 3), time (quality against time), ablation (k and w),
        energy (energies against t), or, beyond the paper, samplers (all of ours at equal cost).
    scale
        nano: small models, minutes on two cores. paper: the paper's settings, for GPUs, with models that you name.
    denoiser
        Folder or name of the denoiser; by default the scale's.
    ar
        Folder or name of the autoregressive model, for a row of its own and for EDLM-AR and EDLM-coAR.
    energy_model
        Folder or name of the learned energy of EDLM-NCE.
    step_energy_model
        samplers: folder or name of the step energy of EDLM-step.
    oracle
        Who judges samples, as in `edlm evaluate generation`; repeat the flag for several.
    files
        zero-shot: folder with the sets' files, instead of the hub.
    sets
        zero-shot: only these sets, such as wikitext,lambada.
    out
        Folder for results.md, results.json, the plot and everything drawn; by default runs/reproduce/NAME.
    dry_run
        Print what would be run and a rough count of network passes, and stop.
    json
        Print the numbers as JSON.
    """
    settings = choose_settings(name, scale, changes.given())
    if isinstance(settings, Samples | Comparison) and not settings.batch_size:
        raise UserError("--batch-size must be at least 1 where samples are drawn, got 0")
    from edlm.reproduce.stage import Stage, choose_cast, show_jobs

    defaults = MODELS[scale]
    typed: dict[str, Any] = {"denoiser": denoiser, "ar": ar, "energy_model": energy_model}
    typed |= {"step_energy_model": step_energy_model, "oracle": oracle}
    cast = choose_cast(typed, defaults, with_steps=name == "samplers")
    stage = Stage(
        name, scale, settings, cast, replace(held_out, data=held_out.data or defaults.data),
        out or Path("runs/reproduce") / name, compute, files, sets, is_data_typed=bool(held_out.data),
    )  # fmt: skip
    experiment = import_module(f"edlm.reproduce.{MODULES[name]}")
    if dry_run:
        print(show_jobs(stage, experiment.plan(stage)))
        return
    require_extra("eval", "matplotlib")  # before the work is done, not after it
    require_folder("--out", stage.out)
    report = experiment.run(stage)
    if report is not None:
        print_json(report.as_dict()) if json else print(report.as_text())
