"""edlm export"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from edlm.commands.sample import Device
from edlm.errors import UserError
from edlm.evaluator import Evaluator, HeldOut, Work, corpus_for, evaluator
from edlm.likelihood_config import LikelihoodConfig

if TYPE_CHECKING:
    from edlm.data import Corpus
    from edlm.training.export import Measurement
    from edlm.training.record import Record


def export(
    run: str,
    out: Path,
    /,
    *,
    precision: Literal["float16", "bfloat16", "float32"] = "float16",
    denoiser: str = "",
    held_out: Annotated[HeldOut, Parameter(name="*")] = HeldOut(),
    work: Annotated[Work, Parameter(name="*")] = Work(),
    licence: str = "apache-2.0",
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Write a trained model as a folder to pass on: small weights, tokenizer, recipe, and a model card with figures.

    The figures are measured on held-out text with the weights as they are stored. Nothing in the folder tells where
    files were on this machine. A folder that an earlier export wrote is replaced.

    Parameters
    ----------
    run
        Folder of a training run, or of one of its checkpoints.
    out
        Folder to write; its name is the model's name in the card.
    precision
        What weights are stored in; they load as float32. Refused if it changes the score by more than 0.002.
    denoiser
        For an energy: the denoiser it corrects, if not the one named in its training.
    licence
        Licence of the weights, as in the header of a model card.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print the record as JSON.
    """
    from edlm.commands.output import print_json
    from edlm.models.load import load_own
    from edlm.models.placement import choose_device
    from edlm.models.pretrained import find_folder
    from edlm.training import export as exporting
    from edlm.training.record import read_record

    exporting.require_free(out)
    folder = find_folder(run)
    model = load_own(folder).to(choose_device(device))
    record = judged_with(read_record(folder, model.length), denoiser)
    with evaluator(work) as measuring:
        if measuring.world.size > 1:
            raise UserError("edlm export runs in one process; start it without torchrun")
        corpus = corpus_for(model, str(folder), held_out)  # type: ignore[arg-type]
        measure = choose_measure(model, record, corpus, held_out.split, measuring)
        facts = exporting.export(
            model, record, corpus, held_out.split, out, precision=precision, licence=licence, measure=measure
        )
    print_json(facts) if json else show(out, facts)


def judged_with(record: "Record", denoiser: str) -> "Record":
    """The record of an energy with the denoiser that was named instead of the one it was trained with."""
    from edlm.training.config import EnergyTrainConfig

    if not denoiser:
        return record
    if not isinstance(record.config, EnergyTrainConfig):
        raise UserError("--denoiser names what an energy corrects; this model is none, so leave it out")
    return replace(record, config=replace(record.config, denoiser=denoiser))


def choose_measure(
    model: Any, record: "Record", corpus: "Corpus", split: str, measuring: Evaluator
) -> "partial[Measurement]":
    """What a model of this kind is measured by: likelihood, or an energy's contrastive loss."""
    from edlm.energy_spec import check_same_tokens
    from edlm.models.denoiser import Denoiser
    from edlm.models.load import load_as
    from edlm.training.config import EnergyTrainConfig
    from edlm.training.export import energy_measurement

    if not isinstance(record.config, EnergyTrainConfig):
        return partial(measure_likelihood, model, corpus, split, measuring)
    other = load_as(Denoiser, record.config.denoiser).to(next(model.parameters()).device)
    check_same_tokens(other, model, "the energy")
    work = {"max_blocks": measuring.work.max_blocks, "batch_size": measuring.work.batch_size}
    return partial(energy_measurement, model, other, record.config, corpus, split, **work)


def measure_likelihood(model: Any, corpus: "Corpus", split: str, measuring: Evaluator) -> "Measurement":
    """Exact bits of an autoregressive model, the continuous-time bound of a denoiser."""
    from edlm.training.export import likelihood_measurement

    return likelihood_measurement(measuring.measure(model, corpus, split, LikelihoodConfig(), label="measuring"))


def show(out: Path, facts: dict[str, Any]) -> None:
    """What was written, and the figures of the card."""
    from edlm.training.card import result_rows

    print(f"model: {out}, {facts['parameters']:,} parameters, {facts['steps']:,} steps")
    for key, value in result_rows(facts).items():
        print(f"{key}: {value.replace('*', '').replace('`', '')}")
