"""edlm train denoiser | ar"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from edlm.training.config import EnergyTrainConfig, TrainConfig

if TYPE_CHECKING:
    from edlm.training.resume import Outcome

app = App(help="Train a denoiser, an autoregressive model or an energy, or resume a run that was stopped.")

Settings = Annotated[TrainConfig, Parameter(name="*")]


@app.command
def denoiser(
    *, config: Path | None = None, settings: Settings = TrainConfig(), dry_run: bool = False, json: bool = False
) -> None:
    """Train a masked diffusion denoiser (MDLM).

    Under torchrun the batch is split over the processes. A second call with the same settings resumes the run.

    Parameters
    ----------
    config
        YAML file of settings, such as configs/text8-nano.yaml; what is typed on the command line goes first.
    dry_run
        Build everything, take one step on a small batch, print sizes and estimates, and stop.
    json
        Print the outcome as JSON.
    """
    run("denoiser", settings, dry_run=dry_run, json=json)


@app.command
def ar(
    *, config: Path | None = None, settings: Settings = TrainConfig(), dry_run: bool = False, json: bool = False
) -> None:
    """Train an autoregressive model on the same data with the same transformer.

    Under torchrun the batch is split over the processes. A second call with the same settings resumes the run.

    Parameters
    ----------
    config
        YAML file of settings, such as configs/text8-nano.yaml; what is typed on the command line goes first.
    dry_run
        Build everything, take one step on a small batch, print sizes and estimates, and stop.
    json
        Print the outcome as JSON.
    """
    run("ar", settings, dry_run=dry_run, json=json)


@app.command
def energy(
    *, config: Path | None = None, settings: Annotated[EnergyTrainConfig, Parameter(name="*")] = EnergyTrainConfig(),
    json: bool = False,
) -> None:  # fmt: skip
    """Train an energy by noise-contrastive estimation: true completions against those of a frozen denoiser.

    With --nce.target step it judges what single steps reveal. Under torchrun the batch is split over the processes. A
    second call with the same settings resumes the run.

    Parameters
    ----------
    config
        YAML file of settings; what is typed on the command line goes first.
    json
        Print the outcome as JSON.
    """
    from edlm.extras import require_extra

    require_extra("train", "transformers", "accelerate")
    from edlm.training.run import train_energy

    report(train_energy(settings), settings.run.steps, json=json)


def run(kind: Literal["denoiser", "ar"], settings: TrainConfig, *, dry_run: bool, json: bool) -> None:
    """Train and say how it ended."""
    from edlm.commands.output import print_json, print_table
    from edlm.extras import require_extra

    require_extra("train", "transformers", "accelerate")
    if dry_run:
        from edlm.training.dry_run import rehearse

        sizes = rehearse(kind, settings)
        print_json(sizes) if json else print_table(sizes)
        return
    from edlm.training.run import train

    report(train(kind, settings), settings.run.steps, json=json)


def report(outcome: "Outcome", steps: int, *, json: bool) -> None:
    """How a run ended, told by the first process only."""
    from edlm.commands.output import print_json
    from edlm.training.run import is_first_process, leave_process_group

    leave_process_group()
    if not is_first_process():
        return
    if json:
        print_json(asdict(outcome))
        return
    if not outcome.is_finished:
        print(f"stopped at step {outcome.step} of {steps}; run the same command again to go on")
        return
    values = outcome.validation
    if "bits" in values:
        print(f"validation: {values['bits']:.4f} ± {values['standard_error']:.4f} bits per {values_unit(outcome)}")
    elif "loss" in values:
        print(
            f"validation: loss {values['loss']:.4f} ± {values['standard_error']:.4f} nats, "
            f"accuracy {values['accuracy']:.3f}, log Z {values['log_z']:.3f}"
        )
    print(f"model: {outcome.folder}/model")


def values_unit(outcome: "Outcome") -> str:
    """What bits are counted per, from the tokenizer beside the model."""
    from edlm.tokenizer_files import load_tokenizer

    return load_tokenizer(f"{outcome.folder}/model").unit
