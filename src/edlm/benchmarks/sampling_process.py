"""The sampling benchmark inside a process of its own: one setting, timed or weighed.

Weights are random: they do not change the work. Samplers that are compared take turns, after a short one to warm up.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from edlm.benchmarks.cost import Setting, Speed, network_work, projection_work, work
from edlm.benchmarks.isolated import arguments_of, peak_megabytes

HEAD_WIDTH = 64
OTHERS = ("plain", "onednn", "float32")
"""Algorithm 1 as stated: with PyTorch's own matrix products, with those that ours takes, and with PyTorch's and noise
in float32, which has another law but is what public code does."""
COMPILED = "compiled"
"""Ours with compiled networks, if that is asked for."""
LARGE_VOCABULARY = 1 << 15
"""Over a smaller vocabulary the speed of projecting onto one cannot be measured, nor does it matter."""


def run(setting: Setting, what: str, repeats: int) -> dict[str, Any]:
    """`what` is ours, plain, turns of all (turns-compiled: and of ours compiled), memory of ours or of plain, speed,
    causal or steps."""
    import torch

    if what == "speed":
        return measure_speed(setting, repeats) | {"threads": torch.get_num_threads()}
    denoiser, causal = random_models(setting)
    if what == "causal":
        from edlm.benchmarks.generate import bench_generate

        return bench_generate(causal, batch_size=setting.batch_size, repeats=repeats)
    if what == "steps":
        return time_steps(setting, denoiser, causal, repeats)
    if what.endswith("memory"):
        sampler_of(what.removesuffix("-memory"), setting, denoiser, causal)(0)
        return {"setting": setting.label, "candidates": setting.candidates, "peak_megabytes": peak_megabytes()}
    samplers = {
        name: sampler_of(name, setting, denoiser, causal) for name in (["ours", *OTHERS] if "turns" in what else [what])
    }
    short = replace(setting, steps=1, candidates=min(2, setting.candidates))
    for name in samplers:
        sampler_of(name, short, denoiser, causal)(0)
    if what == "turns-compiled":
        samplers[COMPILED] = compiled_sampler(setting)
    return {"setting": setting.label} | take_turns(samplers, repeats)


def take_turns(samplers: dict[str, Callable[[int], Any]], repeats: int) -> dict[str, Any]:
    """Seconds of each sampler, and of others the ratio of their turns to those of ours, compiled or not."""
    seconds: dict[str, list[float]] = {name: [] for name in samplers}
    for seed in range(repeats):
        for name, draw in samplers.items():
            seconds[name].append(timed(lambda: draw(seed)))  # noqa: B023
    row: dict[str, Any] = {name: statistics.median(v) for name, v in seconds.items()}
    row |= {f"{name}_range": [min(v), max(v)] for name, v in seconds.items()}
    for other in [name for name in OTHERS if "ours" in seconds and name in seconds]:
        for base, key in (("ours", f"{other}_ratio"), (COMPILED, f"{other}_{COMPILED}_ratio")):
            ratios = [a / b for a, b in zip(seconds[other], seconds.get(base, []), strict=False)]
            if ratios:
                row |= {key: statistics.median(ratios), f"{key}_range": [min(ratios), max(ratios)]}
    return row


def compiled_sampler(setting: Setting) -> Callable[[int], Any]:
    """Ours with networks of the same size, compiled before it is timed: a whole run meets all shapes of input."""
    from edlm.models.placement import compile_network

    denoiser, causal = random_models(setting)
    for network in (denoiser, causal):
        compile_network(network)
    draw = sampler_of("ours", setting, denoiser, causal)
    draw(0)
    return draw


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def typical(function: Callable[[], Any], repeats: int) -> float:
    """The median of several calls, after one to warm up."""
    function()
    return statistics.median(timed(function) for _ in range(max(3, repeats)))


def time_steps(setting: Setting, denoiser: Any, causal: Any, repeats: int) -> dict[str, Any]:
    """The median seconds of each step, beside the share of tokens that is masked when it begins."""
    from edlm import sampler
    from edlm.schedule import uniform_times

    times, importance = uniform_times(setting.steps), importance_of(setting, causal)
    sampler_of("ours", replace(setting, steps=1), denoiser, causal)(0)
    seconds: list[list[float]] = []
    for seed in range(repeats):
        state, row, start = start_of(setting, denoiser, seed), [], time.perf_counter()
        for _ in sampler.trajectory(state, denoiser, times, importance=importance):
            row.append(time.perf_counter() - start)
            start = time.perf_counter()
        seconds.append(row)
    by_step = [statistics.median(column) for column in zip(*seconds, strict=True)]
    return {"setting": setting.label, "masked": times[:-1].tolist(), "seconds": by_step}


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
    """Draws one batch from a seed: with ours or one of OTHERS, as the networks are."""
    import torch

    from edlm import products, sampler
    from edlm.benchmarks import plain
    from edlm.randomness import make_generator
    from edlm.schedule import uniform_times

    def draw_plain(seed: int) -> Any:
        with nullcontext() if name == "onednn" else products.of_pytorch():
            return plain.sample(
                denoiser, causal, batch_size=setting.batch_size, length=setting.length, steps=setting.steps,
                candidates=setting.candidates, window=setting.window, carry_over=setting.energy == "coar",
                generator=make_generator(seed), noise_type=torch.float32 if name == "float32" else torch.float64,
            )  # fmt: skip

    times, importance = uniform_times(setting.steps), importance_of(setting, causal)

    def draw_ours(seed: int) -> Any:
        return sampler.sample(start_of(setting, denoiser, seed), denoiser, times, importance=importance)

    return draw_ours if name == "ours" else draw_plain


def measure_speed(setting: Setting, repeats: int) -> dict[str, float]:
    """The constants of `cost.Speed`, each from what it is about alone, and the best speed of a large matrix product.

    A pass takes a call and its arithmetic: both come from one sequence and from as many as a pass may hold. What a step
    takes besides is what these leave unexplained of one with two candidates.
    """
    import torch

    from edlm.products import linear

    denoiser, causal = random_models(setting)
    square = torch.randn(2048, 2048)
    with torch.inference_mode():
        peak = 2 * 2048**3 / min(timed(lambda: linear(square, square)) for _ in range(20))
        call, network = pass_speed(setting, causal, repeats)
        drawn, scored = vocabulary_speed(setting, repeats)
    one = replace(setting, steps=1, candidates=2, batch_size=1)
    seconds = typical(lambda: sampler_of("ours", one, denoiser, causal)(0), repeats)
    step = max(0.0, seconds - Speed(network, drawn, scored, call).seconds(work(one)))
    return {"peak": peak, "network": network, "drawn": drawn, "scored": scored, "call": call, "step": step}


def pass_speed(setting: Setting, causal: Any, repeats: int) -> tuple[float, float]:
    """(seconds of a call, operations per second inside it)."""
    import torch

    from edlm.memory import PASS_TOKENS

    many = max(2, PASS_TOKENS["cpu"] // setting.length)
    one, all_ = (
        typical(lambda: causal.transformer(torch.zeros(rows, setting.length, dtype=torch.long)), repeats)  # noqa: B023
        for rows in (1, many)
    )
    each = max((all_ - one) / (many - 1), 0.5 * all_ / many)  # noise must not make it nothing
    return max(0.0, one - each), network_work(setting, setting.length) / each


def vocabulary_speed(setting: Setting, repeats: int) -> tuple[float, float]:
    """Operations per second of projecting and drawing, and of projecting and scoring given tokens."""
    import torch

    from edlm.vocabulary import project, token_log_probs

    large = replace(setting, num_layers=1, vocab_size=max(setting.vocab_size, LARGE_VOCABULARY))
    denoiser, _ = random_models(large)
    rows = min(256, large.length)
    hidden, uniform = torch.randn(rows, large.width), torch.rand(rows, 2, dtype=torch.float64)
    draw = typical(lambda: project(hidden, denoiser.transformer.head).draw(uniform), repeats)
    tokens = torch.zeros(rows, dtype=torch.long)
    score = typical(lambda: token_log_probs(hidden, denoiser.transformer.head, tokens), repeats)
    return projection_work(large, rows) / draw, projection_work(large, rows) / score


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
    about, what, repeats = arguments_of(sys.argv[1:])
    print(json.dumps(run(Setting(**about), what, repeats)))
