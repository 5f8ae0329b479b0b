"""A grid of certified likelihoods: which points it has, and its table and plot."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edlm.durable import write_whole
from edlm.evaluation import Likelihood
from edlm.likelihood_config import LikelihoodConfig
from edlm.plots import Line, Point, draw_lines, figure, name_lines, save
from edlm.sweep_config import IDEAL, SweepConfig

TITLES = {"ar": "EDLM-AR", "coar": "EDLM-coAR", "nce": "EDLM-NCE"}


@dataclass(frozen=True)
class Series:
    """The results of one method, one for each number of steps."""

    name: str
    points: list[Likelihood]


def series_of(grid: SweepConfig, energies: Sequence[str]) -> Iterator[tuple[str, str | None, list[LikelihoodConfig]]]:
    """(name, energy, settings of every point) of the denoiser alone, then of each energy and number of candidates.

    One candidate is the denoiser alone, so it is not measured again.
    """
    steps = [replace(grid.settings, steps=T) for T in grid.steps]
    yield "MDLM", None, steps
    for spec in energies:
        for k in grid.candidates:
            if k != 1:
                yield f"{title(spec)}, k = {k or IDEAL}", spec, [replace(config, candidates=k) for config in steps]


def title(spec: str) -> str:
    """A method's name in the paper's words; a weighted sum keeps its own."""
    kind, _, rest = spec.partition(":")
    return TITLES[kind] if kind in TITLES and " + " not in rest else spec


@dataclass(frozen=True)
class Report:
    """A finished sweep and where it was written."""

    table: str
    results: dict[str, Any]
    files: list[Path]

    def as_text(self) -> str:
        return "\n".join([self.table, "", *(f"written: {path}" for path in self.files)])

    def as_dict(self) -> dict[str, Any]:
        return self.results | {"files": [str(path) for path in self.files]}


def write_report(folder: Path, lines: Sequence[Series], reference: Likelihood | None) -> Report:
    """results.json, results.md and a plot of bits against steps in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("results.md", "results.json", "bits-against-steps.png")]
    results = {
        "series": [{"name": line.name, "points": [asdict(point) for point in line.points]} for line in lines],
        "reference": None if reference is None else asdict(reference),
    }
    table = render_table(lines, reference)
    write_whole(files[0], table.encode())
    write_whole(files[1], (json.dumps(results, indent=2, ensure_ascii=False) + "\n").encode())
    plot(lines, reference, files[2])
    return Report(table, results, files)


def render_table(lines: Sequence[Series], reference: Likelihood | None) -> str:
    """Bits with standard errors, one row per number of steps; below it what all of them share."""
    first = lines[0].points[0]
    rows = [["steps", *(line.name for line in lines)]]
    for n, point in enumerate(lines[0].points):
        rows.append([str(point.steps), *(plus_minus(line.points[n]) for line in lines)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    text = [_row(row, widths) for row in rows]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    about = (
        f"Upper bounds in bits per {first.unit}, ± standard error over {first.num_blocks} blocks of "
        f"{first.block_length} ({first.num_tokens} {first.unit}s); protocol {first.protocol}, seed {first.seed}"
    )
    most = [point for line in lines[1:] for point in line.points]
    if most:
        about += f", w = {most[0].window:g}, R = {most[0].inner}"
    if any(point.partition_samples for point in most):
        about += f", n = {max(point.partition_samples or 0 for point in most)}"
    if first.trajectories:
        about += f", J = {first.trajectories}"
    if reference is not None:
        about += f". Autoregressive model: {plus_minus(reference)}, exact"
    return "\n".join([*text, "", about + "."]) + "\n"


def plus_minus(result: Likelihood) -> str:
    return f"{result.bits:.4f} ± {result.standard_error:.4f}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def plot(lines: Sequence[Series], reference: Likelihood | None, path: Path) -> None:
    """Certified bits against the number of steps, one line per method."""
    drawn = [
        Line(line.name, [Point(p.steps or 0, p.bits, y_error=p.standard_error) for p in line.points]) for line in lines
    ]
    with figure(height=4.6) as (made, [ax]):
        draw_lines(ax, drawn)
        ax.set_xscale("log", base=2)
        ax.set_xticks([point.x for point in drawn[0].points], [f"{point.x:g}" for point in drawn[0].points])
        if reference is not None:
            ax.axhline(reference.bits, color="#333333", linewidth=1, linestyle=(0, (4, 3)))
            ax.text(0.01, reference.bits, "autoregressive, exact", transform=ax.get_yaxis_transform(), va="bottom")
        unit = lines[0].points[0].unit
        ax.set(xlabel="denoising steps T", ylabel=f"bits per {unit}, certified upper bound")
        ax.set_title("Likelihood of the sampler that is run")
        name_lines(ax, drawn)
        save(made, path)
