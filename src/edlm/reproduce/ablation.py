"""The figure of k and w: perplexity and entropy for every number of candidates and window, at one number of steps."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from edlm import plots
from edlm.errors import UserError
from edlm.generation_report import Row, show
from edlm.metrics import Estimate
from edlm.paper_figures import ABLATION, ABLATION_STEPS
from edlm.reports import Report, markdown_table
from edlm.reproduce.sampling import Study, cells, columns, grid_of, plan_samples, remarks, study
from edlm.reproduce.settings import Samples
from edlm.reproduce.stage import Job, Stage


def plan(stage: Stage) -> list[Job]:
    require_one(stage)
    return plan_samples(stage, with_ar=False)


def run(stage: Stage) -> Report:
    require_one(stage)
    done = study(stage, grid_of(stage, with_ar=False))
    if not any(row.energy for row in done.rows):
        raise UserError(f"{stage.name} needs an energy; name one with --ar or --energy-model")
    results = done.results | {"paper": {"steps": ABLATION_STEPS, "perplexity_by_window": ABLATION}}
    text = markdown_table([columns(done), *(cells(done, row) for row in done.rows)])
    return stage.write(text, [*remarks(done), paper_words()], results, partial(plot, done))


def require_one(stage: Stage) -> None:
    """A grid of k and w is of one number of steps."""
    assert isinstance(stage.settings, Samples)
    if len(stage.settings.steps) > 1:
        raise UserError(f"{stage.name} has one number of steps, got --steps {','.join(map(str, stage.settings.steps))}")


def paper_words() -> str:
    by_window = ", ".join(f"{value:g} for w = {window:g}" for window, value in ABLATION.items())
    return (
        f"The paper, at T = {ABLATION_STEPS}: GPT-2's perplexity is {by_window} (about), hardly depends on k up to 16, "
        "and falls a little more for larger w; its figure has no numbers in the text"
    )


def plot(done: Study, path: Path) -> None:
    """Two heat maps for each energy: perplexity by the first oracle, and entropy."""
    oracle, plain = done.oracles[0], next(row for row in done.rows if row.energy is None)
    methods = list(dict.fromkeys(row.method for row in done.rows if row.energy))
    with plots.figure(2, rows=len(methods), width=5.2, height=3.9) as (made, axes):
        for n, method in enumerate(methods):
            rows = [row for row in done.rows if row.method == method]
            title = f"Perplexity per {done.unit}, {method}"
            draw(axes[2 * n], rows, [done.perplexity(row, oracle) for row in rows], title)
            draw(axes[2 * n + 1], rows, [row.entropy for row in rows], f"Entropy, nats, {method}", is_low_good=False)
            for ax, value in ((axes[2 * n], done.perplexity(plain, oracle)), (axes[2 * n + 1], plain.entropy)):
                ax.set_xlabel(f"candidates k\nMDLM (w = 0): {show(value)}")
        made.suptitle(f"T = {plain.steps}, oracle {oracle}; darker is better or more varied", x=0.01, ha="left", size=9)
        plots.save(made, path)


def draw(ax, rows: Sequence[Row], values: Sequence[Estimate], title: str, *, is_low_good: bool = True) -> None:  # type: ignore[no-untyped-def]
    """One heat map: windows upwards, candidates to the right."""
    ks, ws = sorted({row.candidates or 0 for row in rows}), sorted({row.window or 0.0 for row in rows})
    found = {(row.window or 0.0, row.candidates or 0): value for row, value in zip(rows, values, strict=True)}
    grid = [[found[w, k] for k in ks] for w in ws]
    plots.draw_heat_map(
        ax, [[cell.mean for cell in line] for line in grid],
        [[show(cell).replace(" ±", "\n±") for cell in line] for line in grid],
        x=[str(k) for k in ks], y=[f"{w:g}" for w in ws], is_low_good=is_low_good,
    )  # fmt: skip
    ax.set_ylabel("window w")
    ax.set_title(title)
