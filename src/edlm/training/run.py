"""A training run from its configuration: build, train or resume, and leave a model behind."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from edlm.config import to_dict
from edlm.data import Corpus, prepare
from edlm.errors import UserError
from edlm.generation import generate
from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
from edlm.models.denoiser import Denoiser, DenoiserConfig
from edlm.models.load import load_model
from edlm.models.transformer import TransformerConfig, make_transformer_config
from edlm.sample_config import SampleConfig
from edlm.tokenization import Tokenizer
from edlm.training.batches import NoisyBatches, TextBatches
from edlm.training.callbacks import Housekeeping, MetricsFile, Preview, ProgressBar
from edlm.training.checkpoint import atomic_folder, list_checkpoints, model_state
from edlm.training.config import TrainConfig
from edlm.training.trainer import DiffusionTrainer, Model, write_run

Kind = Literal["denoiser", "ar"]
PREVIEW = SampleConfig(steps=32, length=None, seed=0)
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
    bits: float | None
    standard_error: float | None


def train(kind: Kind, config: TrainConfig) -> Outcome:
    """Train a model, or go on with the run that `config.run.out` holds."""
    out = Path(config.run.out)
    checkpoint = find_checkpoint(out, config)
    if checkpoint and (outcome := finished_outcome(checkpoint, config)):
        return outcome
    arguments = make_arguments(config)
    with arguments.main_process_first(local=False):  # the first process prepares the data, the others read its cache
        corpus = prepare(config.data, progress=config.run.progress)
    torch.manual_seed(config.run.seed)
    model = build_model(kind, config, corpus.tokenizer.vocab_size, corpus.tokenizer)
    trainer, housekeeping = build_trainer(model, config, corpus, arguments)
    with housekeeping.catching_signals():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return finish(trainer, out)


def find_checkpoint(out: Path, config: TrainConfig) -> Path | None:
    """The newest checkpoint of this run, refusing one that was made with other settings."""
    if out.exists() and not out.is_dir():
        raise UserError(f"run.out {out} is a file; choose a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".writable").touch()
        (out / ".writable").unlink()
    except OSError as error:
        raise UserError(f"run.out {out} cannot be written ({error.strerror}); choose another folder") from error
    found = list_checkpoints(out)
    if not found:
        return None
    if config.run.resume == "never":
        raise UserError(f"{out} already holds checkpoints; choose another run.out, or leave out run.resume to go on")
    check_same_run(found[-1], config)
    return found[-1]


def finished_outcome(checkpoint: Path, config: TrainConfig) -> Outcome | None:
    """How the run ended, if it already has its steps and its model."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    if state["global_step"] < config.run.steps or not (checkpoint.parent / "model").exists():
        return None
    return make_outcome(config, state["global_step"], state["log_history"])


def make_outcome(config: TrainConfig, step: int, history: list[dict[str, Any]]) -> Outcome:
    evaluations = [line for line in history if "eval_bits" in line]
    last = evaluations[-1] if evaluations else {}
    bits, error = last.get("eval_bits"), last.get("eval_standard_error")
    return Outcome(config.run.out, step, step >= config.run.steps, bits, error)


def check_same_run(checkpoint: Path, config: TrainConfig) -> None:
    """Refuse to continue a run under settings that would make it another run."""
    saved = yaml.safe_load((checkpoint / "run.yaml").read_text(encoding="utf-8"))
    free = FREE_ON_RESUME | ({"run.steps"} if config.optim.schedule == "constant" else set())
    for section, values in to_dict(config).items():
        for key, value in values.items():
            before = saved.get(section, {}).get(key, value)
            if before != value and f"{section}.{key}" not in free:
                raise UserError(
                    f"{checkpoint.parent} holds a run with {section}.{key} = {before!r}, not {value!r}; "
                    "give the same settings to resume it, or choose another run.out"
                )


def build_model(kind: Kind, config: TrainConfig, vocab_size: int, tokenizer: Tokenizer | None) -> Model:
    """A new model, from scratch or from the weights of `config.model.init`."""
    transformer = transformer_config(kind, config, vocab_size)
    model: Model
    if kind == "denoiser":
        model = Denoiser(DenoiserConfig(transformer, config.diffusion.schedule), tokenizer)
    else:
        model = Autoregressive(AutoregressiveConfig(transformer), tokenizer)
    if config.model.init:
        start_from(model, config.model.init)
    return model


