"""What every experiment starts from: models that are there, reasons why rows are left out, a folder for its files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edlm.compute_config import ComputeConfig
from edlm.errors import UserError
from edlm.evaluator import HeldOut
from edlm.models.causal_files import FILES
from edlm.models.masked_files import PREFIX
from edlm.models.naming import parse_name
from edlm.models.pretrained import find_folder
from edlm.paper_figures import REMARK, SOURCE
from edlm.reports import Report, write_report
from edlm.reproduce.settings import Models, Settings

NONE = "none"
MODELS = ("denoiser", "ar", "energy_model", "oracle")


@dataclass(frozen=True)
class Cast:
    """The models that take part, by name; empty where one is absent."""

    denoiser: str
    ar: str
    energy_model: str
    step_energy_model: str
    oracle: tuple[str, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    """Flag to the reason why its model takes no part."""
    uses: tuple[str, ...] = MODELS
    """The models that the experiment has rows for."""

    def energies(self, kinds: Sequence[str]) -> list[str]:
        """The energies of these kinds whose model is there, as `edlm sample` names them."""
        named = {"ar": self.ar, "coar": self.ar, "nce": self.energy_model, "step": self.step_energy_model}
        return [f"{kind}:{named[kind]}" for kind in kinds if named[kind]]

    def left_out(self) -> list[str]:
        rows = {
            "denoiser": "MDLM and EDLM", "ar": "AR, EDLM-AR and EDLM-coAR", "energy_model": "EDLM-NCE",
            "step_energy_model": "EDLM-step", "oracle": "perplexity of samples",
        }  # fmt: skip
        return [f"Left out: {rows[flag]} ({reason})" for flag, reason in self.absent.items() if flag in self.uses]


def choose_cast(typed: dict[str, Any], defaults: Models, *, with_steps: bool = False) -> Cast:
    """The models that are there. One that was named on the command line is never left out; `none` leaves one out.

    `with_steps` if the experiment has rows for step energies too.
    """
    absent: dict[str, str] = {}
    own = [key for key in typed if key != "oracle"]
    names = {key: _choose(key, typed[key], getattr(defaults, key), absent) for key in own}
    oracles = [_choose("oracle", spec, "", absent) for spec in typed["oracle"] or ()]
    oracles = oracles or [_choose("oracle", None, spec, absent) for spec in defaults.oracle]
    uses = (*MODELS, "step_energy_model") if with_steps else MODELS
    return Cast(**names, oracle=tuple(filter(None, oracles)), absent=absent, uses=uses)


def _choose(key: str, typed: str | None, default: str, absent: dict[str, str]) -> str:
    name, flag = typed or default, f"--{key.replace('_', '-')}"
    if name in ("", NONE):
        absent[key] = f"no {flag}" if name else f"name one with {flag}"
        return ""
    own = name.removeprefix("ar:") if key == "oracle" else name
    if own.startswith(PREFIX) or (key == "oracle" and own == name):
        return name  # from elsewhere: loading it says whether it can be had
    plain = parse_name(own).name
    try:
        if not plain.endswith(FILES):
            find_folder(plain)
    except UserError as error:
        if typed:
            raise
        absent[key] = f"{error}; name another with {flag}"
        return ""
    return name


@dataclass(frozen=True)
class Stage:
    """One experiment, ready to be run."""

    name: str
    scale: str
    settings: Settings
    cast: Cast
    held_out: HeldOut
    out: Path
    compute: ComputeConfig
    files: Path | None = None
    """Folder of the zero-shot sets."""
    sets: str = ""
    is_data_typed: bool = False
    """Whether the text was named on the command line: then nothing that needs it is left out."""

    def require(self, *keys: str) -> None:
        """Refuse an experiment that nothing would be left of."""
        for key in keys:
            if not getattr(self.cast, key):
                raise UserError(f"{self.name} needs --{key.replace('_', '-')}: {self.cast.absent[key]}")

    def write(
        self, table: str, remarks: Sequence[str], results: dict[str, Any], plot: Callable[[Path], None], *,
        left_out: Sequence[str] = (), quotes: bool = True, more: Mapping[str, Callable[[Path], None]] | None = None,
    ) -> Report:  # fmt: skip
        """The files of the experiment, and what is printed; `quotes` if the paper's figures are in it, `more` plots."""
        about = {
            "experiment": self.name, "scale": self.scale, "settings": asdict(self.settings),
            "models": {key: getattr(self.cast, key) for key in self.cast.uses},
            "left_out": [*self.cast.left_out(), *left_out], "paper_source": SOURCE,
        }  # fmt: skip
        notes = [*remarks, *([REMARK] if quotes else []), *about["left_out"]]
        text = f"{table}\n" + "".join(f"- {note}\n" for note in notes)
        return write_report(self.out, text, about | results, {f"{self.name}.png": plot, **(more or {})})


@dataclass(frozen=True)
class Job:
    """One line of what would be run: network passes are counted per sequence."""

    label: str
    passes: float
    unit: str = ""
    """What one such number is for, where the whole is not known before the data is read."""


def show_jobs(stage: Stage, jobs: Sequence[Job]) -> str:
    """The plan as a text, with a rough count of network passes, each of one sequence through one network."""
    width = max(len(job.label) for job in jobs)
    lines = [f"{job.label:<{width}}  {job.passes:12,.0f} passes{job.unit}" for job in jobs]
    units = {job.unit for job in jobs}
    lines += [
        f"{'all':<{width}}  {sum(job.passes for job in jobs):12,.0f} passes{unit}" for unit in units if len(units) == 1
    ]
    return "\n".join([f"{stage.name}, scale {stage.scale}", *lines, *stage.cast.left_out(), f"files: {stage.out}"])
