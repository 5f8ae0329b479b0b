"""Beyond the paper: all samplers side by side, at equal network passes or equal steps, and at equal time.

Each sampler is given as many steps as every number of passes buys, or the same numbers of steps as all; the plain
denoiser also draws with other numbers of steps, which is the curve that all are compared with. What a sampler reaches
"within the time" of one of these is its best measured point that took no longer: nothing is interpolated.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from edlm import generation_setup as setup
from edlm import plots
from edlm.evaluation import Likelihood
from edlm.evaluator import Evaluator, Work, evaluator
from edlm.generation import require_drafter
from edlm.generation_report import Row, plot_frontier, show, show_number
from edlm.likelihood_config import LikelihoodConfig
from edlm.metrics import Estimate
from edlm.reports import Report, markdown_table
from edlm.reproduce import equal_steps
from edlm.reproduce.equal_steps import MOST_ENTROPY, Against, less
from edlm.reproduce.sampler_spec import CAUSAL, DRAFTS, ENERGIES, PLAIN, Sampler, parse_sampler
from edlm.reproduce.sampling import Study, remarks, study
from edlm.reproduce.settings import Comparison
from edlm.reproduce.stage import Job, Stage
from edlm.reproduce.wall_clock import RULE, curve_point, speedup
from edlm.sample_config import SampleConfig
from edlm.speculative import Drafts
from edlm.study import Method, Setting


@dataclass(frozen=True)
class Entry:
    """A sampler with a number of steps."""

    sampler: Sampler
    setting: Setting
    passes: int | None
    """The number of passes that its steps were chosen for; None for a point of the plain denoiser's own curve, and
    for samplers that take what they need."""


def plan(stage: Stage) -> list[Job]:
    assert isinstance(stage.settings, Comparison)
    entries, _ = entries_of(stage)
    return [Job(entry.setting.label, entry.setting.cost * stage.settings.num) for entry in entries]


def run(stage: Stage) -> Report:
    entries, too_dear = entries_of(stage)
    done = study(stage, [entry.setting for entry in entries], with_text=True)
    held_out = done.rows[len(entries) :]
    bits = certified(stage, entries) if held_out else {}
    results = done.results | {"rule": RULE}
    for told, entry in zip(results["rows"], entries, strict=False):
        likelihood = bits.get(entry.setting.label)
        told |= {"sampler": entry.sampler.spec, "passes": entry.passes}
        told["likelihood"] = likelihood and asdict(likelihood)
    compared = Compared(done, entries, bits)
    for told, (entry, row) in zip(results["rows"], compared.rows, strict=False):
        against = compared.against(entry, row)
        told["against_mdlm"] = against and asdict(against) | {"verdict": against.verdict}
    notes = [*remarks(done), *words(stage), *too_dear]
    table = compared.by_steps() if is_of_steps(stage) else compared.by_passes()
    return stage.write(
        f"{table}\n{compared.by_time()}", notes, results, partial(plot, compared), left_out=done.left_out, quotes=False,
        more={"frontier.png": lambda path: plot_frontier(done.rows, path, done.unit)},
    )  # fmt: skip


# --- what is drawn


def entries_of(stage: Stage) -> tuple[list[Entry], list[str]]:
    """Every sampler with its steps, each once, and words about those that cannot make a single one."""
    settings = stage.settings
    assert isinstance(settings, Comparison)
    stage.require("denoiser", "oracle")
    base = SampleConfig(seed=settings.seed, batch_size=settings.batch_size)
    samplers, notes = [parse_sampler(spec) for spec in settings.samplers], []
    methods = load_methods(stage, samplers)
    entries = [
        Entry(parse_sampler(PLAIN), Setting(methods[PLAIN], replace(base, steps=steps)), None)
        for steps in settings.steps
    ]
    for sampler in samplers:
        method = methods.get(method_key(sampler))
        if method is None:
            continue  # its model is absent, which is said elsewhere
        made = list(steps_of(sampler, method, settings, base))
        notes += [] if made else [f"Left out: {sampler.spec} (one step takes more passes than there are)"]
        entries += made
    found: dict[str, Entry] = {}
    for entry in entries:  # a point of the curve may be what a budget buys, too
        if entry.setting.label not in found or entry.passes is not None:
            found[entry.setting.label] = entry
    return list(found.values()), notes


def steps_of(sampler: Sampler, method: Method, settings: Comparison, base: SampleConfig) -> Iterator[Entry]:
    """The sampler with the numbers of steps that are asked for, or as many as each number of passes buys."""
    if not sampler.has_steps:
        yield Entry(sampler, Setting(method, sampler.config(base, base.steps)), None)
        return
    each = method.energy.num_passes if method.energy is not None else 0
    wanted: list[tuple[int, int | None]] = [(steps, None) for steps in settings.steps]
    if settings.equal == "passes":
        wanted = [(sampler.steps_within(budget, each), budget) for budget in settings.passes]
    for steps, budget in wanted:
        if steps:
            yield Entry(sampler, Setting(method, sampler.config(base, steps, each)), budget)


def load_methods(stage: Stage, samplers: Sequence[Sampler]) -> dict[str, Method]:
    """The models behind the samplers, by `method_key`; the plain denoiser is always among them."""
    models, kinds = stage.cast, list(dict.fromkeys(sampler.kind for sampler in samplers))
    specs = models.energies([kind for kind in kinds if kind in ENERGIES])
    needs_causal = CAUSAL in kinds or DRAFTS in kinds
    loaded = setup.load_methods(models.denoiser, specs, models.ar if needs_causal else "", stage.compute)
    methods = {method.spec.partition(":")[0]: method for method in loaded[1:] if method.spec}
    methods[PLAIN] = loaded[0]
    if needs_causal and models.ar:
        methods[CAUSAL] = causal = loaded[-1]
        for sampler in samplers:
            if sampler.kind == DRAFTS:
                drafter = require_drafter(loaded[0].model, causal.model, models.denoiser)
                label = f"AR, drafts of {sampler.drafted}"
                methods[sampler.spec] = Method(label, causal.model, drafts=Drafts(drafter, sampler.drafted))
    return methods


def method_key(sampler: Sampler) -> str:
    return sampler.spec if sampler.kind == DRAFTS else sampler.kind


# --- certified bits


def certified(stage: Stage, entries: Sequence[Entry]) -> dict[str, Likelihood]:
    """The bound of each sampler that has one, on held-out text, by its label; of a causal model the exact value."""
    settings = stage.settings
    assert isinstance(settings, Comparison)
    found = {}
    with evaluator(Work(max_blocks=settings.max_blocks)) as measuring:
        for entry in entries:
            if not entry.setting.config.budget:  # with a budget there is none (`Adaptive.slots`)
                found[entry.setting.label] = bound(stage, measuring, entry)
    return found


def bound(stage: Stage, measuring: Evaluator, entry: Entry) -> Likelihood:
    settings, setting = stage.settings, entry.setting
    assert isinstance(settings, Comparison)
    name = stage.cast.ar if setting.method.is_causal else stage.cast.denoiser
    corpus = measuring.corpus(setting.method.model, name, stage.held_out)
    config = likelihood_of(setting.config, settings.inner)
    spec = setting.method.spec or None
    label = f"bits, {setting.label}"
    return measuring.measure(setting.method.model, corpus, stage.held_out.split, config, energy=spec, label=label)


def likelihood_of(config: SampleConfig, inner: int) -> LikelihoodConfig:
    """The bound that belongs to a sampler."""
    names = ("candidates", "completions", "smc", "lookahead", "ess", "window", "order", "seed")
    steps = 0 if config.first_hitting else config.steps
    return LikelihoodConfig(steps=steps, inner=inner, **{name: getattr(config, name) for name in names})


# --- what is shown


@dataclass(frozen=True)
class Compared:
    """The rows of all samplers, and what they say together."""

    study: Study
    entries: Sequence[Entry]
    bits: dict[str, Likelihood]

    @property
    def rows(self) -> list[tuple[Entry, Row]]:
        return list(zip(self.entries, self.study.rows, strict=False))  # held-out text comes last

    @property
    def oracle(self) -> str:
        """The first one decides."""
        return self.study.oracles[0]

    @property
    def curve(self) -> list[Row]:
        """The plain denoiser's rows, the fastest first."""
        return sorted((row for entry, row in self.rows if entry.sampler.spec == PLAIN), key=seconds)

    def perplexity(self, row: Row) -> Estimate:
        return self.study.perplexity(row, self.oracle)

    def against(self, entry: Entry, row: Row) -> Against | None:
        """What the row gains over the plain denoiser with as many steps, if that is another and there is one."""
        plain = next((other for other in self.curve if other.steps == row.steps), None)
        if plain is None or entry.sampler.spec == PLAIN:
            return None
        scores = [
            less(self.study.perplexity(row, name), self.study.perplexity(plain, name)) for name in self.study.oracles
        ]
        return Against(scores, less(row.entropy, plain.entropy))

    def by_passes(self) -> str:
        """A line for each setting, those of one number of passes together."""
        unit = next(iter(self.bits.values())).unit if self.bits else "token"
        header = ["passes for", "sampler", "T", "passes", *self.headings, f"bits per {unit}", "gain",
                  "s/sample", "speed-up"]  # fmt: skip
        lines = []
        for entry, row in sorted(self.rows, key=lambda pair: pair[0].passes or 0):
            found = self.bits.get(entry.setting.label)
            bits = show(Estimate(found.bits, found.standard_error)) if found else "–"
            known = [str(entry.passes or "–"), entry.sampler.spec, show_number(row.steps), show_number(passes(row))]
            rest = [bits, self.gain(entry), show_number(row.seconds_per_sample), self.speedup(entry, row)]
            lines.append([*known, *self.scores(row), *rest])
        return self.with_held_out(header, lines, empty=2)

    def by_steps(self) -> str:
        """A line for each setting, those of one number of steps together, and its verdict."""
        gaps = [f"less mdlm's, {name}" for name in self.study.oracles]
        header = ["T", "sampler", "passes", *self.headings, *gaps, "less mdlm's entropy", "gain", "s/sample", "is"]
        lines = []
        for entry, row in sorted(self.rows, key=lambda pair: pair[1].steps or math.inf):
            against, num = self.against(entry, row), len(gaps) + 1
            shown = [signed(gap) for gap in (*against.perplexities, against.entropy)] if against else ["–"] * num
            rest = [self.gain(entry), show_number(row.seconds_per_sample), against.verdict if against else "–"]
            known = [show_number(row.steps), entry.sampler.spec, show_number(passes(row))]
            lines.append([*known, *self.scores(row), *shown, *rest])
        return self.with_held_out(header, lines, empty=1)

    @property
    def headings(self) -> list[str]:
        """The names of the columns that `scores` fills."""
        per = "" if self.study.unit == "token" else f" per {self.study.unit}"
        return [*(f"PPL{per}, {name}" for name in self.study.oracles), "entropy, nats"]

    def scores(self, row: Row) -> list[str]:
        return [*(show(self.study.perplexity(row, name)) for name in self.study.oracles), show(row.entropy)]

    def with_held_out(self, header: list[str], lines: list[list[str]], *, empty: int) -> str:
        """The table, with held-out text last: its scores stand behind its name and so many empty columns."""
        for row in self.study.rows[len(self.entries) :]:
            cells = ["–", row.method, *["–"] * empty, *self.scores(row)]
            lines = [*lines, cells + ["–"] * (len(header) - len(cells))]
        return markdown_table([header, *lines])

    def gain(self, entry: Entry) -> str:
        found = self.bits.get(entry.setting.label)
        if not found or found.gain is None or found.gain_standard_error is None:
            return "–"
        return f"{found.gain:+.4f} ± {found.gain_standard_error:.4f}"

    def speedup(self, entry: Entry, row: Row) -> str:
        if entry.sampler.spec == PLAIN:
            return "–"
        curve = [curve_point(self.study, other, self.oracle) for other in self.curve]
        return str(speedup(curve_point(self.study, row, self.oracle), curve))

    def by_time(self) -> str:
        """A line for each sampler: its best within the time of each point of the plain denoiser's curve."""
        targets = self.curve
        last = targets[-1]
        header = ["sampler", *(f"PPL within {seconds(row):.3g} s (mdlm, T={row.steps})" for row in targets)]
        header.append(f"time of mdlm, T={last.steps}, over the least for its PPL")
        lines = []
        for spec in dict.fromkeys(entry.sampler.spec for entry in self.entries):
            own = [row for entry, row in self.rows if entry.sampler.spec == spec]
            best = [self.best_within(own, seconds(target)) for target in targets]
            shown = ["–" if row is None else f"{show(self.perplexity(row))}{in_steps(row)}" for row in best]
            lines.append([spec, *shown, self.reaches(own, last)])
        return markdown_table([header, *lines])

    def best_within(self, rows: Sequence[Row], most: float) -> Row | None:
        """The row of lowest perplexity that took no longer."""
        fast = [row for row in rows if seconds(row) <= most]
        return min(fast, key=lambda row: self.perplexity(row).mean, default=None)

    def reaches(self, rows: Sequence[Row], target: Row) -> str:
        """How much faster the perplexity of `target` is reached, at no less entropy than the tolerance allows."""
        goal, least = self.perplexity(target).mean, target.entropy.mean - MOST_ENTROPY
        good = [row for row in rows if self.perplexity(row).mean <= goal and row.entropy.mean >= least]
        fastest = min(good, key=seconds, default=None)
        return "not reached" if fastest is None else f"{seconds(target) / seconds(fastest):.2g}×{in_steps(fastest)}"


