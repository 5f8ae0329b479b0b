"""The Hugging Face Trainer with our tasks, moving average, honest validation and safe checkpoints."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainingArguments

from edlm._version import __version__
from edlm.config import to_dict
from edlm.errors import UserError
from edlm.evaluation import choose_blocks
from edlm.memory import whole_passes
from edlm.randomness import make_generator
from edlm.training import checkpoint as ckpt
from edlm.training.batches import Rows
from edlm.training.config import EnergyTrainConfig, TrainConfig
from edlm.training.ema import MovingAverage
from edlm.training.optimizer import make_optimizer
from edlm.training.tasks import Model, Task, gather

Tensors = dict[str, Tensor]
RunSettings = TrainConfig | EnergyTrainConfig


class Objective(nn.Module):
    """A task's model and loss as one module, so that DDP around it sees one forward pass."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self.loss = task.loss

    def forward(self, batch: Tensors) -> Tensor:
        return self.loss(batch)


def shard(model: Model, device_type: str) -> None:
    """Split weights, and with them gradients and optimizer state, over all processes (FSDP2), block by block."""
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    for block in model.transformer.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)  # the outermost would else stay whole after validation
    for name in ("next_log_probs", "hidden"):  # ways into the weights besides a plain call
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)


class DiffusionTrainer(Trainer):
    """Trains a model on rows 0, 1, 2, ... of a run; every step is a function of the configuration and its number."""

    def __init__(
        self, task: Task, num_validation: int, config: RunSettings, arguments: TrainingArguments, callbacks: list[Any]
    ) -> None:
        super().__init__(
            Objective(task),
            arguments,
            train_dataset=Rows(config.run.steps * config.run.batch_size),
            eval_dataset=Rows(num_validation),
            data_collator=task.collate,
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)  # our progress bar and metrics file say more
        self.task, self.config, self.bare = task, config, task.model
        self.history: list[dict[str, Any]] = []
        self.average: MovingAverage | None = None
        self.loaded_average: Tensors | None = None
        if config.run.shard:
            shard(self.bare, self.args.device.type)
            self.is_distributed_loading_by_transformers = True  # the Trainer's word for: do not wrap it in DDP

    # --- what a step is

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        self.optimizer = make_optimizer(self.bare, self.config.optim)
        return self.optimizer

    def compute_loss(self, model: Any, inputs: Tensors, *_: Any, **__: Any) -> Tensor:
        """Mean loss of a micro-batch. Dropout is seeded by its first row, so that it too survives a restart."""
        torch.manual_seed(make_generator(self.config.run.seed, int(inputs["row"][0]), 1).initial_seed())
        loss = model(inputs).mean()
        if not torch.isfinite(loss):
            step = self.state.global_step + 1
            raise UserError(
                f"the loss is {loss.item()} at step {step}; stopped before the optimizer step. "
                "Lower optim.learning_rate or raise optim.warmup_steps, and start from the last checkpoint"
            )
        return loss

    def start_average(self) -> None:
        """Begin the moving average at the weights as they are, or at those of the checkpoint being resumed."""
        if self.config.optim.ema:
            self.average = MovingAverage(self.bare, self.config.optim.ema)
            if self.loaded_average is not None:
                self.average.load(self.loaded_average)
                self.loaded_average = None

    def update_average(self) -> None:
        """Take the weights of the step just made into the moving average."""
        if self.average is not None:
            self.average.update(self.state.global_step)

    def averaged(self) -> AbstractContextManager[None]:
        """A context in which the model has the weights that are evaluated and saved."""
        return self.average.applied() if self.average is not None else nullcontext()

    # --- validation

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validate the averaged weights; every process takes a share of the blocks."""
        assert isinstance(self.eval_dataset, Rows)
        index = choose_blocks(len(self.eval_dataset), self.config.run.eval_blocks)
        # Sharded processes must make the same number of passes: the list is filled up, and the surplus dropped below.
        filled = index + index[:1] * (-len(index) % self.args.world_size)
        mine = filled[self.args.process_index :: self.args.world_size]
        with self.evaluating():
            values = self.task.validate(mine, self.args.per_device_train_batch_size, self.args.device)
        summary = self.task.summarise(gather(values, self.args.world_size)[: len(index)])
        metrics = {f"eval_{name}": value for name, value in summary.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Averaged weights, eval mode and the precision of training inside; train mode after."""
        self.bare.eval()
        cut = whole_passes() if self.config.run.shard else nullcontext()
        with self.averaged(), self.accelerator.autocast(), cut:
            yield
        self.bare.train()

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        is_best = super()._determine_best_metric(metrics, trial)
        if is_best:  # the best weights are worth a checkpoint of their own
            self.control.should_save = True
        return is_best

    # --- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Gather the state from all processes; the first one writes it."""
        weights = ckpt.model_state(self.bare)
        with self.averaged():
            averaged = ckpt.model_state(self.bare)
        moments, numbers = ckpt.optimizer_state(self.bare, self._plain_optimizer())
        numbers["learning_rate_step"] = self.state.global_step
        if self.args.should_save:
            self._write_checkpoint(averaged, weights, moments, numbers)
        if self.args.world_size > 1:
            dist.barrier()

    def _write_checkpoint(self, averaged: Tensors, weights: Tensors, moments: Tensors, numbers: dict[str, Any]) -> None:
        out = Path(self.config.run.out)
        with ckpt.atomic_folder(ckpt.checkpoint_path(out, self.state.global_step)) as folder:
            self.bare.save_folder(folder, averaged)
            ckpt.write_training_state(folder, weights, moments, numbers)
            self.state.save_to_json(str(folder / "trainer_state.json"))
            write_run(folder, self.config, self.history)
        ckpt.rotate(out, self.config.run.keep_last, self.state.best_global_step)

    def _plain_optimizer(self) -> torch.optim.Optimizer:
        optimizer: Any = self.optimizer
        return getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        weights, _, _ = ckpt.read_training_state(folder)
        ckpt.load_model_state(self.bare, weights)
        if self.config.optim.ema:
            self.loaded_average = ckpt.read_weights(folder / "model.safetensors")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        _, moments, numbers = ckpt.read_training_state(Path(checkpoint))
        step = numbers["learning_rate_step"]
        optimizer = self._plain_optimizer()
        ckpt.load_optimizer_state(self.bare, optimizer, moments, numbers)
        scheduler: Any = self.lr_scheduler
        state = scheduler.state_dict()
        state.update(last_epoch=step, _step_count=step + 1, _last_lr=[g["lr"] for g in optimizer.param_groups])
        scheduler.load_state_dict(state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing to restore: all randomness is a function of the row number."""


def write_run(folder: Path, config: RunSettings, history: Sequence[dict[str, Any]] = ()) -> None:
    """The full configuration, the version that ran it and the runs before it, beside the weights."""
    about = {"edlm_version": __version__} | ({"history": list(history)} if history else {})
    text = yaml.safe_dump(about | to_dict(config), sort_keys=False)
    (folder / "run.yaml").write_text(text, encoding="utf-8")
