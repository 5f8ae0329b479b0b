"""What the experiments on samples share: a grid of samplers, drawn and judged once, kept in the experiment's folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edlm import generation_setup as setup
from edlm.errors import UserError
from edlm.generation import require_tokenizer
from edlm.generation_report import Row, perplexity_per, show, show_number
from edlm.generation_study import run
from edlm.metrics import Estimate
from edlm.oracle import Oracle
from edlm.reproduce.settings import Comparison, Samples
from edlm.reproduce.stage import Job, Stage
from edlm.sample_config import SampleConfig
from edlm.study import Method, Setting, make_grid


@dataclass(frozen=True)
class Study:
    """Rows that were measured, and how."""

    rows: list[Row]
    report: dict[str, Any]
    oracles: list[str]
    unit: str
    """What perplexities are per: the oracle's token, or a character for samplers of characters."""
    left_out: Sequence[str] = ()

    def perplexity(self, row: Row, oracle: str) -> Estimate:
        return perplexity_per(self.unit, row, oracle)

    @property
    def results(self) -> dict[str, Any]:
        """For the JSON: the rows, each with the perplexities as they are shown."""
        rows = []
        for row, told in zip(self.rows, self.report["rows"], strict=True):
            shown = {name: self.perplexity(row, name) for name in self.oracles}
            rows.append(told | {"shown_perplexity": {name: vars(value) for name, value in shown.items()}})
        return self.report | {"rows": rows, "perplexity_per": self.unit}


def grid_of(stage: Stage, *, with_ar: bool) -> list[Setting]:
    """Every sampler of the experiment, the plain denoiser among them."""
    settings, cast = stage.settings, stage.cast
    assert isinstance(settings, Samples)
    stage.require("denoiser", "oracle")
    base = SampleConfig(seed=settings.seed, batch_size=settings.batch_size or 16)
    specs = cast.energies(settings.energies)
    methods = setup.load_methods(cast.denoiser, specs, cast.ar if with_ar else "", stage.compute)
    axes = settings.steps, settings.candidates, settings.window
    return make_grid(methods, *axes, base, settings.completions, smc=settings.smc, lookahead=settings.lookahead)


def plan_samples(stage: Stage, *, with_ar: bool) -> list[Job]:
    assert isinstance(stage.settings, Samples)
    return [Job(setting.label, setting.cost * stage.settings.num) for setting in grid_of(stage, with_ar=with_ar)]


def study(stage: Stage, grid: Sequence[Setting], *, with_text: bool = False) -> Study:
    """Draw and judge all samples; what an interrupted run had is kept. `with_text` adds a row of held-out text."""
    assert isinstance(stage.settings, Samples | Comparison)
    first = grid[0].method
    oracles = setup.load_oracles(stage.cast.oracle, first, grid[0].config.batch_size)
    texts, about, left_out = held_out_row(stage, first) if with_text else ([], None, [])
    rows = run(grid, oracles, stage.settings.num, stage.out, held_out=texts, progress=setup.progress)
    names = {"denoiser": stage.cast.denoiser, "ar": stage.cast.ar or None, "data": about}
    report = setup.report_of(rows, grid, oracles, names)
    return Study(rows, report, names_of(oracles), require_tokenizer(first.model).unit, left_out)


def names_of(oracles: Sequence[Oracle]) -> list[str]:
    return [oracle.name for oracle in oracles]


def held_out_row(stage: Stage, method: Method) -> tuple[list[dict[str, Any]], dict[str, Any] | None, list[str]]:
    """Held-out text in the place of samples, or why there is none. A typed --data is never left out."""
    assert isinstance(stage.settings, Samples | Comparison)
    from edlm.extras import require_extra

    try:
        require_extra("eval", "sklearn")
        return *setup.held_out_texts(stage.cast.denoiser, method, stage.held_out, stage.settings.num, None), []
    except UserError as error:
        if stage.is_data_typed:
            raise
        return [], None, [f"Left out: held-out text ({error})"]


def columns(study: Study) -> list[str]:
    """The names of the columns that `cells` fills."""
    per = "" if study.unit == "token" else f" per {study.unit}"
    return ["method", "T", "k", "w", *(f"PPL{per}, {name}" for name in study.oracles), "entropy, nats", "s/sample"]


def cells(study: Study, row: Row) -> list[str]:
    """One line of a table."""
    settings = [show_number(value) for value in (row.steps, row.candidates, row.window)]
    scores = [show(study.perplexity(row, name)) for name in study.oracles]
    return [row.method, *settings, *scores, show(row.entropy), show_number(row.seconds_per_sample)]


def remarks(study: Study) -> list[str]:
    """What all rows share."""
    about = study.report["protocol"]
    lines = [
        f"{about['num']} samples of {about['length']} tokens for each row, ± standard error over samples, seed "
        f"{about['seed']}; draws exact, float64; {about['batch_size']} drawn at once",
    ]
    if study.unit != "token":
        lines.append(f"Perplexity per {study.unit}: exp(nats per {study.unit}), comparable between oracles")
    return lines + [note[0].upper() + note[1:] for note in study.report["notes"]]
