"""The appendix's figure of energies: what they say of true and drawn completions, at every time.

Legend: B blocks, K = 1 + negatives completions of each, the true one first.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edlm import plots
from edlm.energy import Energy
from edlm.energy_spec import energy_label
from edlm.errors import UserError
from edlm.evaluation import Score
from edlm.evaluator import evaluator
from edlm.generation import require_denoiser
from edlm.generation_report import show
from edlm.importance import energy_ess
from edlm.masking import corrupt
from edlm.metrics import Estimate, estimate
from edlm.models.load import load_named
from edlm.models.masked_lm import AnyDenoiser
from edlm.nce import contrast, diagnostics
from edlm.randomness import make_generator, rand
from edlm.reports import Report, markdown_table
from edlm.reproduce.likelihoods import work_of
from edlm.reproduce.settings import Energies
from edlm.reproduce.stage import Job, Stage

QUANTITIES = {
    "energy_true": "E of the true text", "energy_drawn": "mean E drawn", "energy_least": "least E drawn",
    "energy_most": "greatest E drawn", "effective_sample_size": "ESS of the weights",
    "energy_ess": "the paper's ESS", "log_z": "log Z, from below", "accuracy": "accuracy",
    "pair_accuracy": "pairs in order",
}  # fmt: skip

PANELS = ("energy, nats\n(band: least to greatest drawn)", "effective sample size", "share told apart")


def plan(stage: Stage) -> list[Job]:
    settings = stage.settings
    assert isinstance(settings, Energies)
    each = (settings.max_blocks or 1) * len(settings.times) * (2 + settings.negatives)
    return [Job(energy_label(spec), each, "" if settings.max_blocks else " per block") for spec in energies_of(stage)]


def run(stage: Stage) -> Report | None:
    """Measure every energy at every time, and write it; None in all processes but the first."""
    specs, settings = energies_of(stage), stage.settings
    assert isinstance(settings, Energies)
    with evaluator(work_of(stage)) as measuring:
        denoiser = require_denoiser(load_named(stage.cast.denoiser, "", stage.compute))
        corpus = measuring.corpus(denoiser, stage.cast.denoiser, stage.held_out)
        rows = []
        for spec in specs:
            energy, label = measuring.energy(spec, denoiser), energy_label(spec)
            for t in settings.times:
                values = measuring.score(
                    make_score(denoiser, energy, t, settings), denoiser, corpus, stage.held_out.split, energy=spec,
                    settings={"energies_at": t, "negatives": settings.negatives, "seed": settings.seed},
                    label=f"{label}, t = {t:g}",
                )  # fmt: skip
                found = {name: vars(estimate(column)) for name, column in zip(QUANTITIES, values.T, strict=True)}
                rows.append({"method": label, "energy": spec, "t": t, "num_blocks": len(values)} | found)
        if not measuring.world.is_first:
            return None
        about = corpus.describe() | {"split": stage.held_out.split}
        notes = remarks(settings, rows, corpus[stage.held_out.split].length)
        return stage.write(table(rows), notes, {"rows": rows, "data": about}, partial(plot, rows), quotes=False)


def energies_of(stage: Stage) -> list[str]:
    assert isinstance(stage.settings, Energies)
    stage.require("denoiser")
    specs = stage.cast.energies(stage.settings.energies)
    if not specs:
        raise UserError(f"{stage.name} needs an energy; name a model with --ar or --energy-model")
    return specs


def make_score(denoiser: AnyDenoiser, energy: Energy, t: float, settings: Energies) -> Score:
    """The quantities of each block, masked to time t. Every energy sees the same masks and the same drawn texts."""

    def measure(x0: Tensor, index: Sequence[int]) -> Tensor:
        streams = [make_generator(settings.seed, i, round(t * 10**6)) for i in index]
        times = torch.full((len(x0),), t, dtype=torch.float64, device=x0.device)
        xt = corrupt(x0, times, denoiser.schedule, denoiser.mask_id, generator=streams)
        uniform = rand((len(x0), settings.negatives, x0.shape[1]), streams, device=x0.device)
        with torch.no_grad():
            return torch.stack(list(quantities(contrast(energy, denoiser, x0, xt, times, uniform)).values()), dim=-1)

    return Score(measure, "energies of completions", columns=tuple(QUANTITIES))


def quantities(energies: Tensor) -> dict[str, Tensor]:
    """The table's quantities, (B,) each, from energies (B, K): what training watches, extremes, the paper's ESS."""
    drawn = energies[:, 1:].double()
    found = diagnostics(energies) | {
        "energy_least": drawn.amin(-1), "energy_most": drawn.amax(-1), "energy_ess": energy_ess(drawn)
    }  # fmt: skip
    return {name: found[name] for name in QUANTITIES}


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [["method", "t", *QUANTITIES.values()]]
    for row in rows:
        lines.append([row["method"], f"{row['t']:g}", *(cell(row[name]) for name in QUANTITIES)])
    return markdown_table(lines)


def cell(value: dict[str, float]) -> str:
    """The paper's ESS of energies that are all zero is 0 / 0, and shown as nothing."""
    return show(Estimate(**value)) if value["mean"] == value["mean"] else "–"


