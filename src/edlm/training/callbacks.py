"""What happens beside the steps: the progress bar, the metrics file, sample previews, and a clean stop on a signal."""

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from tqdm import tqdm
from transformers import TrainerCallback

if TYPE_CHECKING:
    from edlm.training.trainer import DiffusionTrainer


class Housekeeping(TrainerCallback):
    """Keeps the moving average, logs whenever something is saved, and stops cleanly when asked to."""

    def __init__(self) -> None:
        self.trainer: DiffusionTrainer | None = None
        self.stop_signal: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        self.trainer.start_average()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        self.trainer.update_average()
        if self._should_stop(args):
            control.should_save = control.should_training_stop = True
        # A logged loss is a mean since the last line; with a line at each checkpoint a resumed run repeats it exactly.
        if control.should_save or control.should_evaluate:
            control.should_log = True

    def _should_stop(self, args: Any) -> bool:
        if args.world_size == 1:
            return self.stop_signal is not None
        # The signal reaches the processes at different steps; they must agree on the one to stop at.
        flag = torch.tensor(float(self.stop_signal is not None), device=args.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    @contextmanager
    def catching_signals(self) -> Iterator[None]:
        """SIGTERM and the first Ctrl-C end the run after the current step, with a checkpoint."""

        def handle(number: int, _: Any) -> None:
            if self.stop_signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop_signal = number

        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class MetricsFile(TrainerCallback):
    """metrics.jsonl: one line per logged step. On resume, lines after the checkpoint are dropped and made again."""

    def __init__(self, path: Path, unit: str, tokens_per_step: int) -> None:
        self.path, self.unit, self.tokens_per_step = path, unit, tokens_per_step

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begin, self.first_step = time.monotonic(), state.global_step
        if args.should_save:
            forget_after(self.path, state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        logs = more["logs"]
        if not args.should_save or not ({"loss", "eval_standard_error"} & logs.keys()):
            return
        line: dict[str, Any] = {"step": state.global_step}
        if "loss" in logs:
            seconds = time.monotonic() - self.begin
            line |= {
                **loss_of(self.unit, logs["loss"]),
                "unit": self.unit,
                "tokens": state.global_step * self.tokens_per_step,
            }
            line |= {"learning_rate": logs["learning_rate"], "grad_norm": logs.get("grad_norm")}
            line["tokens_per_second"] = (state.global_step - self.first_step) * self.tokens_per_step / seconds
        line |= {key: value for key, value in logs.items() if key.startswith("eval_")}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def loss_of(unit: str, nats: float) -> dict[str, float]:
    """A likelihood loss is told in bits per character or token, a contrastive one in nats per sequence."""
    return {"loss": nats} if unit == "sequence" else {"bits": nats / math.log(2)}


def describe(values: dict[str, float], unit: str) -> str:
    """A loss as a person reads it."""
    bits = values.get("bits")
    if bits is None:
        return f"{values['loss']:.4f} nats"
    return f"{bits:.3f} bits/char" if unit == "character" else f"PPL {2 ** min(bits, 64):.2f} ({bits:.3f} bits)"


def forget_after(path: Path, step: int) -> None:
    """Drop the lines that a run wrote after the checkpoint it resumes from; it will write them again."""
    kept = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(json.JSONDecodeError):  # the line being written when the process was killed
            if json.loads(text)["step"] <= step:
                kept.append(text + "\n")
    path.write_text("".join(kept), encoding="utf-8")


class ProgressBar(TrainerCallback):
    """Steps done, time left, tokens per second, and the loss in bits per character (perplexity per token)."""

    def __init__(self, unit: str, tokens_per_step: int, *, is_shown: bool) -> None:
        self.unit, self.tokens_per_step, self.is_shown = unit, tokens_per_step, is_shown
        self.bar: tqdm[Any] | None = None
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        disable = not self.is_shown or not args.should_save
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", disable=disable, smoothing=0.1)
        self.begin, self.first_step = time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.bar is not None
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        logs = more["logs"]
        if self.bar is None:
            return
        if "loss" in logs:
            rate = (state.global_step - self.first_step) * self.tokens_per_step / (time.monotonic() - self.begin)
            self.shown |= {"train": describe(loss_of(self.unit, logs["loss"]), self.unit), "tokens/s": f"{rate:,.0f}"}
        if "eval_standard_error" in logs:
            values = {key.removeprefix("eval_"): value for key, value in logs.items()}
            self.shown["valid"] = f"{describe(values, self.unit)} ± {values['standard_error']:.3f}"
        self.bar.set_postfix(self.shown, refresh=False)

    def say(self, text: str) -> None:
        """A line above the bar."""
        if self.bar is not None and not self.bar.disable:
            self.bar.write(text)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()


class Preview(TrainerCallback):
    """After each validation, a few short samples of the averaged weights."""

    def __init__(self, bar: ProgressBar, path: Path, draw: Callable[[], list[str]]) -> None:
        self.bar, self.path, self.draw = bar, path, draw
        self.trainer: DiffusionTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.should_save:
            forget_after(self.path, state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        with self.trainer.evaluating():
            texts = self.draw()
        if not args.should_save:
            return
        with self.path.open("a", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps({"step": state.global_step, "text": text}, ensure_ascii=False) + "\n")
                self.bar.say(f"step {state.global_step}: {text}")
