"""Table 2: perplexity on the text that models were trained on and on seven other sets, beside the paper's rows."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from edlm import plots
from edlm.errors import UserError
from edlm.evaluator import HeldOut, evaluator
from edlm.paper_figures import OPENWEBTEXT, PERPLEXITY
from edlm.reports import Report
from edlm.reproduce.likelihoods import Measured, describe, load_models, measurements, work_of
from edlm.reproduce.settings import Likelihoods
from edlm.reproduce.stage import Job, Stage
from edlm.zeroshot_report import Rows, choose_sets, perplexity_error, remarks, source_of, table, title_of


def plan(stage: Stage) -> list[Job]:
    names, _ = choose_sets(stage.sets, stage.files)
    blocks = work_of(stage).max_blocks * (len(names) + 1)
    return [Job(row.label, row.passes * (blocks or 1), "" if blocks else " per block") for row in measurements(stage)]


def run(stage: Stage) -> Report | None:
    """Measure all rows on all sets, and write them; None in all processes but the first."""
    names, missing = choose_sets(stage.sets, stage.files)
    todo = list(measurements(stage))
    with evaluator(work_of(stage)) as measuring:
        models = load_models(stage, measuring)
        base = HeldOut(wrap_eos=stage.held_out.wrap_eos, cache=stage.held_out.cache)  # all of a set is its test split
        texts = {each: replace(base, data=source_of(each, stage.files)) for each in names}
        own, reason = own_text(models)
        texts = own | texts
        corpora = {each: models.corpus(text) for each, text in texts.items()}
        rows: Rows = {
            row.label: {
                each: models.measure(row, corpora[each], text.split, f", {each}") for each, text in texts.items()
            }
            for row in todo
        }
        if not measuring.world.is_first:
            return None
        results = {
            "rows": [{"set": each} | describe(row, rows[row.label][each]) for row in todo for each in texts],
            "missing": missing, "paper": PERPLEXITY,
        }  # fmt: skip
        assert isinstance(stage.settings, Likelihoods)
        effort = f"R = {stage.settings.inner}, n = {stage.settings.partition_samples}, seed {stage.settings.seed}"
        notes = [effort, *remarks(rows, missing).removeprefix("- ").split("\n- ")]
        return stage.write(table(rows), notes, results, partial(plot, rows), left_out=reason)


def own_text(models: Measured) -> tuple[dict[str, HeldOut], list[str]]:
    """The column of the models' own text, or why there is none. A typed --data is never left out."""
    stage = models.stage
    try:
        corpus = models.corpus(stage.held_out)
        _ = corpus[stage.held_out.split]
    except UserError as error:
        if stage.is_data_typed:
            raise
        return {}, [f"Left out: the models' own text ({error}; name it with --data)"]
    source = corpus.config.source
    name = (
        OPENWEBTEXT
        if OPENWEBTEXT in source.lower()
        else source.partition(":")[0]
        if ":" in source
        else Path(source).name
    )
    return {name: stage.held_out}, []


def plot(rows: Rows, path: Path) -> None:
    """Perplexity of each method on each set; standard errors as bars."""
    lines = []
    for n, (method, row) in enumerate(rows.items()):
        shift = (n - (len(rows) - 1) / 2) * 0.08
        points = [
            plots.Point(place + shift, result.perplexity, y_error=perplexity_error(result))
            for place, result in enumerate(row.values())
        ]
        lines.append(plots.Line(method, points))
    first = next(iter(rows.values()))
    with plots.figure(width=9) as (made, [ax]):
        plots.draw_lines(ax, lines, is_joined=False)
        ax.set_yscale("log")
        plots.plain_numbers(ax.yaxis)
        ax.set_xticks(range(len(first)), [title_of(name) for name in first])
        ax.grid(visible=False, axis="x")
        ax.set(ylabel=f"perplexity per {next(iter(first.values())).unit}")
        ax.set_title("Perplexity on text of other kinds")
        plots.name_lines(ax, lines)
        plots.save(made, path)