def remarks(settings: Energies, rows: Sequence[dict[str, Any]], length: int) -> list[str]:
    return [
        f"{rows[0]['num_blocks']} blocks of {length} at each t, {settings.negatives} completions drawn of each, seed "
        f"{settings.seed}; ± standard error over blocks",
        "Energies in nats, low is good. ESS of the weights: (sum w)² / sum w² of the drawn ones, at most their number; "
        "the paper's ESS is the same of the energies themselves, and says little about weights",
        "Accuracy counts E < 0 for the true text and E > 0 for drawn ones, which an energy that is not normalised "
        "(EDLM-AR) was never meant to satisfy; pairs in order compares the two, whatever the zero",
    ]


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A column for each energy: energies, effective sample sizes, accuracy."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    with plots.figure(len(methods), rows=3, width=5.4, height=3.1) as (made, axes):
        for n, method in enumerate(methods):
            part = [row for row in rows if row["method"] == method]
            for ax, draw in zip(axes[n :: len(methods)], (draw_energies, draw_sizes, draw_accuracy), strict=True):
                draw(ax, part)
            axes[n].set_title(method)
        for ax in axes[-len(methods) :]:
            ax.set_xlabel("t, from clean to masked")
        for ax, label in zip(axes[:: len(methods)], PANELS, strict=True):
            ax.set_ylabel(label)
        plots.save(made, path)


def lines_of(part: Sequence[dict[str, Any]], names: dict[str, str]) -> list[plots.Line]:
    """A line for each quantity along t."""
    return [
        plots.Line(label, [plots.Point(row["t"], row[key]["mean"], y_error=row[key]["standard_error"]) for row in part])
        for key, label in names.items()
    ]


def draw_energies(ax: Any, part: Sequence[dict[str, Any]]) -> None:
    lines = lines_of(part, {"energy_true": "true text", "energy_drawn": "drawn, mean"})
    low, high = ([row[key]["mean"] for row in part] for key in ("energy_least", "energy_most"))
    plots.draw_band(ax, 1, [row["t"] for row in part], low, high)
    plots.draw_lines(ax, lines)
    plots.name_lines(ax, lines)


def draw_sizes(ax: Any, part: Sequence[dict[str, Any]]) -> None:
    lines = lines_of(part, {"effective_sample_size": "of the weights", "energy_ess": "the paper's"})
    plots.draw_lines(ax, lines)
    ax.set_ylim(0, 1.12 * max(point.y for line in lines for point in line.points if point.y == point.y))
    plots.name_lines(ax, lines)


def draw_accuracy(ax: Any, part: Sequence[dict[str, Any]]) -> None:
    lines = lines_of(part, {"pair_accuracy": "pairs in order", "accuracy": "sign of E"})
    plots.draw_lines(ax, lines)
    ax.axhline(0.5, color=plots.GREY, linewidth=1, linestyle=(0, (4, 3)))
    ax.set_ylim(0, 1.05)
    plots.name_lines(ax, lines)
