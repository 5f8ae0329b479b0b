"""Benchmarks that compare like with like: both sides take turns in one process; ratios are of neighbouring turns."""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from edlm.benchmarks.isolated import arguments_of, isolated, peak_megabytes
from edlm.data import DataConfig
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.plots import COLOURS, GREY, figure, save
from edlm.randomness import make_generator
from edlm.tokenization import CharacterTokenizer
from edlm.training.build import build_model, language_model_task
from edlm.training.config import ModelConfig, OptimConfig, RunConfig, TrainConfig
from edlm.training.run import build_trainer, make_arguments

SIDES = ("ours", "bare")


class RandomText:
    """A corpus of random characters: speed does not depend on what the text says."""

    unit = "character"
    tokenizer = CharacterTokenizer()

    def __init__(self, length: int, num_blocks: int = 4096) -> None:
        self.length = length
        self.tokens = np.random.default_rng(0).integers(0, 27, (num_blocks, length))

    def __getitem__(self, split: str) -> "RandomText":
        return self

    def __len__(self) -> int:
        return len(self.tokens)

    def get(self, index: np.ndarray) -> np.ndarray:
        return self.tokens[index]


class TakingTurns(TrainerCallback):
    """Every `steps` steps of the trainer, runs as many of the bare loop and notes both times."""

    def __init__(self, steps: int, bare_step: Callable[[], None]) -> None:
        self.steps, self.bare_step = steps, bare_step
        self.ours: list[float] = []
        self.bare: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:
        if state.global_step % self.steps:
            return
        middle = time.perf_counter()
        for _ in range(self.steps):
            self.bare_step()
        self.ours.append(middle - self.start)
        self.bare.append(time.perf_counter() - middle)
        self.start = time.perf_counter()


def bench_training(
    kind: str, *, preset: str, batch_size: int, length: int, steps: int, repeats: int
) -> dict[str, Any]:  # fmt: skip
    """Tokens per second of `edlm train` and of a bare PyTorch loop, and our overhead. The first turn warms up.

    Memory is measured in a process of its own for each.
    """
    if kind not in ("denoiser", "ar"):
        raise UserError(f"--kind must be denoiser or ar, got {kind!r}")
    turns = take_turns(kind, preset, batch_size, length, steps, repeats)
    tokens = steps * batch_size * length
    ratios = [ours / bare for ours, bare in zip(turns.ours[1:], turns.bare[1:], strict=True)]
    size = {"kind": kind, "preset": preset, "batch_size": batch_size, "length": length}
    peaks = {side: isolated("edlm.benchmarks.training", side, side, size)["peak_megabytes"] for side in SIDES}
    return {
        "kind": kind,
        "preset": preset,
        "batch": f"{batch_size} x {length} tokens",
        "turns": f"{repeats} of {steps} steps each",
        "ours, tokens/s": round(tokens / statistics.median(turns.ours[1:])),
        "bare, tokens/s": round(tokens / statistics.median(turns.bare[1:])),
        "overhead, median": f"{statistics.median(ratios) - 1:+.1%}",
        "overhead, range": f"{min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}",
        "peak memory": ", ".join(f"{side} {megabytes:.0f} MB" for side, megabytes in peaks.items()),
        "threads": torch.get_num_threads(),
        "ratios": ratios,
    }


def take_turns(kind: str, preset: str, batch_size: int, length: int, steps: int, repeats: int) -> TakingTurns:
    """Our trainer and the bare loop, so many steps of each at a time; the first turn warms up."""
    with tempfile.TemporaryDirectory() as out:
        config = config_of(out, preset, batch_size, length, steps * (repeats + 1))
        turns = TakingTurns(steps, bare_loop(random_model(kind, config), batch_size, length))
        trainer = trainer_of(kind, config)
        trainer.add_callback(turns)
        trainer.train()
    return turns


def run_alone(side: str, kind: str, preset: str, batch_size: int, length: int) -> dict[str, Any]:
    """The peak memory of a few steps of one side."""
    with tempfile.TemporaryDirectory() as out:
        config = config_of(out, preset, batch_size, length, 2)
        if side == "ours":
            trainer_of(kind, config).train()
        else:
            step = bare_loop(random_model(kind, config), batch_size, length)
            step()
            step()
    return {"peak_megabytes": peak_megabytes()}


def config_of(out: str, preset: str, batch_size: int, length: int, steps: int) -> TrainConfig:
    """A run that does nothing beside its steps."""
    run = RunConfig(out=out, steps=steps, batch_size=batch_size, eval_every=0, save_every=10 * steps, preview=0)
    data, optim = DataConfig(length=length), OptimConfig(warmup_steps=1)
    return TrainConfig(data, ModelConfig(preset=preset), optim=optim, run=run)


def random_model(kind: str, config: TrainConfig) -> Denoiser | Autoregressive:
    return build_model(kind, config, 27, None)  # type: ignore[arg-type]


def trainer_of(kind: str, config: TrainConfig) -> Any:
    corpus: Any = RandomText(config.data.length)
    task = language_model_task(random_model(kind, config), config, corpus)
    trainer, _ = build_trainer(task, config, corpus, make_arguments(config))
    return trainer


def bare_loop(model: Denoiser | Autoregressive, batch_size: int, length: int) -> Callable[[], None]:
    """One step of the plainest PyTorch training loop around the same transformer, with fresh noise and AdamW."""
    network, mask_id = model.transformer.train(), model.config.transformer.mask_id
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4)
    generator = make_generator(0)
    x0 = torch.randint(model.vocab_size, (batch_size, length), generator=generator)
    is_causal = network.causal

    def step() -> None:
        if is_causal:
            inputs = torch.cat([torch.full_like(x0[:, :1], mask_id), x0[:, :-1]], dim=1)
            logits = network.head(network(inputs))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x0.flatten())
        else:
            t = torch.rand(batch_size, 1, generator=generator)
            is_masked = torch.rand(batch_size, length, generator=generator) < t
            logits = network.head(network(torch.where(is_masked, mask_id, x0))[is_masked])
            nll = torch.nn.functional.cross_entropy(logits, x0[is_masked], reduction="none")
            loss = (nll / t.expand_as(x0)[is_masked]).sum() / x0.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def draw_turns(ratios: Sequence[float], path: Path) -> None:
    """The overhead of every turn."""
    with figure(width=5.4, height=3.2) as (made, (ax,)):
        ax.bar(range(1, len(ratios) + 1), [100 * (ratio - 1) for ratio in ratios], color=COLOURS[0])
        ax.axhline(0, color=GREY)
        ax.set(xlabel="turn", ylabel="overhead, %")
        save(made, path)


if __name__ == "__main__":
    side, size = arguments_of(sys.argv[1:])
    print(json.dumps(run_alone(side, **size)))
