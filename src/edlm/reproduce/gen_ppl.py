"""Table 3: generative perplexity and entropy of samples by method and number of steps, beside the paper's."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

from edlm.generation_report import plot_frontier
from edlm.paper_figures import GENERATION
from edlm.reports import Report, markdown_table
from edlm.reproduce.sampling import Study, cells, columns, grid_of, plan_samples, remarks, study
from edlm.reproduce.stage import Job, Stage


def plan(stage: Stage) -> list[Job]:
    return plan_samples(stage, with_ar=True)


def run(stage: Stage) -> Report:
    done = study(stage, grid_of(stage, with_ar=True), with_text=True)
    results = done.results | {"paper": [asdict(row) for row in GENERATION]}
    return stage.write(table(done), remarks(done), results, partial(plot, done), left_out=done.left_out)


def table(done: Study) -> str:
    """Ours, then the paper's in a table of its own: its oracles are others."""
    ours = markdown_table([columns(done), *(cells(done, row) for row in done.rows)])
    return f"{ours}\nThe paper's table 3, on OpenWebText, w = 1:\n\n{paper_table()}"


def paper_table() -> str:
    lines = [["paper", "T", "PPL, Llama 2", "PPL, Llama 3", "PPL, GPT-2", "entropy"]]
    for row in GENERATION:
        values = (row.llama2, row.llama3, row.gpt2, row.entropy)
        lines.append([f"paper: {row.method}", row.steps, *(f"{value:.1f}" for value in values)])
    return markdown_table(lines)


def plot(done: Study, path: Path) -> None:
    """Perplexity against entropy: a table of one without the other can be gamed."""
    plot_frontier(done.rows, path, done.unit)
