"""From a training run to a folder that can be given away: rounded weights, tokenizer, recipe, and a model card.

Weights are rounded first and measured then, beside the weights as trained, so that the card states what the stored
model does and what rounding cost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edlm.data import Corpus
from edlm.data.record import is_exported, portable_source
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, Energy, judges_steps, learned_energy
from edlm.errors import UserError
from edlm.evaluation import Likelihood, choose_blocks
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.models.precision import round_weights, rounded
from edlm.training.batches import NoisyBatches, TextBatches
from edlm.training.build import VALIDATION_NEGATIVES, loss_form
from edlm.training.card import write_card
from edlm.training.checkpoint import atomic_folder
from edlm.training.config import EnergyTrainConfig
from edlm.training.publish import known_facts, recipe_of, write_folder
from edlm.training.record import Record
from edlm.training.tasks import EnergyTask

Model = Denoiser | Autoregressive | EnergyNetwork
LIMIT = 0.002
"""What rounding may cost, in bits per character or token (nats per sequence for an energy)."""


@dataclass(frozen=True)
class Measurement:
    """One number of which less is better, and what it is."""

    value: float
    facts: dict[str, Any]
    """Everything that the card and the record say about it."""


def export(
    model: Model, record: Record, corpus: Corpus, split: str, out: Path, *, precision: str, licence: str,
    measure: Callable[[], Measurement],
) -> dict[str, Any]:  # fmt: skip
    """Write the model in `precision` to the folder `out` and return the record in it. `measure` scores `model`."""
    weights = rounded(model.state_dict(), precision)
    trained = measure()
    round_weights(model, precision)
    stored = measure() if precision != "float32" else trained
    cost = stored.value - trained.value
    if not abs(cost) <= LIMIT:
        remedy = "store it with --precision float32"
        raise UserError(f"{precision} changes the model's score by {cost:.4f}, more than {LIMIT}; {remedy}")
    measured = stored.facts | {"precision": precision, "rounding_cost": cost, "split": split}
    facts = make_record(model, record, corpus, split) | {"measured": measured}
    recipe = recipe_of(model, record, out.name)
    with atomic_folder(out) as folder:
        write_folder(model, folder, weights, facts, recipe)
        write_card(folder, out.name, model, facts, recipe, licence)
    return facts


def make_record(model: Model, record: Record, corpus: Corpus, split: str) -> dict[str, Any]:
    """What happened in training, and which text is behind the figures: hashes and ranges, no folders."""
    parts = corpus.describe()["splits"]
    names = ("first_token", "end_token", "num_tokens", "tokens_sha256")
    return known_facts(model, record) | {
        "unit": corpus.unit,
        "measured_on": portable_source(corpus.config.source),
        "splits": {name: {key: part[key] for key in names} for name, part in parts.items()},
    }


def likelihood_measurement(result: Likelihood) -> Measurement:
    """Bits per character or token with their protocol."""
    names = ("bits", "standard_error", "unit", "quantity", "protocol", "num_blocks", "block_length", "steps", "seed")
    return Measurement(result.bits, {name: getattr(result, name) for name in names})


def energy_measurement(
    model: EnergyNetwork | Autoregressive, denoiser: Denoiser, config: EnergyTrainConfig, corpus: Corpus, split: str,
    *, max_blocks: int, batch_size: int,
) -> Measurement:  # fmt: skip
    """Contrastive loss and accuracy on held-out text, over all times and in each fifth; of steps also by size."""
    blocks, seed = corpus[split], config.run.seed
    energy, form = energy_of(model, config.init), loss_form(config)
    texts, steps = TextBatches(blocks, seed), judges_steps(energy)
    noise = NoisyBatches(
        texts, denoiser.schedule, denoiser.mask_id, 1, negatives=VALIDATION_NEGATIVES, steps=steps
    )  # fmt: skip
    task = EnergyTask(model, energy, denoiser, noise, noise, form)
    index = choose_blocks(len(blocks), max_blocks)
    values = task.summarise(task.validate(index, batch_size or 8, next(model.parameters()).device))
    about = {"form": form, "negatives": VALIDATION_NEGATIVES, "num_blocks": len(index), "block_length": blocks.length}
    return Measurement(values["loss"], about | {"seed": seed} | values)


def energy_of(model: EnergyNetwork | Autoregressive, init: str) -> Energy:
    """The energy that a trained model defines: its own output, or that of the autoregressive energy it started as."""
    if isinstance(model, EnergyNetwork):
        return learned_energy(model)
    return CarryOverEnergy(model) if init.startswith("coar:") else AutoregressiveEnergy(model)


def require_free(out: Path) -> None:
    """Refuse to replace anything but an earlier export."""
    if out.is_dir() and any(out.iterdir()) and not is_exported(out):
        raise UserError(f"{out} holds something else than an exported model; choose another folder")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder")
