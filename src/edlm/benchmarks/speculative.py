"""Drafts of a denoiser against plain autoregressive sampling: tokens per causal pass, and seconds, in one run.

Both draw from the same law, one sequence at a time with a cache, so the only question is how long they take. They take
turns: sequence after sequence, first the plain sampler, then each number of drafted tokens.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from edlm import causal_sampler, sampler, speculative
from edlm.metrics import estimate
from edlm.models.autoregressive import Autoregressive
from edlm.models.masked_lm import AnyDenoiser
from edlm.randomness import make_streams
from edlm.sampler import State
from edlm.speculative import Drafts

PLAIN = 0
"""Drafted tokens of the plain sampler."""


def bench_speculative(
    model: Autoregressive, denoiser: AnyDenoiser, drafted: Sequence[int], *, num: int, length: int | None = None
) -> dict[str, Any]:
    """One row for each number of drafted tokens, over `num` sequences after one to warm up."""
    length = length or model.length
    turns: dict[int, list[dict[str, float]]] = {g: [] for g in (PLAIN, *drafted)}
    for index in range(num + 1):
        for g, rows in turns.items():
            rows.append(one_turn(model, denoiser, g, index, length))
    timed = {g: rows[1:] for g, rows in turns.items()}
    plain = [row["seconds"] for row in timed[PLAIN]]
    return {
        "sequences": num,
        "length": length,
        "threads": torch.get_num_threads(),
        "seconds_plain": statistics.median(plain),
        "rows": [summary(g, timed[g], plain) for g in drafted],
    }


def one_turn(model: Autoregressive, denoiser: AnyDenoiser, g: int, index: int, length: int) -> dict[str, float]:
    """Passes and seconds of one sequence, with drafts or (g = 0) without."""
    state = sampler.init(length, make_streams(0, [index]), model.start_id, device=next(model.parameters()).device)
    seconds, end = timed(lambda: draw(state, model, denoiser, g))
    assert end.denoiser_evaluations is not None and end.energy_evaluations is not None
    causal, drafts = (int(n[0]) for n in (end.energy_evaluations, end.denoiser_evaluations))
    return {"seconds": seconds, "tokens_per_pass": length / max(1, causal), "drafts_per_token": drafts / length}


def draw(state: State, model: Autoregressive, denoiser: AnyDenoiser, g: int) -> State:
    if g != PLAIN:
        return speculative.sample(state, model, Drafts(denoiser, g))
    *_, (end, _) = causal_sampler.trajectory(state, model)
    return end


def timed(function: Callable[[], State]) -> tuple[float, State]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def summary(g: int, rows: Sequence[dict[str, float]], plain: Sequence[float]) -> dict[str, Any]:
    """Means over the sequences with standard errors; seconds and speed-up are medians, with the range of the latter."""
    tokens = estimate([row["tokens_per_pass"] for row in rows])
    ratios = [before / row["seconds"] for before, row in zip(plain, rows, strict=True)]
    return {
        "drafted": g,
        "tokens_per_causal_pass": tokens.mean,
        "tokens_per_causal_pass_standard_error": tokens.standard_error,
        "drafter_passes_per_token": estimate([row["drafts_per_token"] for row in rows]).mean,
        "seconds": statistics.median(row["seconds"] for row in rows),
        "speed_up": statistics.median(ratios),
        "speed_up_range": [min(ratios), max(ratios)],
    }
