"""edlm train denoiser | ar"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from edlm.training.config import TrainConfig

app = App(help="Train a denoiser or an autoregressive model, or resume a run that was stopped.")

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


def run(kind: Literal["denoiser", "ar"], settings: TrainConfig, *, dry_run: bool, json: bool) -> None:
    """Train and say how it ended."""
    from edlm.commands.output import print_json, print_table
    from edlm.commands.require import require_extra

    require_extra("train", "transformers", "accelerate")
    if dry_run:
        from edlm.training.dry_run import rehearse

        report = rehearse(kind, settings)
        print_json(report) if json else print_table(report)
        return
    from edlm.training.run import is_first_process, train

    outcome = train(kind, settings)
    if not is_first_process():
        return
    if json:
        print_json(asdict(outcome))
        return
    if not outcome.is_finished:
        print(f"stopped at step {outcome.step} of {settings.run.steps}; run the same command again to go on")
        return
    unit = "character" if settings.data.tokenizer == "characters" else "token"
    if outcome.bits is not None:
        print(f"validation: {outcome.bits:.4f} ± {outcome.standard_error:.4f} bits per {unit} at step {outcome.step}")
    print(f"model: {outcome.folder}/model")