def seconds(row: Row) -> float:
    assert row.seconds_per_sample is not None
    return row.seconds_per_sample


def passes(row: Row) -> float:
    assert row.denoiser_passes is not None and row.energy_passes is not None
    return row.denoiser_passes.mean + row.energy_passes.mean


def signed(value: Estimate) -> str:
    return f"+{show(value)}" if value.mean >= 0 else show(value)


def is_of_steps(stage: Stage) -> bool:
    assert isinstance(stage.settings, Comparison)
    return stage.settings.equal == "steps"


def in_steps(row: Row) -> str:
    return f" (T={row.steps})" if row.steps else ""


def words(stage: Stage) -> list[str]:
    settings = stage.settings
    assert isinstance(settings, Comparison)
    chosen = [] if is_of_steps(stage) else ["passes for: the number of passes that T was chosen for"]
    return [
        *chosen,
        "passes: those that a sample took through denoiser and energy (a step that reveals nothing takes none; a "
        "causal model with drafts: both models')",
        f"bits: certified, R = {settings.inner}, on {settings.max_blocks or 'all'} blocks; exact for causal models and "
        "orders that leave nothing to chance; gain: bits below the denoiser's bound from the same masks; – where a "
        "budget makes the law depend on what a text does not show",
        equal_steps.RULE if is_of_steps(stage) else RULE,
        "Within a time: the best measured point of a sampler that took no longer; nothing is interpolated",
    ]


