"""From samples and an oracle's scores to one row per setting, and the rows as a table.

Perplexity, entropy, diversity, divergence and cost always stand in one row: each alone can be had cheaply.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edlm import plots
from edlm.divergence import Divergence
from edlm.metrics import (
    Estimate,
    Perplexity,
    distinct,
    distinct_share,
    estimate,
    exponential,
    perplexity,
    token_entropy,
)
from edlm.reports import markdown_table

NGRAMS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Row:
    """Everything measured on the samples of one setting, or on held-out text in their place."""

    method: str
    curve: str
    """Settings that differ only in their steps share it."""
    energy: str | None
    steps: int | None
    candidates: int | None
    window: float | None
    num_samples: int
    perplexity: dict[str, Perplexity]
    """By the oracle's name."""
    entropy: Estimate
    """Nats, of each sample's token histogram."""
    distinct: dict[str, Estimate]
    """Share of different n-grams in a sample, by n."""
    distinct_samples: float
    divergence: Divergence | None = None
    denoiser_passes: Estimate | None = None
    energy_passes: Estimate | None = None
    seconds_per_sample: float | None = None
    """Mean; the samples of a batch share its time, so there is no standard error over samples."""


def measure(
    samples: Sequence[dict[str, Any]], scores: dict[str, Sequence[dict[str, Any]]], about: dict[str, Any], *,
    compare: Callable[[Sequence[str]], Divergence] | None = None,
) -> Row:  # fmt: skip
    """The row of one setting. `about` has the fields that name it; `compare` measures texts against held-out text."""
    tokens = [sample["tokens"] for sample in samples]
    return Row(
        **about,
        num_samples=len(samples),
        perplexity={name: summarise(rows) for name, rows in scores.items()},
        entropy=estimate([token_entropy(row) for row in tokens]),
        distinct={str(n): estimate([distinct(row, n) for row in tokens]) for n in NGRAMS},
        distinct_samples=distinct_share(tokens),
        divergence=compare([sample["text"] for sample in samples]) if compare else None,
        **cost(samples),
    )


def summarise(scores: Sequence[dict[str, Any]]) -> Perplexity:
    columns = ([score[key] for score in scores] for key in ("nats", "tokens", "characters"))
    return perplexity(*columns)


def cost(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Network passes and seconds per sample; nothing for text that was not drawn."""
    if "seconds" not in samples[0]:
        return {}
    return {
        "denoiser_passes": estimate([sample["denoiser_evaluations"] for sample in samples]),
        "energy_passes": estimate([sample["energy_evaluations"] for sample in samples]),
        "seconds_per_sample": sum(sample["seconds"] for sample in samples) / len(samples),
    }


def table(rows: Sequence[Row]) -> str:
    """All rows as an aligned Markdown table."""
    oracles = list(rows[0].perplexity)
    has_divergence = any(row.divergence for row in rows)
    header = ["method", "T", "k", "w"]
    for name in oracles:
        header += ["gen. PPL", "bits/char"] if len(oracles) == 1 else [f"gen. PPL, {name}", f"bits/char, {name}"]
    header += ["entropy, nats", "distinct-1/2/3/4"]
    header += ["MAUVE-style", "frontier int."] if has_divergence else []
    header += ["denoiser passes", "energy passes", "s/sample"]
    body = [cells(row, oracles, has_divergence) for row in rows]
    return markdown_table([header, *body])


def cells(row: Row, oracles: Sequence[str], has_divergence: bool) -> list[str]:
    """One line of the table."""
    line = [row.method, *(show_number(value) for value in (row.steps, row.candidates, row.window))]
    for name in oracles:
        line += [show(row.perplexity[name].perplexity), show(row.perplexity[name].bits_per_character)]
    line += [show(row.entropy), "/".join(f"{value.mean:.2f}" for value in row.distinct.values())]
    if has_divergence:
        d = row.divergence
        line += [show(Estimate(d.area, d.area_standard_error)) if d else "–"]
        line += [show(Estimate(d.frontier_integral, d.frontier_integral_standard_error)) if d else "–"]
    line += [show_number(value.mean if value else None) for value in (row.denoiser_passes, row.energy_passes)]
    return [*line, show_number(row.seconds_per_sample)]


def show(value: Estimate) -> str:
    """4.113 ± 0.031: two digits of the error, and as many decimals of the mean."""
    error = value.standard_error
    if not math.isfinite(error):
        return f"{value.mean:.4g}"
    decimals = 3 if error == 0 else min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{value.mean:.{decimals}f} ± {error:.{decimals}f}"


def show_number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def plot_frontier(rows: Sequence[Row], path: Path, unit: str = "token") -> None:
    """Perplexity against entropy, one panel per oracle; held-out text, which took no time to draw, is the reference.

    Samples that are drawn character by character are plotted by perplexity per character: an oracle with larger tokens
    cuts nonsense into many of them, each quite likely, and its perplexity per token hardly notices.
    """
    drawn = [row for row in rows if row.seconds_per_sample is not None]
    references = [row for row in rows if row.seconds_per_sample is None]
    panels, stars = {}, {}
    for oracle in rows[0].perplexity:
        curves = {row.curve: [point(r, oracle, unit) for r in drawn if r.curve == row.curve] for row in drawn}
        panels[oracle] = [plots.Line(name, [*named_once(points)]) for name, points in curves.items()]
        if references:
            stars[oracle] = point(references[0], oracle, unit)
    plots.frontier(panels, path, reference=stars or None, unit=unit)


def point(row: Row, oracle: str, unit: str) -> plots.Point:
    x, y = row.entropy, perplexity_per(unit, row, oracle)
    label = "" if row.steps is None else str(row.steps)
    return plots.Point(x.mean, y.mean, x.standard_error, y.standard_error, label)


def perplexity_per(unit: str, row: Row, oracle: str) -> Estimate:
    """Perplexity per token of the oracle, or per character for samplers of characters."""
    scored = row.perplexity[oracle]
    return scored.perplexity if unit == "token" else exponential(scored.nats_per_character)


def named_once(points: Sequence[plots.Point]) -> Iterator[plots.Point]:
    """The points with "T=" before the first label only: the others can be guessed, and numbers overlap less."""
    for index, p in enumerate(points):
        yield p if index or not p.label else replace(p, label=f"T={p.label}")
