"""What a run wrote down about the model it left: its recipe, how far it came, and the recipe fit to be passed on."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edlm.config import from_dict, to_dict
from edlm.data.record import RUN, portable_data, portable_name, read_run
from edlm.errors import UserError
from edlm.models.pretrained import find_folder
from edlm.training.config import EnergyTrainConfig, TrainConfig


@dataclass(frozen=True)
class Record:
    """How a model came to be."""

    config: TrainConfig | EnergyTrainConfig
    steps: int
    """Optimizer steps taken, which a run that still goes on has not all made."""
    length: int
    """Tokens of a sequence."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The runs behind the weights that this one started from, the first one first, as `stage` tells them."""

    @property
    def tokens_seen(self) -> int:
        return self.steps * self.config.run.batch_size * self.length

    @property
    def start(self) -> str:
        """The model that training started from, without its folder; empty if from scratch."""
        config = self.config
        if isinstance(config, EnergyTrainConfig):
            return portable_name(config.init or config.denoiser)
        return portable_name(config.model.init)

    @property
    def stage(self) -> dict[str, Any]:
        """This run as a line of the history of a later one."""
        optim = self.config.optim
        return {
            "name": Path(self.config.run.out).name,
            "steps": self.steps,
            "tokens_seen": self.tokens_seen,
            "optimizer": optim.name,
            "learning_rate": optim.learning_rate,
            "schedule": optim.schedule,
        }


def history_before(config: TrainConfig | EnergyTrainConfig, length: int) -> list[dict[str, Any]]:
    """The runs behind the weights that a new run starts from, as far as they are known.

    A run writes this down when it begins: the folder it starts from may hold other weights later.
    """
    name = "" if isinstance(config, EnergyTrainConfig) else config.model.init
    if not name or not ((folder := find_folder(name)) / RUN).exists():
        return []
    record = read_record(folder, length)
    return [*record.history, record.stage]


def read_record(folder: Path, length: int) -> Record:
    """The record beside a model of that length: of a checkpoint, a finished run, or an exported model."""
    settings = read_run(folder)
    if settings is None:
        remedy = "export the folder of a training run"
        raise UserError(f"{folder} has no {RUN}, so nothing is known about its training; {remedy}")
    settings.pop("edlm_version", None)
    exported, history = settings.pop("record", None), settings.pop("history", [])
    config: TrainConfig | EnergyTrainConfig
    if "nce" in settings:
        config = from_dict(EnergyTrainConfig, settings, where=str(folder / RUN))
    else:
        config = from_dict(TrainConfig, settings, where=str(folder / RUN))
    if isinstance(exported, dict):
        steps, before = require_count(exported.get("steps"), folder / RUN), exported.get("history", [])
        return Record(config, steps, length, before)
    return Record(config, steps_taken(folder, config), length, history)


def steps_taken(folder: Path, config: TrainConfig | EnergyTrainConfig) -> int:
    """Steps behind a checkpoint, from the trainer's counters; a finished run's model has them all."""
    path = folder / "trainer_state.json"
    if not path.exists():
        return config.run.steps
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); copy the run again") from error
    return require_count(state.get("global_step") if isinstance(state, dict) else None, path)


def require_count(steps: Any, path: Path) -> int:
    if type(steps) is not int or steps < 0:
        raise UserError(f"{path} does not say how many steps were taken, but {steps!r}; copy the run again")
    return steps


def portable_recipe(record: Record, name: str, tokenizer: str) -> dict[str, Any]:
    """The recipe without the folders of one machine, for a model that is to be called `name`.

    It still says which part of the text was held out, and can be given to `edlm train` once its text is named.
    """
    config = record.config
    run = replace(config.run, out=f"runs/{name}")
    data = None if config.data is None else portable_data(config.data)
    if data is not None and tokenizer:
        data = replace(data, tokenizer=tokenizer)
    if isinstance(config, EnergyTrainConfig):
        denoiser, init = portable_name(config.denoiser), portable_name(config.init)
        return to_dict(replace(config, denoiser=denoiser, init=init, data=data, run=run))
    assert data is not None
    return to_dict(replace(config, data=data, run=run, model=replace(config.model, init=record.start)))
