"""What sampling costs: against the plain algorithm, as the work grows, and against the arithmetic on paper.

Weights are random: they do not change the work. Where two samplers are compared they take turns in one process; memory
is measured in a process of its own for each, whose peak is then that sampler's alone.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edlm.benchmarks.cost import Setting, Speed, network_work, projection_work, work
from edlm.benchmarks.likelihood import peak_megabytes
from edlm.errors import UserError

QUICK = Setting(num_layers=2, width=64, vocab_size=2000, length=64, batch_size=1, steps=4)
TEXT8 = Setting(num_layers=6, width=256, vocab_size=27, length=256, batch_size=1, steps=64)
SMALL = Setting(num_layers=12, width=768, vocab_size=50_257, length=1024, batch_size=1, steps=4)
HEAD_WIDTH = 64


@dataclass(frozen=True)
class Scale:
    """What is measured at one size of networks."""

    compared: Sequence[Setting]
    """Our sampler and the plain one take turns."""
    lean: Sequence[Setting]
    """Ours alone, for its memory: the plain one would not fit."""
    by_step: Setting
    """Ours alone, step by step."""
    curves: Mapping[str, Sequence[Setting]]
    """Ours alone, as one thing grows."""


def growing(base: Setting, **values: Sequence[int]) -> dict[str, list[Setting]]:
    return {name: [replace(base, **{name: value}) for value in some] for name, some in values.items()}  # type: ignore[arg-type]


SCALES = {
    "quick": Scale(
        [QUICK, replace(QUICK, candidates=4)],
        [replace(QUICK, steps=1, candidates=k) for k in (1, 16, 64)],
        replace(QUICK, steps=4, candidates=4),
        growing(replace(QUICK, candidates=2), steps=[2, 4, 8], candidates=[2, 4, 8]),
    ),
    "text8": Scale(
        [replace(TEXT8, candidates=2), replace(TEXT8, candidates=8), replace(TEXT8, candidates=2, window=0.2), TEXT8],
        [replace(TEXT8, steps=4, candidates=k) for k in (1, 16, 256)],
        replace(TEXT8, steps=16, candidates=8),
        growing(
            replace(TEXT8, steps=16, candidates=4),
            steps=[4, 16, 64, 256, 1024], candidates=[1, 2, 4, 8, 16, 32], length=[64, 128, 256, 512, 1024],
            vocab_size=[27, 256, 2048, 16_384, 50_257], batch_size=[1, 2, 4, 8, 16],
        ),
    ),
    "small": Scale(
        [
            SMALL, replace(SMALL, candidates=2), replace(SMALL, steps=2, candidates=8),
            replace(SMALL, steps=1, candidates=16),
        ],
        [replace(SMALL, steps=1, candidates=k) for k in (1, 16, 256)],
        replace(SMALL, steps=8, candidates=4),
        growing(replace(SMALL, steps=2, candidates=2), steps=[1, 2, 4, 8], candidates=[1, 2, 4, 8]),
    ),
}  # fmt: skip


def bench_sampling(scale: str, *, repeats: int, curves: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """(section, row) of everything at one scale, as it is measured."""
    if scale not in SCALES:
        raise UserError(f"--scale must be one of {', '.join(SCALES)}, got {scale!r}")
    plan = SCALES[scale]
    speed = fresh(plan.compared[0], "speed", repeats)
    yield "machine", speed
    for setting in plan.compared:
        row = fresh(setting, "both", repeats)
        for side in ("ours", "plain"):
            row |= {f"{side}_megabytes": fresh(setting, side, 0)["peak_megabytes"]}
        yield "compared", row | on_paper(setting, speed, row["ours"])
    yield "causal", fresh(plan.compared[0], "causal", repeats)
    yield "steps", fresh(plan.by_step, "steps", repeats)
    for setting in plan.lean:
        yield "memory", fresh(setting, "ours", 0)
    for name, settings in plan.curves.items() if curves else ():
        for setting in settings:
            row = fresh(setting, "ours", repeats)
            yield (
                "curves",
                {"over": name, "value": getattr(setting, name)} | row | on_paper(setting, speed, row["ours"]),
            )


def on_paper(setting: Setting, speed: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The cost model's prediction, and which share of the processor's matrix speed the needed arithmetic reached."""
    needed = work(setting)
    machine = Speed(speed["network"], speed["vocabulary"], speed["call"])
    return {"predicted": machine.seconds(needed), "share_of_peak": needed.total / seconds / speed["peak"]}


def fresh(setting: Setting, what: str, repeats: int) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "edlm.benchmarks.sampling", json.dumps(asdict(setting)), what, str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}: out of memory?"])[-1]
        raise UserError(f"the benchmark of {setting.label} failed ({reason}); try a smaller --scale")
    return json.loads(done.stdout)


# --- inside the fresh process