def plot(compared: Compared, path: Path) -> None:
    """Perplexity against passes and against seconds, a line for each sampler."""
    panels: dict[str, Any] = {"network passes per sample": passes, "seconds per sample": seconds}
    specs = list(dict.fromkeys(entry.sampler.spec for entry in compared.entries))
    with plots.figure(2, width=7.6, height=6.4) as (made, axes):
        for ax, (label, x) in zip(axes, panels.items(), strict=True):
            lines = []
            for spec in specs:
                own = sorted((row for entry, row in compared.rows if entry.sampler.spec == spec), key=seconds)
                lines.append(plots.Line(spec, [dot(compared, row, x(row)) for row in own]))
            plots.draw_lines(ax, lines)
            ax.set(xscale="log", yscale="log", xlabel=label)
            ax.set_ylabel(f"generative perplexity per {compared.study.unit}")
            ax.margins(0.08)
            plots.plain_numbers(ax.xaxis)
            plots.plain_numbers(ax.yaxis)
            ax.set_title(f"Perplexity by {compared.oracle}")
            plots.name_lines(ax, lines)
        plots.save(made, path)


def dot(compared: Compared, row: Row, x: float) -> plots.Point:
    y = compared.perplexity(row)
    return plots.Point(x, y.mean, y_error=y.standard_error, label=str(row.steps or ""))
