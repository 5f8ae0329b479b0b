"""What samplers that were measured side by side say together: at equal passes or steps, and at equal time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edlm import plots
from edlm.evaluation import Likelihood
from edlm.generation_report import Row, show, show_number
from edlm.metrics import Estimate
from edlm.reports import markdown_table
from edlm.reproduce.equal_steps import MOST_ENTROPY, Against, less
from edlm.reproduce.sampler_spec import PLAIN, Sampler
from edlm.reproduce.sampling import Study
from edlm.reproduce.wall_clock import curve_point, speedup
from edlm.study import Setting


@dataclass(frozen=True)
class Entry:
    """A sampler with a number of steps."""

    sampler: Sampler
    setting: Setting
    passes: int | None
    """The number of passes that its steps were chosen for; None for a point of the plain denoiser's own curve, and
    for samplers that take what they need."""


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


def in_steps(row: Row) -> str:
    return f" (T={row.steps})" if row.steps else ""


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
