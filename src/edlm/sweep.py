"""A grid of certified likelihoods: which points it has, and its table and plot."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edlm.energy_spec import distinct_labels
from edlm.evaluation import Likelihood
from edlm.likelihood_config import LikelihoodConfig
from edlm.plots import DARK, Line, Point, draw_lines, figure, name_lines, save
from edlm.reports import Report, markdown_table, write_report
from edlm.sweep_config import IDEAL, SweepConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    for spec, label in zip(energies, distinct_labels(energies), strict=True):
        for k in grid.candidates:
            if k != 1:
                yield f"{label}, k = {k or IDEAL}", spec, [replace(config, candidates=k) for config in steps]


def report_sweep(folder: Path, lines: Sequence[Series], reference: Likelihood | None) -> Report:
    """The table, the numbers and a plot of bits against steps in `folder`."""
    results = {
        "series": [{"name": line.name, "points": [asdict(point) for point in line.points]} for line in lines],
        "reference": None if reference is None else asdict(reference),
    }
    text = f"{table(lines)}\n{remarks(lines, reference)}\n"
    if len(lines) > 1:
        text += f"\nBits gained over MDLM, from the same masks:\n\n{gains(lines)}"
    plots = {"bits-against-steps.png": partial(plot, lines, reference)}
    return write_report(folder, text, results, plots)


def table(lines: Sequence[Series]) -> str:
    """Bits with standard errors, one row per number of steps."""
    rows = [["steps", *(line.name for line in lines)]]
    for n, point in enumerate(lines[0].points):
        rows.append([str(point.steps), *(plus_minus(line.points[n]) for line in lines)])
    return markdown_table(rows)


def gains(lines: Sequence[Series]) -> str:
    """How far each bound is below the plain denoiser's, whose noise it shares; without it for whole trajectories."""
    rows = [["steps", *(line.name for line in lines[1:])]]
    for n, point in enumerate(lines[0].points):
        rows.append([str(point.steps), *(gain(line.points[n]) for line in lines[1:])])
    return markdown_table(rows)


def gain(result: Likelihood) -> str:
    return "–" if result.gain is None else f"{result.gain:+.4f} ± {result.gain_standard_error:.4f}"


def remarks(lines: Sequence[Series], reference: Likelihood | None) -> str:
    """What all points share."""
    first = lines[0].points[0]
    text = (
        f"Upper bounds in bits per {first.unit}, ± standard error over {first.num_blocks} blocks of "
        f"{first.block_length} ({first.num_tokens:,} {first.unit}s); protocol {first.protocol}, seed {first.seed}"
    )
    corrected = [point for line in lines[1:] for point in line.points]
    if corrected:
        text += f", w = {corrected[0].window:g}, R = {corrected[0].inner}"
    if samples := max((point.partition_samples or 0 for point in corrected), default=0):
        text += f", n = {samples}"
    if first.trajectories:
        text += f", J = {first.trajectories}"
    return text + (f". Autoregressive model: {plus_minus(reference)}, exact." if reference else ".")


def plus_minus(result: Likelihood) -> str:
    return f"{result.bits:.4f} ± {result.standard_error:.4f}"


def plot(lines: Sequence[Series], reference: Likelihood | None, path: Path) -> None:
    """Certified bits against the number of steps, one line per method; beside them, what each gains over MDLM."""
    corrected = [line for line in lines[1:] if line.points[0].gain is not None]
    with figure(2 if corrected else 1, width=5.6, height=4.4) as (made, axes):
        draw_bits(axes[0], lines, reference)
        if corrected:
            draw_gains(axes[1], lines[0], corrected)
        save(made, path)


def draw_bits(ax: "Axes", lines: Sequence[Series], reference: Likelihood | None) -> None:
    points = [[Point(p.steps or 0, p.bits, y_error=p.standard_error) for p in line.points] for line in lines]
    drawn = [Line(line.name, some) for line, some in zip(lines, points, strict=True)]
    draw_lines(ax, drawn)
    show_steps(ax, lines[0])
    if reference is not None:
        ax.axhline(reference.bits, color=DARK, linewidth=1, linestyle=(0, (4, 3)))
        across = ax.get_yaxis_transform()
        ax.text(0.98, reference.bits, "autoregressive, exact", transform=across, va="bottom", ha="right")
    keep_in_view(ax, [p.bits for p in lines[0].points] + ([reference.bits] if reference else []))
    ax.set_ylabel(f"bits per {lines[0].points[0].unit}, certified upper bound")
    ax.set_title("Likelihood of the sampler that is run")
    name_lines(ax, drawn)


def draw_gains(ax: "Axes", plain: Series, lines: Sequence[Series]) -> None:
    zero = Line(plain.name, [Point(p.steps or 0, 0.0) for p in plain.points])
    drawn = [zero, *(Line(line.name, [gain_point(p) for p in line.points]) for line in lines)]
    draw_lines(ax, drawn)
    show_steps(ax, plain)
    finite = [p.gain or 0.0 for line in lines for p in line.points if p.candidates is not None]
    best = max([0.01, *finite])
    keep_in_view(ax, [best, max(-best, min([0.0, *finite]))])
    ax.set_ylabel("bits gained over MDLM, same masks")
    ax.set_title("Certified gain")
    name_lines(ax, drawn)


def gain_point(result: Likelihood) -> Point:
    return Point(result.steps or 0, result.gain or 0.0, y_error=result.gain_standard_error or 0.0)


def show_steps(ax: "Axes", line: Series) -> None:
    steps = [point.steps or 0 for point in line.points]
    ax.set_xscale("log", base=2)
    ax.set_xticks(steps, [str(step) for step in steps])
    ax.set_xlabel("denoising steps T")


def keep_in_view(ax: "Axes", values: Sequence[float]) -> None:
    """Limit the height to what matters: a bound that is valid but uninformative may lie anywhere above."""
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.1
    ax.set_ylim(low - margin, high + margin)