def transformer_config(kind: Kind, config: TrainConfig, vocab_size: int) -> TransformerConfig:
    overrides = {key: value for key, value in asdict(config.model).items() if key not in ("preset", "init")}
    overrides["time_conditioning"] &= kind == "denoiser"
    return make_transformer_config(config.model.preset, vocab_size, config.data.length, **overrides)


def start_from(model: Model, name: str) -> None:
    """Copy the weights of another model of the same shape; one without time may start one with it."""
    source = load_model(name)
    if source.tokenizer and model.tokenizer and source.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise UserError(f"model.init {name} uses another tokenizer than the data; choose a model with the same one")
    weights, own = source.transformer.state_dict(), model.transformer.state_dict()
    for key, value in weights.items():
        if key not in own or own[key].shape != value.shape:
            raise UserError(f"model.init {name} has another shape ({key}: {tuple(value.shape)}); give the same preset")
    model.transformer.load_state_dict(own | weights)


def make_arguments(config: TrainConfig) -> Any:
    """Our settings in the Trainer's words. Logging, saving and evaluation stay ours."""
    from transformers import TrainingArguments

    run, optim = config.run, config.optim
    is_cpu = run.device == "cpu" or (run.device == "auto" and not torch.cuda.is_available())
    if run.device == "cuda" and not torch.cuda.is_available():
        raise UserError("run.device is cuda, but PyTorch finds no GPU; install a CUDA build or choose cpu")
    if run.shard and "WORLD_SIZE" not in os.environ:
        raise UserError("run.shard splits the model over processes; start it with torchrun --nproc-per-node N -m edlm")
    micro, accumulation = config.accumulation(int(os.environ.get("WORLD_SIZE", "1")))
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
        metric_for_best_model="bits",
        greater_is_better=False,
        dataloader_num_workers=run.data_workers,
        dataloader_pin_memory=not is_cpu,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=["tensorboard"] if run.tensorboard else [],
    )


def precision_of(config: TrainConfig, *, is_cpu: bool) -> str:
    if config.run.precision != "auto":
        return config.run.precision
    return "bfloat16" if not is_cpu and torch.cuda.is_bf16_supported() else "float32"


def build_trainer(
    model: Model, config: TrainConfig, corpus: Corpus, arguments: Any
) -> tuple[DiffusionTrainer, Housekeeping]:
    """The trainer with its batches and callbacks."""
    collate: Any = TextBatches(corpus["train"], config.run.seed)
    if isinstance(model, Denoiser):
        collate = NoisyBatches(collate, model.schedule, model.mask_id, config.run.batch_size, config.diffusion.t_min)
    if config.run.compile:
        model.transformer.compile()
    unit, out = corpus.unit, Path(config.run.out)
    tokens_per_step = config.run.batch_size * config.data.length
    is_shown = sys.stderr.isatty() if config.run.progress is None else config.run.progress
    bar = ProgressBar(unit, tokens_per_step, is_shown=is_shown)
    preview = Preview(bar, out / "previews.jsonl", lambda: preview_texts(model, config.run.preview))
    housekeeping = Housekeeping()
    callbacks = [housekeeping, MetricsFile(out / "metrics.jsonl", unit, tokens_per_step), bar]
    callbacks += [preview] if config.run.preview else []
    validation = corpus["validation"] if config.run.eval_every else None
    trainer = DiffusionTrainer(model, collate, validation, config, arguments, unit=unit, callbacks=callbacks)
    housekeeping.trainer = preview.trainer = trainer
    return trainer, housekeeping


def is_first_process() -> bool:
    """Under torchrun, whether this process is the one that speaks."""
    return int(os.environ.get("RANK", "0")) == 0


def preview_texts(model: Model, num: int) -> list[str]:
    return [sample.text for sample in generate(model, num, PREVIEW)]


def finish(trainer: DiffusionTrainer, out: Path) -> Outcome:
    """If the run came to its end, leave its averaged weights in `out/model`."""
    outcome = make_outcome(trainer.config, trainer.state.global_step, trainer.state.log_history)
    if outcome.is_finished:
        with trainer.averaged():
            weights = model_state(trainer.bare)
        if trainer.args.should_save:
            with atomic_folder(out / "model") as folder:
                trainer.bare.save_folder(folder, weights)
                write_run(folder, trainer.config)
    return outcome
