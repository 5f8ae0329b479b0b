"""Whether a folder holds this run: find its newest checkpoint, refuse another run's, recognise a finished one."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from edlm.config import to_dict
from edlm.errors import UserError
from edlm.training.checkpoint import list_checkpoints
from edlm.training.config import EnergyTrainConfig, TrainConfig

# Settings that change neither what is learned nor its order may differ between a run and its continuation.
FREE_ON_RESUME = {
    *(f"run.{key}" for key in ("out", "progress", "keep_last", "tensorboard", "data_workers", "resume", "preview")),
    *("run.micro_batch_size", "run.shard", "data.cache", "data.num_workers"),
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: str
    step: int
    is_finished: bool
    validation: dict[str, float]
    """The last validation's metrics."""


def find_checkpoint(out: Path, config: TrainConfig | EnergyTrainConfig) -> Path | None:
    """The newest checkpoint of this run, refusing one that was made with other settings."""
    require_writable_folder(out)
    found = list_checkpoints(out)
    if not found:
        return None
    if config.run.resume == "never":
        raise UserError(f"{out} already holds checkpoints; choose another run.out, or leave out run.resume to go on")
    check_same_run(found[-1], config)
    return found[-1]


def require_writable_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"run.out {out} is a file; choose a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".writable").touch()
        (out / ".writable").unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"run.out {out} cannot be written ({error.strerror}); choose another folder") from error


def check_same_run(checkpoint: Path, config: TrainConfig | EnergyTrainConfig) -> None:
    """Refuse to continue a run under settings that would make it another run."""
    saved = flatten(yaml.safe_load((checkpoint / "run.yaml").read_text(encoding="utf-8")))
    free = FREE_ON_RESUME | ({"run.steps"} if config.optim.schedule == "constant" else set())
    for key, value in flatten(to_dict(config)).items():
        before = saved.get(key, value)
        if before != value and key not in free:
            raise UserError(
                f"{checkpoint.parent} holds a run with {key} = {before!r}, not {value!r}; "
                "give the same settings to resume it, or choose another run.out"
            )


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def finished_outcome(checkpoint: Path, config: TrainConfig | EnergyTrainConfig) -> Outcome | None:
    """How the run ended, if it already has its steps and its model."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    if state["global_step"] < config.run.steps or not (checkpoint.parent / "model").exists():
        return None
    return make_outcome(config, state["global_step"], state["log_history"])


def make_outcome(config: TrainConfig | EnergyTrainConfig, step: int, history: list[dict[str, Any]]) -> Outcome:
    evaluations = [line for line in history if "eval_standard_error" in line]
    last = evaluations[-1] if evaluations else {}
    metrics = {key.removeprefix("eval_"): value for key, value in last.items() if key.startswith("eval_")}
    return Outcome(config.run.out, step, step >= config.run.steps, metrics)
