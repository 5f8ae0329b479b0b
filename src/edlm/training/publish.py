"""What goes along when a model is saved or pushed: the record of its training without paths, and a card made of it.

A record is about certain weights. A model that was changed after it was loaded goes without one.
"""

from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from edlm._version import __version__
from edlm.data.record import RUN, read_run
from edlm.models.pretrained import WEIGHTS, PretrainedModel, read_weights
from edlm.training.card import card_text, licence_of
from edlm.training.record import Record, portable_recipe, read_record


def save_with_record(model: PretrainedModel, folder: Path) -> None:
    """Config, weights, tokenizer and, if it is known how they came to be, run.yaml.

    Weights that are as they were loaded keep the precision they were stored in.
    """
    stored = unchanged_weights(model)
    weights = model.state_dict() if stored is None else stored
    write_folder(model, folder, weights, *record_of(model, folder.name))


def write_folder(
    model: PretrainedModel, folder: Path, weights: dict[str, Tensor], facts: dict[str, Any], recipe: dict[str, Any]
) -> None:
    """Config, tokenizer, the given weights and, where there is a recipe, run.yaml with the facts about the training."""
    model.save_folder(folder, weights)
    (folder / WEIGHTS).chmod(0o644)  # safetensors makes files for their owner alone; these are to be passed on
    if recipe:
        settings = {"edlm_version": __version__, "record": facts} | recipe
        (folder / RUN).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def make_card(model: PretrainedModel, name: str, licence: str = "") -> str:
    """The card of a model that is to be called `name`; its licence is by default that of where it was loaded from."""
    facts, recipe = record_of(model, name)
    return card_text(name, model, facts, recipe, licence or (licence_of(model.folder) if model.folder else ""))


def record_of(model: PretrainedModel, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known of the training of the weights, and its recipe without the folders of this machine; or nothing."""
    folder = model.folder
    if folder is None or not (folder / RUN).is_file() or unchanged_weights(model) is None:
        return {}, {}
    record = read_record(folder, model.config.transformer.length)
    recipe = recipe_of(model, record, name.rpartition("/")[2])
    exported = (read_run(folder) or {}).get("record")
    return (exported if isinstance(exported, dict) else known_facts(model, record)), recipe


def recipe_of(model: PretrainedModel, record: Record, name: str) -> dict[str, Any]:
    """The settings that would make a model like this one again, called `name`."""
    is_characters = model.tokenizer is not None and model.tokenizer.unit == "character"
    return portable_recipe(record, name, "characters" if is_characters else "")


def known_facts(model: PretrainedModel, record: Record) -> dict[str, Any]:
    """What a run says of itself, before anything is measured."""
    return {
        "steps": record.steps,
        "batch_size": record.config.run.batch_size,
        "tokens_seen": record.tokens_seen,
        "started_from": record.start or None,
        "history": record.history,
        "parameters": sum(p.numel() for p in model.parameters()),
        "unit": model.tokenizer.unit if model.tokenizer is not None else "token",
    }


def unchanged_weights(model: PretrainedModel) -> dict[str, Tensor] | None:
    """The weights in the file that the model was loaded from, if it still has them."""
    if model.folder is None or not (model.folder / WEIGHTS).is_file():
        return None
    stored, own = read_weights(model.folder / WEIGHTS), model.state_dict()
    if stored.keys() != own.keys():
        return None
    same = all(torch.equal(tensor.to(own[name].dtype), own[name].cpu()) for name, tensor in stored.items())
    return {name: tensor.clone() for name, tensor in stored.items()} if same else None  # the file may be overwritten
