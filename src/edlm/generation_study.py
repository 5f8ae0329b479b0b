"""A whole study of samplers: draw, score, measure; one row per setting, and one for held-out text."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from edlm.divergence import compare_texts, remembering
from edlm.energy import networks_of
from edlm.generation import require_tokenizer
from edlm.generation_report import Row, measure
from edlm.models.pretrained import fingerprint
from edlm.oracle import CausalOracle, Oracle
from edlm.study import Method, Setting, draw_samples, file_name, open_scores, open_stores, score_stored

Progress = Callable[[float, str], tqdm]
"""A bar for so much work under this name."""


@dataclass(frozen=True)
class Part:
    """Texts that become one row of the result."""

    about: dict[str, Any]
    samples: Sequence[dict[str, Any]]
    file: str
    """How files about it are named."""
    identity: dict[str, Any]
    """What the texts depend on."""


def run(
    grid: Sequence[Setting], oracles: Sequence[Oracle], num: int, folder: Path, *, progress: Progress,
    held_out: Sequence[dict[str, Any]] = (), features: CausalOracle | None = None,
) -> list[Row]:  # fmt: skip
    """The rows of all settings, `num` samples each, with everything drawn and scored kept in `folder`.

    Every other held-out text is the reference of the divergence; the rest are a row of their own, which shows what a
    perfect sampler would get. `features` gives the divergence its vectors; without it they are n-grams.
    """
    reference, rest = [text["text"] for text in held_out[0::2]], held_out[1::2]
    parts = draw_all(grid, num, folder, progress)
    if held_out:
        parts.append(held_out_part(rest))
    scores = score_all(parts, oracles, grid[0], folder, progress)
    compare = partial(compare_texts, theirs=reference, seed=grid[0].config.seed)
    if features is not None:
        name = f"last hidden state of {features.name} at the last token"
        compare = partial(compare, embed=remembering(features.embed), features=name)
    return [
        measure(part.samples, row, part.about, compare=compare if held_out else None)
        for part, row in zip(parts, scores, strict=True)
    ]


def draw_all(grid: Sequence[Setting], num: int, folder: Path, progress: Progress) -> list[Part]:
    """The samples of every setting; the bar counts each by what it costs, so that the time left is about right."""
    parts = []
    stores = open_stores(folder, grid)
    with progress(sum(setting.cost for setting in grid) * num, "sampling") as bar:
        for setting, store in zip(grid, stores, strict=True):
            bar.set_description(setting.label)
            samples = draw_samples(setting, num, store, tick=counter(bar, setting.cost))
            parts.append(Part(about(setting), samples, file_name(setting), store.settings))
    return parts


def counter(bar: tqdm, cost: float) -> Callable[[int], object]:
    """Moves the bar on by so many samples of this cost."""
    return lambda num: bar.update(num * cost)


def score_all(
    parts: Sequence[Part], oracles: Sequence[Oracle], setting: Setting, folder: Path, progress: Progress
) -> list[dict[str, Any]]:
    """For every part its scores by each oracle."""
    tokenizer, batch_size = require_tokenizer(setting.method.model), setting.config.batch_size
    result: list[dict[str, Any]] = []
    with progress(len(oracles) * sum(len(part.samples) for part in parts), "scoring") as bar:
        for part in parts:
            result.append({})
            for oracle in oracles:
                store = open_scores(folder, oracle, part.file, part.identity)
                result[-1][oracle.name] = score_stored(
                    oracle, part.samples, tokenizer, store, batch_size=batch_size, tick=bar.update
                )
    return result


def about(setting: Setting) -> dict[str, Any]:
    """The fields of a row that name it."""
    is_corrected = setting.method.energy is not None
    return {
        "method": setting.name,
        "curve": setting.curve,
        "energy": setting.method.spec or None,
        "steps": setting.steps,
        "candidates": setting.config.candidates if is_corrected else None,
        "window": setting.config.window if is_corrected else None,
    }


def held_out_part(texts: Sequence[dict[str, Any]]) -> Part:
    """Held-out text in the place of samples, known by a hash of its tokens."""
    digest = hashlib.sha256(json.dumps([text["tokens"] for text in texts]).encode()).hexdigest()
    names = {"method": "held-out text", "curve": "held-out text"}
    blank = dict.fromkeys(("energy", "steps", "candidates", "window"))
    return Part(names | blank, texts, f"held-out-text-{digest[:8]}.jsonl", {"tokens_sha256": digest})


def circular(methods: Sequence[Method], oracles: Sequence[Oracle]) -> list[str]:
    """A warning for every sampler that was steered, or drawn, by the very model that judges it."""
    notes = []
    for method in methods:
        models = [method.model] if method.energy is None else [model for _, _, model in networks_of(method.energy)]
        seen = {fingerprint(model) for model in models}
        notes += [
            f"oracle {oracle.name} is a model of {method.label} itself: its perplexity flatters {method.label}"
            for oracle in oracles
            if oracle.fingerprint in seen
        ]
    return notes
