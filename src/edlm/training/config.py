"""What a training run is told. The docstring under a field is its help text on the command line."""

from dataclasses import dataclass, field
from typing import Literal

from edlm.data.config import DataConfig
from edlm.errors import UserError


def check_times(t_min: float, t_max: float, t_power: float) -> None:
    if not 0 <= t_min < t_max <= 1:
        raise UserError(f"times must satisfy 0 <= t_min < t_max <= 1, got t_min {t_min} and t_max {t_max}")
    if not 0 < t_power < float("inf"):
        raise UserError(f"t_power must be positive, got {t_power}")


@dataclass(frozen=True)
class ModelConfig:
    """Size and shape of the network; fields left out take the preset's value."""

    preset: str = "nano"
    """nano, tiny, small (the paper's) or medium."""
    num_layers: int | None = None
    """Number of blocks, instead of the preset's."""
    num_heads: int | None = None
    """Attention heads, instead of the preset's."""
    width: int | None = None
    """Width of the hidden states, instead of the preset's."""
    dropout: float = 0.1
    """Chance that a channel of a block's output is dropped in training."""
    time_conditioning: bool = False
    """Tell the denoiser the time by adaptive layer norm. Ignored by the causal model."""
    init: str = ""
    """Model folder (or hub name) whose weights training starts from; denoiser and causal model can start each other."""


@dataclass(frozen=True)
class DiffusionConfig:
    """The noise a denoiser is trained with. Not used by the causal model."""

    schedule: str = "log-linear"
    """Noise schedule: log-linear, linear, cosine or polynomial."""
    t_min: float = 0.001
    """Training times are drawn from (t_min, 1]. Evaluation always covers all times."""
    t_power: float = 1.0
    """Times are t_min + (1 - t_min) u**t_power with u uniform; the loss is weighted back, so only its noise changes."""

    def __post_init__(self) -> None:
        check_times(self.t_min, 1.0, self.t_power)


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and its learning rate."""

    name: Literal["adamw", "muon"] = "adamw"
    """muon: orthogonalised momentum for the matrices of the blocks, AdamW for the rest, at the same learning rate."""
    learning_rate: float = 3e-4
    """Peak learning rate."""
    schedule: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after warm-up; cosine ends at zero."""
    warmup_steps: int = 2500
    """Steps of linear warm-up."""
    weight_decay: float = 0.0
    """Weight decay, on matrices only."""
    beta1: float = 0.9
    """Decay of Adam's first moment."""
    beta2: float = 0.999
    """Decay of Adam's second moment."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 turns clipping off."""
    ema: float = 0.9999
    """Decay of the moving average of the weights that is evaluated and saved; 0 turns it off."""

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise UserError(f"optim.learning_rate must be positive, got {self.learning_rate}")
        for name in ("warmup_steps", "weight_decay", "clip"):
            if not getattr(self, name) >= 0:
                raise UserError(f"optim.{name} must not be negative, got {getattr(self, name)}")
        for name in ("beta1", "beta2", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"optim.{name} must be at least 0 and below 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class RunConfig:
    """How long, how often, and where to."""

    out: str = "runs/denoiser"
    """Folder of the run. If it holds a checkpoint of the same run, training resumes from it."""
    steps: int = 1000
    """Optimizer steps."""
    batch_size: int = 512
    """Sequences per optimizer step, over all processes."""
    micro_batch_size: int = 0
    """Sequences per forward pass of one process; 0 means all of the batch at once. The rest is accumulated."""
    seed: int = 0
    """Seeds initial weights, data order, noise and dropout."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl."""
    eval_every: int = 500
    """Steps between validations; 0 turns them off."""
    eval_blocks: int = 1024
    """Blocks of the validation split that are scored; 0 means all."""
    save_every: int = 500
    """Steps between checkpoints."""
    keep_last: int = 2
    """Checkpoints kept, besides the best one."""
    preview: int = 1
    """Sample texts shown at each validation."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 autocast on GPUs that have it, float32 on CPUs."""
    compile: bool = False
    """Compile the network with torch.compile."""
    shard: bool = False
    """Shard weights, gradients and optimizer state over the processes (FSDP2) instead of copying them (DDP)."""
    data_workers: int = 0
    """Processes that prepare batches ahead of time."""
    tensorboard: bool = False
    """Also write TensorBoard files."""
    resume: Literal["auto", "never"] = "auto"
    """never: refuse a folder that already holds checkpoints, instead of resuming."""
    progress: bool | None = None
    """Progress bar; by default only in a terminal."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "save_every", "keep_last"):
            if getattr(self, name) < 1:
                raise UserError(f"run.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("micro_batch_size", "eval_every", "eval_blocks", "preview", "data_workers"):
            if getattr(self, name) < 0:
                raise UserError(f"run.{name} must not be negative, got {getattr(self, name)}")

    def accumulation(self, world_size: int) -> tuple[int, int]:
        """(sequences per forward pass, passes per optimizer step) of each of `world_size` processes."""
        batch, micro = self.batch_size, self.micro_batch_size
        if batch % world_size:
            raise UserError(f"run.batch_size must be a multiple of the {world_size} processes, got {batch}")
        micro = micro or batch // world_size
        if batch % (micro * world_size):
            raise UserError(
                f"run.batch_size must be a multiple of run.micro_batch_size times processes, "
                f"got {batch} and {micro} x {world_size}"
            )
        return micro, batch // (micro * world_size)


@dataclass(frozen=True)
class TrainConfig:
    """Everything about a training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    diffusion: DiffusionConfig = field(default_factory=DiffusionConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True)
class ContrastConfig:
    """Noise-contrastive training of an energy."""

    target: Literal["clean", "step"] = "clean"
    """What the energy judges: completions of all masked tokens, or only what one step reveals (a step energy)."""
    negatives: int = 4
    """Completions drawn from the denoiser per true one; one denoiser pass serves all."""
    loss: Literal["auto", "binary", "ranking"] = "auto"
    """binary: true or drawn, each completion by itself; ranking: which of 1 + n is true. auto: ranking for ar:DIR and for steps, else binary."""  # noqa: E501
    inputs: Literal["marked", "joined"] = "marked"
    """How the network sees what was masked: a mark on those positions, or both embeddings joined as in the paper."""
    pooling: Literal["mean", "sum"] = "mean"
    """Mean of the last hidden states as in the paper, or a scaled sum over the masked ones."""
    t_min: float = 0.0
    """Smallest time trained on."""
    t_max: float = 1.0
    """Largest time trained on."""
    t_power: float = 1.0
    """Times are t_min + (t_max - t_min) u**t_power with u uniform: below 1 favours late (noisy) times."""
    t_weight: float = 0.0
    """The loss of a sequence is multiplied by t**t_weight."""

    def __post_init__(self) -> None:
        check_times(self.t_min, self.t_max, self.t_power)
        if self.negatives < 1:
            raise UserError(f"nce.negatives must be at least 1, got {self.negatives}")


@dataclass(frozen=True)
class EnergyTrainConfig:
    """Everything about the training of an energy."""

    denoiser: str = ""
    """Folder or hub name of the denoiser whose completions are the negatives; it is not changed."""
    init: str = ""
    """Where the energy starts: empty for the denoiser's transformer, or ar:DIR or coar:DIR to fine-tune that energy."""
    data: DataConfig | None = None
    """Training text; by default what the denoiser was trained on. Tokenizer and length are always the denoiser's."""
    nce: ContrastConfig = field(default_factory=ContrastConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=lambda: RunConfig(out="runs/energy"))
