"""Table 1: bits per character of text8's test split, beside the paper's list."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from edlm import paper_figures, plots
from edlm.evaluation import NOT_A_BOUND
from edlm.evaluator import evaluator
from edlm.reports import Report, markdown_table
from edlm.reproduce.likelihoods import describe, load_models, measurements, work_of
from edlm.reproduce.stage import Job, Stage

Rows = Sequence[dict[str, Any]]
QUOTED = "the paper's table 1"


def plan(stage: Stage) -> list[Job]:
    blocks = work_of(stage).max_blocks
    return [Job(row.label, row.passes * (blocks or 1), "" if blocks else " per block") for row in measurements(stage)]


def run(stage: Stage) -> Report | None:
    """Measure all rows, and write them; None in all processes but the first."""
    todo = list(measurements(stage))
    with evaluator(work_of(stage)) as measuring:
        models = load_models(stage, measuring)
        corpus, split = models.corpus(stage.held_out), stage.held_out.split
        rows = [describe(row, models.measure(row, corpus, split)) for row in todo]
        if not measuring.world.is_first:
            return None
        results = {"rows": rows, "paper": [asdict(row) for row in paper_figures.TEXT8]}
        return stage.write(table(rows), remarks(rows), results, partial(plot, rows))


def table(rows: Rows) -> str:
    """Our rows with their settings, then the paper's."""
    unit = rows[0]["unit"]
    lines = [["method", "protocol", "T", "k", "w", "R", "n", f"bits per {unit}", "which is"]]
    for row in rows:
        settings = [row["steps"], row["candidates"], row["window"], row["inner"], row["partition_samples"]]
        shown = ["–" if value is None else f"{value:g}" for value in settings]
        value = f"{row['bits']:.4f} ± {row['standard_error']:.4f}"
        lines.append([row["method"], row["protocol"], *shown, value, nature(row)])
    for figure in paper_figures.TEXT8:
        value = f"{'≤ ' if figure.is_bound else ''}{figure.bits:.2f}"
        lines.append([f"paper: {figure.method}", *["–"] * 6, value, figure.group])
    return markdown_table(lines)


def nature(row: dict[str, Any]) -> str:
    """In two words what a number is."""
    if row["remark"]:
        return "not a bound"
    return "exact" if row["quantity"].startswith("exact") else "upper bound"


def remarks(rows: Rows) -> list[str]:
    """What all rows share, and what they are not."""
    first = rows[0]
    about = f"{first['num_blocks']:,} blocks of {first['block_length']} ({first['num_tokens']:,} {first['unit']}s)"
    source, split = first["data"]["splits"][first["data"]["split"]]["source"], first["data"]["split"]
    seeds = {row["seed"] for row in rows if row["seed"] is not None}
    seed = "".join(f"; seed {seed}" for seed in seeds)
    lines = [f"± standard error over {about} of {source}, split {split}{seed}"]
    lines += [f"{row['label']}: {row['quantity']}" for row in rows]
    if any(row["remark"] for row in rows):
        lines.append(f"Protocol paper: {NOT_A_BOUND}")
    return lines


def plot(rows: Rows, path: Path) -> None:
    """Our values by protocol, and the paper's list, on one axis of bits."""
    groups = {
        "ours, exact or certified": [dot(row) for row in rows if not row["remark"]],
        "ours by the paper's formula, not a bound": [dot(row) for row in rows if row["remark"]],
        QUOTED: [plots.Dot(row.method, row.bits) for row in paper_figures.TEXT8],
    }
    groups = {name: dots for name, dots in groups.items() if dots}
    with plots.figure(height=plots.dots_height(groups)) as (made, [ax]):
        plots.draw_dots(ax, groups, quoted=QUOTED)
        ax.set(xlabel=f"bits per {rows[0]['unit']}")
        ax.set_title("Likelihood of held-out text")
        plots.save(made, path)


def dot(row: dict[str, Any]) -> plots.Dot:
    label = row["method"] if row["remark"] else row["label"]
    return plots.Dot(label, row["bits"], row["standard_error"])
