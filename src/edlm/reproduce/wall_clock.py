"""The figure of quality against time: perplexity and entropy by seconds per sample, and the speed-up at equal quality.

The rule: a corrected sampler's perplexity is looked up on the plain denoiser's curve of the same run, between the two
neighbouring numbers of steps that enclose it, linearly in log perplexity; time is interpolated as a logarithm, entropy
as it is. Where several neighbours enclose it, the fastest count. The speed-up is the ratio of the two times. A
perplexity below all of the curve's takes the plain denoiser longer than its longest run, if it gets there at all: "more
than" the ratio to that one. It is "not reached" where the curve only has lower perplexities, or another entropy.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from edlm import plots
from edlm.generation_report import Row, named_once, show
from edlm.metrics import Estimate
from edlm.paper_figures import SPEEDUP
from edlm.reports import Report, markdown_table
from edlm.reproduce.equal_steps import MOST_ENTROPY
from edlm.reproduce.sampling import Study, cells, columns, grid_of, plan_samples, remarks, study
from edlm.reproduce.stage import Job, Stage

RULE = (
    "Speed-up: MDLM's seconds at the same perplexity, interpolated between neighbouring steps (log time, log "
    f"perplexity), over the sampler's own; more than that where its longest run does not get there; only if entropies "
    f"differ by at most {MOST_ENTROPY} nats"
)


@dataclass(frozen=True)
class CurvePoint:
    """A point of a curve: how long, how good, how varied."""

    seconds: float
    log_perplexity: Estimate
    entropy: float


@dataclass(frozen=True)
class Speedup:
    """How much longer the plain denoiser takes for the same quality, or why that cannot be said."""

    ratio: Estimate | None
    entropy_gap: float | None
    """The plain denoiser's entropy at this perplexity less the sampler's."""
    reason: str = ""
    is_at_least: bool = False
    """Whether the plain denoiser's longest run was not long enough, so that the true ratio is larger."""

    def __str__(self) -> str:
        if self.ratio is None:
            return f"not reached: {self.reason}"
        return f"more than {self.ratio.mean:.2g}×" if self.is_at_least else f"{show(self.ratio)}×"


def plan(stage: Stage) -> list[Job]:
    return plan_samples(stage, with_ar=True)


def run(stage: Stage) -> Report:
    done = study(stage, grid_of(stage, with_ar=True))
    found = [{name: speedup_of(done, row, name) for name in done.oracles} for row in done.rows]
    results = done.results | {"paper": asdict(SPEEDUP), "rule": RULE}
    for told, speeds in zip(results["rows"], found, strict=True):
        told["speedup"] = {name: speed and asdict(speed) for name, speed in speeds.items()}
    text = markdown_table([columns(done) + headings(done), *map(partial(line, done), done.rows, found)])
    return stage.write(text, [*remarks(done), RULE, paper_words()], results, partial(plot, done))


def headings(done: Study) -> list[str]:
    return [f"speed-up{f', {name}' if len(done.oracles) > 1 else ''}" for name in done.oracles]


def line(done: Study, row: Row, speeds: dict[str, Speedup | None]) -> list[str]:
    return cells(done, row) + [str(speed or "–") for speed in speeds.values()]


def paper_words() -> str:
    return (
        f"The paper: about {SPEEDUP.edlm_seconds:g} s against about {SPEEDUP.mdlm_seconds:g} s for one sample of 1024 "
        f"tokens at GPT-2's perplexity {SPEEDUP.perplexity}, {SPEEDUP.ratio}×, k = {SPEEDUP.candidates}, "
        f"w = {SPEEDUP.window}; read off its figure, entropies within 0.1"
    )


def speedup_of(done: Study, row: Row, oracle: str) -> Speedup | None:
    """Of one row against the plain denoiser's; None for rows without an energy."""
    if row.energy is None:
        return None
    curve = [curve_point(done, other, oracle) for other in done.rows if other.method == "MDLM"]
    return speedup(curve_point(done, row, oracle), sorted(curve, key=lambda point: point.seconds))


