"""A training run: train or resume, and leave a model behind."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from edlm.data import Corpus, prepare
from edlm.errors import UserError
from edlm.generation import generate
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.models.load import load_as
from edlm.models.placement import compile_network
from edlm.sample_config import SampleConfig
from edlm.training.build import Kind, build_model, data_of, energy_task, language_model_task
from edlm.training.callbacks import Housekeeping, MetricsFile, Preview, ProgressBar
from edlm.training.checkpoint import atomic_folder, model_state
from edlm.training.config import EnergyTrainConfig, TrainConfig
from edlm.training.record import history_before, read_record
from edlm.training.resume import Outcome, find_checkpoint, finished_outcome, make_outcome
from edlm.training.tasks import Task
from edlm.training.trainer import DiffusionTrainer, RunSettings, write_run

PREVIEW = SampleConfig(steps=32, length=None, seed=0)


def train(kind: Kind, config: TrainConfig) -> Outcome:
    """Train a denoiser or a causal model, or go on with the run that `config.run.out` holds."""
    checkpoint = find_checkpoint(Path(config.run.out), config)
    if checkpoint and (outcome := finished_outcome(checkpoint, config)):
        return outcome
    arguments = make_arguments(config)
    corpus = prepare_once(arguments, config, config.data)
    torch.manual_seed(config.run.seed)
    model = build_model(kind, config, corpus.tokenizer.vocab_size, corpus.tokenizer)
    return run_task(language_model_task(model, config, corpus), config, corpus, arguments, checkpoint)


def train_energy(config: EnergyTrainConfig) -> Outcome:
    """Train an energy against a denoiser, or go on with the run that `config.run.out` holds."""
    if not config.denoiser:
        raise UserError("name the denoiser whose completions the energy shall judge: --denoiser DIR")
    denoiser = load_as(Denoiser, config.denoiser)
    config = replace(config, data=replace(data_of(config.denoiser, config.data), length=denoiser.length))
    checkpoint = find_checkpoint(Path(config.run.out), config)
    if checkpoint and (outcome := finished_outcome(checkpoint, config)):
        return outcome
    arguments = make_arguments(config, metric="loss")
    assert config.data is not None
    corpus = prepare_once(arguments, config, config.data)
    torch.manual_seed(config.run.seed)
    task = energy_task(config, denoiser.to(arguments.device), corpus)
    return run_task(task, config, corpus, arguments, checkpoint)


def prepare_once(arguments: Any, config: RunSettings, data: Any) -> Corpus:
    """The first process prepares the data, the others read its cache."""
    with arguments.main_process_first(local=False):
        return prepare(data, progress=config.run.progress)


def run_task(task: Task, config: RunSettings, corpus: Corpus, arguments: Any, checkpoint: Path | None) -> Outcome:
    """Train to the end or until told to stop."""
    trainer, housekeeping = build_trainer(task, config, corpus, arguments)
    length = task.model.length
    trainer.history = read_record(checkpoint, length).history if checkpoint else history_before(config, length)
    with housekeeping.catching_signals():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return finish(trainer, Path(config.run.out))


def make_arguments(config: RunSettings, *, metric: str = "bits") -> Any:
    """Our settings in the Trainer's words. Logging, saving and evaluation stay ours."""
    from transformers import TrainingArguments

    run, optim = config.run, config.optim
    is_cpu = run.device == "cpu" or (run.device == "auto" and not torch.cuda.is_available())
    if run.device == "cuda" and not torch.cuda.is_available():
        raise UserError("run.device is cuda, but PyTorch finds no GPU; install a CUDA build or choose cpu")
    if run.shard and "WORLD_SIZE" not in os.environ:
        raise UserError("run.shard splits the model over processes; start it with torchrun --nproc-per-node N -m edlm")
    if run.shard and optim.name == "muon":
        raise UserError("optim.name muon needs whole matrices, and run.shard splits them; leave out one of the two")
    micro, accumulation = run.accumulation(int(os.environ.get("WORLD_SIZE", "1")))
    evaluate = "steps" if run.eval_every else "no"
    return TrainingArguments(
        output_dir=run.out,
        max_steps=run.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        learning_rate=optim.learning_rate,
        lr_scheduler_type="cosine" if optim.schedule == "cosine" else "constant_with_warmup",
        warmup_steps=optim.warmup_steps,
        max_grad_norm=optim.clip,
        bf16=precision_of(config, is_cpu=is_cpu) == "bfloat16",
        use_cpu=is_cpu,
        ddp_backend="gloo" if is_cpu and "WORLD_SIZE" in os.environ else None,
        ddp_find_unused_parameters=False,
        seed=run.seed,
        logging_steps=run.log_every,
        logging_nan_inf_filter=False,
        save_steps=run.save_every,
        eval_strategy=evaluate,
        eval_steps=run.eval_every or None,
        metric_for_best_model=metric,
        greater_is_better=False,
        dataloader_num_workers=run.data_workers,
        dataloader_pin_memory=not is_cpu,
        remove_unused_columns=False,
        disable_tqdm=True,
        log_level="error",
        report_to=["tensorboard"] if run.tensorboard else [],
    )


def precision_of(config: RunSettings, *, is_cpu: bool) -> str:
    if config.run.precision != "auto":
        return config.run.precision
    return "bfloat16" if not is_cpu and torch.cuda.is_bf16_supported() else "float32"


def build_trainer(
    task: Task, config: RunSettings, corpus: Corpus, arguments: Any
) -> tuple[DiffusionTrainer, Housekeeping]:
    """The trainer with its callbacks."""
    if config.run.compile:
        compile_network(task.model)
    out = Path(config.run.out)
    tokens_per_step = config.run.batch_size * task.model.length
    is_shown = sys.stderr.isatty() if config.run.progress is None else config.run.progress
    bar = ProgressBar(task.unit, tokens_per_step, is_shown=is_shown)
    preview = Preview(bar, out / "previews.jsonl", lambda: preview_texts(task, config.run.preview))
    housekeeping = Housekeeping()
    callbacks = [housekeeping, MetricsFile(out / "metrics.jsonl", task.unit, tokens_per_step), bar]
    callbacks += [preview] if config.run.preview and task.metric == "bits" else []
    num_validation = len(corpus["validation"]) if config.run.eval_every else 0
    trainer = DiffusionTrainer(task, num_validation, config, arguments, callbacks)
    housekeeping.trainer = preview.trainer = trainer
    return trainer, housekeeping


def preview_texts(task: Task, num: int) -> list[str]:
    assert not isinstance(task.model, EnergyNetwork)
    return [sample.text for sample in generate(task.model, num, PREVIEW)]


def leave_process_group() -> None:
    """Join the threads of torch.distributed before Python ends; left to the end they may abort the process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def is_first_process() -> bool:
    """Under torchrun, whether this process is the one that speaks."""
    return int(os.environ.get("RANK", "0")) == 0


def finish(trainer: DiffusionTrainer, out: Path) -> Outcome:
    """If the run came to its end, leave its averaged weights in `out/model`."""
    outcome = make_outcome(trainer.config, trainer.state.global_step, trainer.state.log_history)
    if outcome.is_finished:
        with trainer.averaged():
            weights = model_state(trainer.bare)
        if trainer.args.should_save:
            with atomic_folder(out / "model") as folder:
                trainer.bare.save_folder(folder, weights)
                write_run(folder, trainer.config, trainer.history)
    return outcome