def run(setting: Setting, what: str, repeats: int) -> dict[str, Any]:
    """`what` is ours, plain, both in turns, or speed."""
    import torch

    denoiser, causal = random_models(setting)
    if what == "speed":
        return measure_speed(setting, denoiser, repeats) | {"threads": torch.get_num_threads()}
    if what == "causal":
        from edlm.benchmarks.generate import bench_generate

        return bench_generate(causal, batch_size=setting.batch_size, repeats=repeats)
    if what == "steps":
        return time_steps(setting, denoiser, causal, repeats)
    sides = {name: sampler_of(name, setting, denoiser, causal) for name in ("ours", "plain") if what in (name, "both")}
    if repeats == 0:
        for draw in sides.values():
            draw(0)
        return {"setting": setting.label, "candidates": setting.candidates, "peak_megabytes": peak_megabytes()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for seed in range(repeats + 1):
        for name, draw in sides.items():
            start = time.perf_counter()
            draw(seed)
            seconds[name].append(time.perf_counter() - start)
    timed = {name: values[1:] for name, values in seconds.items()}  # the first turn warms up
    row: dict[str, Any] = {"setting": setting.label, **{name: statistics.median(v) for name, v in timed.items()}}
    row |= {f"{name}_range": [min(v), max(v)] for name, v in timed.items()}
    if what == "both":
        ratios = [plain / ours for plain, ours in zip(timed["plain"], timed["ours"], strict=True)]
        row |= {"ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]}
    return row


def time_steps(setting: Setting, denoiser: Any, causal: Any, repeats: int) -> dict[str, Any]:
    """The median seconds of each step, beside the share of tokens that is masked when it begins."""
    from edlm import sampler
    from edlm.schedule import uniform_times

    times, importance = uniform_times(setting.steps), importance_of(setting, causal)
    seconds: list[list[float]] = []
    for seed in range(repeats + 1):
        state, row, start = start_of(setting, denoiser, seed), [], time.perf_counter()
        for _ in sampler.trajectory(state, denoiser, times, importance=importance):
            row.append(time.perf_counter() - start)
            start = time.perf_counter()
        seconds.append(row)
    typical = [statistics.median(column) for column in zip(*seconds[1:], strict=True)]
    return {"setting": setting.label, "masked": times[:-1].tolist(), "seconds": typical}


def start_of(setting: Setting, denoiser: Any, seed: int) -> Any:
    from edlm import sampler
    from edlm.randomness import make_streams

    return sampler.init(setting.length, make_streams(seed, range(setting.batch_size)), denoiser.mask_id)


def importance_of(setting: Setting, causal: Any) -> Any:
    from edlm.energy import AutoregressiveEnergy, CarryOverEnergy
    from edlm.importance import ImportanceSampling

    energy = (CarryOverEnergy if setting.energy == "coar" else AutoregressiveEnergy)(causal)
    return ImportanceSampling(energy, setting.candidates, setting.window) if setting.candidates > 1 else None


def sampler_of(name: str, setting: Setting, denoiser: Any, causal: Any) -> Callable[[int], Any]:
    """Draws one batch from a seed: with our sampler or with the plain one."""
    from edlm import sampler
    from edlm.benchmarks import plain
    from edlm.randomness import make_generator
    from edlm.schedule import uniform_times

    def draw_plain(seed: int) -> Any:
        return plain.sample(
            denoiser, causal, batch_size=setting.batch_size, length=setting.length, steps=setting.steps,
            candidates=setting.candidates, window=setting.window, carry_over=setting.energy == "coar",
            generator=make_generator(seed),
        )  # fmt: skip

    times, importance = uniform_times(setting.steps), importance_of(setting, causal)

    def draw_ours(seed: int) -> Any:
        return sampler.sample(start_of(setting, denoiser, seed), denoiser, times, importance=importance)

    return draw_ours if name == "ours" else draw_plain


def measure_speed(setting: Setting, denoiser: Any, repeats: int) -> dict[str, Any]:
    """Operations per second of a large matrix product, of the network and of the projection; seconds of a bare call."""
    import torch

    from edlm.models.denoiser import predict

    square = torch.randn(2048, 2048)
    text = torch.full((1, setting.length), denoiser.mask_id)
    uniform = torch.zeros(setting.length, 1, dtype=torch.float64)

    def typical(function: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(max(3, repeats) + 1):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:])

    with torch.inference_mode():
        peak = typical(lambda: square @ square)
        short = typical(lambda: denoiser.transformer(text[:, :1]))
        network = typical(lambda: denoiser.transformer(text)) - short
        both = typical(lambda: predict(denoiser, text).draw(uniform)) - network - short
    return {
        "peak": 2 * 2048**3 / peak,
        "network": network_work(setting, setting.length) / network,
        "vocabulary": projection_work(setting, setting.length) / max(both, 1e-9),
        "call": short,
    }


def random_models(setting: Setting) -> Any:
    """A denoiser and a causal model with random weights."""
    from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
    from edlm.models.denoiser import Denoiser, DenoiserConfig
    from edlm.models.transformer import TransformerConfig

    size = TransformerConfig(
        vocab_size=setting.vocab_size, length=setting.length, num_layers=setting.num_layers, width=setting.width,
        num_heads=max(1, setting.width // HEAD_WIDTH), dropout=0.0,
    )  # fmt: skip
    return Denoiser(DenoiserConfig(size)).eval(), Autoregressive(AutoregressiveConfig(size)).eval()


if __name__ == "__main__":
    print(json.dumps(run(Setting(**json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3]))))
