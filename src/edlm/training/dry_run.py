"""A rehearsal of a training run: everything is built, one small step is taken, the cost of the rest is estimated."""

import time
from pathlib import Path
from typing import Any

import torch

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.transformer import TransformerConfig
from edlm.randomness import make_generator
from edlm.tokenizer_files import load_tokenizer
from edlm.training.build import Kind, build_model
from edlm.training.config import TrainConfig
from edlm.training.optimizer import make_optimizer
from edlm.training.run import make_arguments
from edlm.training.tasks import LanguageModelTask


def rehearse(kind: Kind, config: TrainConfig) -> dict[str, Any]:
    """Sizes, memory and time of a run, from one real step on random tokens. The corpus is not read."""
    arguments = make_arguments(config)
    model = build_model(kind, config, vocabulary(config.data.tokenizer), None).to(arguments.device)
    micro, accumulation = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    seconds, loss = time_step(model, config)
    tokens_per_second = config.data.length / seconds
    tokens = config.run.steps * config.run.batch_size * config.data.length
    parameters = sum(p.numel() for p in model.parameters())
    return {
        "model": f"{model.model_type}, {parameters:,} parameters, {model.vocab_size:,} tokens",
        "batch": f"{config.run.batch_size} x {config.data.length} tokens = {micro} x {arguments.world_size} processes "
        f"x {accumulation} accumulated",
        "run": f"{config.run.steps:,} steps, {tokens:,} tokens",
        "memory": f"{training_memory(model, config, micro) / 2**30:.1f} GiB per process (estimate)",
        "checkpoint": f"{16 * parameters / 2**30:.2f} GiB each, {config.run.keep_last + 1} kept",
        "loss of one step": f"{loss:.3f} nats per token (uniform guess: {torch.tensor(model.vocab_size).log():.3f})",
        "speed here": f"{tokens_per_second:,.0f} tokens/s on {arguments.device} (one step of one sequence)",
        "time here": f"{tokens / tokens_per_second / 3600 / arguments.world_size:,.1f} hours (estimate)",
        "out": str(Path(config.run.out)),
    }


def vocabulary(spec: str) -> int:
    """Number of tokens, without training the tokenizer if that is still to come."""
    if not spec.startswith("bpe:"):
        return load_tokenizer(spec).vocab_size
    size = spec.removeprefix("bpe:")
    if not size.isdecimal() or int(size) < 257:
        raise UserError(f"tokenizer {spec!r} must be bpe:SIZE with a whole number of at least 257; such as bpe:4096")
    return int(size)


def time_step(model: Denoiser | Autoregressive, config: TrainConfig) -> tuple[float, float]:
    """Seconds and loss of a real training step on one sequence, after a short one to warm up."""
    optimizer = make_optimizer(model, config.optim)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # the weights stay as they are
    task = LanguageModelTask(model, lambda rows: {}, None, "token", config.run.seed)
    for length in (min(32, config.data.length), config.data.length):
        batch = random_batch(model, length, config.run.seed)
        start = time.perf_counter()
        loss = task.loss(batch).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()  # waits for the device
        seconds = time.perf_counter() - start
    return seconds, value


def random_batch(model: Denoiser | Autoregressive, length: int, seed: int) -> dict[str, torch.Tensor]:
    """One sequence of random tokens, half of them masked for a denoiser."""
    device = next(model.parameters()).device
    x0 = torch.randint(model.vocab_size, (1, length), generator=make_generator(seed)).to(device)
    if not isinstance(model, Denoiser):
        return {"x0": x0}
    xt = torch.where(torch.arange(length, device=device) % 2 == 0, model.mask_id, x0)
    return {"x0": x0, "xt": xt, "t": torch.full((1,), 0.5, device=device)}


def training_memory(model: Denoiser | Autoregressive, config: TrainConfig, micro_batch: int) -> float:
    """Bytes: weights, gradients, two moments and the average, plus what the backward pass keeps."""
    size: TransformerConfig = model.config.transformer
    parameters = sum(p.numel() for p in model.parameters())
    per_token = size.num_layers * size.width * (14 + 2 * size.mlp_ratio) + 3 * size.vocab_size
    return 4 * (parameters * (5 if config.optim.ema else 4) + micro_batch * size.length * per_token)