def curve_point(done: Study, row: Row, oracle: str) -> CurvePoint:
    value = done.perplexity(row, oracle)
    log = Estimate(math.log(value.mean), value.standard_error / value.mean)
    assert row.seconds_per_sample is not None
    return CurvePoint(row.seconds_per_sample, log, row.entropy.mean)


def speedup(sampler: CurvePoint, curve: Sequence[CurvePoint]) -> Speedup:
    """By the rule above; `curve` has the plain denoiser's points in order of time."""
    wanted = sampler.log_perplexity.mean
    for a, b in pairwise(curve):
        low, high = a.log_perplexity.mean, b.log_perplexity.mean
        if min(low, high) <= wanted <= max(low, high) and low != high:
            return at_share(sampler, a, b, (wanted - low) / (high - low))
    longest = curve[-1]
    if wanted < min(point.log_perplexity.mean for point in curve):
        gap = longest.entropy - sampler.entropy
        if abs(gap) > MOST_ENTROPY:
            return Speedup(None, gap, f"entropy differs by {gap:+.3f} nats")
        return Speedup(Estimate(longest.seconds / sampler.seconds, 0.0), gap, is_at_least=True)
    values = [math.exp(point.log_perplexity.mean) for point in curve]
    reason = f"MDLM has perplexities {min(values):.4g} to {max(values):.4g} only"
    return Speedup(None, None, reason)


def at_share(sampler: CurvePoint, a: CurvePoint, b: CurvePoint, share: float) -> Speedup:
    """The speed-up against the point that divides the way from `a` to `b`; its error is that of both perplexities."""
    gap = a.entropy + share * (b.entropy - a.entropy) - sampler.entropy
    if abs(gap) > MOST_ENTROPY:
        return Speedup(None, gap, f"entropy differs by {gap:+.3f} nats")
    log_seconds = math.log(a.seconds) + share * math.log(b.seconds / a.seconds)
    slope = math.log(b.seconds / a.seconds) / (b.log_perplexity.mean - a.log_perplexity.mean)
    curve_error = max(a.log_perplexity.standard_error, b.log_perplexity.standard_error)
    error = abs(slope) * math.hypot(sampler.log_perplexity.standard_error, curve_error)
    ratio = math.exp(log_seconds) / sampler.seconds
    return Speedup(Estimate(ratio, ratio * error), gap)


def plot(done: Study, path: Path) -> None:
    """Perplexity by the first oracle, and entropy, against seconds per sample on a logarithmic axis."""
    oracle = done.oracles[0]
    quality = curves(done, lambda row: done.perplexity(row, oracle))
    panels = {
        f"generative perplexity per {done.unit}": quality, "entropy, nats": curves(done, lambda row: row.entropy)
    }  # fmt: skip
    with plots.figure(2, width=7.0) as (made, axes):
        for ax, (label, lines) in zip(axes, panels.items(), strict=True):
            plots.draw_lines(ax, lines)
            ax.set(xscale="log", yscale="log" if ax is axes[0] else "linear", xlabel="seconds per sample", ylabel=label)
            ax.margins(0.1)
            plots.plain_numbers(ax.xaxis)
            if ax is axes[0]:
                plots.plain_numbers(ax.yaxis)
            plots.name_lines(ax, lines)
        axes[0].set_title(f"Quality against time, oracle {oracle}")
        axes[1].set_title("Diversity against time")
        plots.save(made, path)


def curves(done: Study, value) -> list[plots.Line]:  # type: ignore[no-untyped-def]
    """One line per method and window, a point per number of steps, labelled by it."""
    names = dict.fromkeys(row.curve for row in done.rows)
    lines = []
    for name in names:
        points = []
        for row in (row for row in done.rows if row.curve == name):
            assert row.seconds_per_sample is not None
            y, label = value(row), "" if row.steps is None else str(row.steps)
            points.append(plots.Point(row.seconds_per_sample, y.mean, y_error=y.standard_error, label=label))
        lines.append(plots.Line(name, list(named_once(points))))
    return lines
