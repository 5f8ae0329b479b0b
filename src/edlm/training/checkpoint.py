"""Checkpoints: whole or absent, free of pickle, and the same files whatever the number of processes.

A folder `checkpoint-N` is a loadable model (the averaged weights) plus what training needs to go on exactly:

    config.json, model.safetensors, tokenizer files   the model, with its averaged weights
    training.safetensors                              the weights being trained, and the optimizer's tensors
    training.json                                     the optimizer's and the learning rate's numbers
    trainer_state.json                                step counter and best result so far, as the Trainer keeps them
    run.yaml                                          the full configuration and the library's version
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from edlm.errors import UserError
from edlm.models.pretrained import read_weights

STATE, NUMBERS = "training.safetensors", "training.json"
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FULL_LOAD = StateDictOptions(full_state_dict=True)


def checkpoint_path(out: Path, step: int) -> Path:
    return out / f"checkpoint-{step}"


def list_checkpoints(out: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first. Half-written ones never carry such a name."""
    found = [(int(m[1]), p) for p in out.glob("checkpoint-*") if (m := re.fullmatch(r"checkpoint-(\d+)", p.name))]
    return [path for _, path in sorted(found)]


def rotate(out: Path, keep_last: int, best_step: int | None) -> None:
    """Delete all but the `keep_last` newest checkpoints and the best one."""
    for path in list_checkpoints(out)[:-keep_last]:
        if best_step is None or path != checkpoint_path(out, best_step):
            shutil.rmtree(path)


@contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """A folder to fill; it appears under its final name only if the block ends well and all is on disk."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for stale in final.parent.glob(f".{final.name}.*.partial"):
        shutil.rmtree(stale)
    partial = final.parent / f".{final.name}.{os.getpid()}.partial"
    try:
        partial.mkdir()
        yield partial
        for path in [*partial.rglob("*"), partial]:
            _flush(path)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _flush(final.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(f"could not write {final}: {_reason(error)}; earlier checkpoints are intact") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    text = str(error)
    if "No space left" in text or getattr(error, "errno", None) == errno.ENOSPC:
        return "the disk is full; free some space and run the same command again"
    return text


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights, gathered whole on the first process from replicas or shards."""
    weights: dict[str, Any] = get_model_state_dict(model, options=_FULL)
    return {name: value.clone() for name, value in weights.items()}


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, numbers) of the optimizer, gathered like the weights. Tensors are named PARAMETER.KIND.

    Both are empty on all processes but the first.
    """
    whole: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=_FULL)
    state = whole.get("state", {})
    tensors = {f"{name}.{kind}": value for name, kinds in state.items() for kind, value in kinds.items()}
    return tensors, {"param_groups": whole.get("param_groups", [])}


def write_training_state(
    folder: Path, weights: dict[str, Tensor], moments: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    tensors = {f"model.{name}": value for name, value in weights.items()}
    save_file(tensors | {f"optimizer.{name}": value for name, value in moments.items()}, folder / STATE)
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1))


def read_training_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """(weights, optimizer tensors, numbers) of a checkpoint."""
    tensors = read_weights(folder / STATE)
    weights = {key.removeprefix("model."): value for key, value in tensors.items() if key.startswith("model.")}
    moments = {key.removeprefix("optimizer."): value for key, value in tensors.items() if key.startswith("optimizer.")}
    return weights, moments, json.loads((folder / NUMBERS).read_text())


def load_model_state(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put back what `model_state` took, on however many processes."""
    set_model_state_dict(model, dict(weights), options=_FULL_LOAD)


def load_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Put back what `optimizer_state` took, on however many processes."""
    state: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, kind = key.rpartition(".")
        state.setdefault(name, {})[kind] = value
    whole = {"state": state, "param_groups": numbers["param_groups"]}
    set_optimizer_state_dict(model, optimizer, whole, options=_FULL_LOAD)
