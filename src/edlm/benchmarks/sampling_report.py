"""The sampling benchmark as tables and as a plot."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edlm.benchmarks.cost import Setting, on_gpu, work
from edlm.benchmarks.sampling_process import OTHERS
from edlm.plots import COLOURS, GREY, figure, look, plain_numbers, save
from edlm.reports import markdown_table

COMPARED = [
    "setting", "ours, s", "plain, s", "plain / ours", "plain on oneDNN / ours", "float32 / ours", "predicted, s",
    "share of peak", "ours", "plain"
]  # fmt: skip
COMPILED = ["setting", "ours, compiled, s", "plain / compiled", "plain on oneDNN / compiled", "float32 / compiled"]
MEMORY = ["setting", "peak memory"]
PREDICTED = ["setting", "TFLOP", "vocabulary", "calls", "seconds"]
CURVES = ["over", "value", "seconds", "range", "predicted, s", "share of peak"]


def report(rows: Sequence[tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
    """Tables for a person, and everything behind them."""
    sections: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("compared", "causal", "steps", "memory", "curves")
    }
    for section, row in rows[1:]:
        sections[section].append(row)
    machine = rows[0][1]
    text = (
        f"{machine['threads']} threads; matrix product {machine['peak'] / 1e9:.0f} GFLOP/s, network "
        f"{machine['network'] / 1e9:.0f}, projection with draw {machine['drawn'] / 1e9:.0f}, with score "
        f"{machine['scored'] / 1e9:.0f}; a call {1e3 * machine['call']:.1f} ms, a step {1e3 * machine['step']:.1f} ms\n"
    )
    if sections["compared"]:
        text += "\n" + markdown_table([COMPARED, *(compared_cells(row) for row in sections["compared"])])
    if with_compiled := [row for row in sections["compared"] if "compiled" in row]:
        text += "\n" + markdown_table([COMPILED, *(compiled_cells(row) for row in with_compiled)])
    if sections["memory"]:
        cells = [[row["setting"], megabytes(row["peak_megabytes"])] for row in sections["memory"]]
        text += "\n" + markdown_table([MEMORY, *cells])
    for row in sections["causal"]:
        low, high = row["ratio_range"]
        text += (
            f"\n{row['setting']}: {row['ours']:.0f} tokens/s, {row['ratio']:.2f} ({low:.2f} to {high:.2f}) times "
            f"transformers' generate on the same weights ({row['transformers']:.0f})\n"
        )
    for row in sections["steps"]:
        pairs = zip(row["masked"], row["seconds"], strict=True)
        text += f"\n{row['setting']}, seconds of a step by masked share: "
        text += ", ".join(f"{masked:.2f}: {seconds:.3f}" for masked, seconds in pairs) + "\n"
    exponents = {}
    for name, points in curve_points(sections["curves"]).items():
        exponents[name] = exponent(points)
    if exponents:
        text += "\n" + markdown_table([CURVES, *(curve_cells(row) for row in sections["curves"])])
        text += "\n" + ", ".join(f"seconds ~ {name}^{value:.2f}" for name, value in exponents.items()) + "\n"
    agreement = agreement_of([*sections["compared"], *sections["curves"]])
    if agreement is not None:
        text += "\npredicted / measured: median {median:.2f}, {low:.2f} to {high:.2f}; ".format(**agreement)
        text += "within 25% in {close} of {num} settings\n".format(**agreement)
    return text, {"machine": machine, **sections, "exponents": exponents, "agreement": agreement}


def agreement_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """How well the cost model predicts the measured seconds."""
    if not rows:
        return None
    ratios = np.array([row["predicted"] / row["ours"] for row in rows])
    spread = {"median": float(np.median(ratios)), "low": float(ratios.min()), "high": float(ratios.max())}
    return spread | {"close": int((abs(ratios - 1) <= 0.25).sum()), "num": len(rows)}


def predicted(settings: Sequence[Setting], *, speed: float, bandwidth: float) -> tuple[str, list[dict[str, Any]]]:
    """What the settings would cost on a GPU of that speed, on paper."""
    rows: list[dict[str, Any]] = []
    for setting in settings:
        needed = work(setting, device="cuda")
        seconds = on_gpu(setting, speed=speed, bandwidth=bandwidth).seconds(needed)
        share = (needed.drawn + needed.scored) / needed.total
        rows.append({"setting": setting.label, "operations": needed.total, "vocabulary_share": share,
                     "calls": needed.calls, "seconds": seconds})  # fmt: skip
    cells = [
        [r["setting"], f"{r['operations'] / 1e12:,.1f}", f"{r['vocabulary_share']:.0%}", f"{r['calls']:,.0f}",
         f"{r['seconds']:,.2f}"]
        for r in rows
    ]  # fmt: skip
    return markdown_table([PREDICTED, *cells]), rows


def compared_cells(row: dict[str, Any]) -> list[str]:
    ratios = [ratio_of(row, f"{name}_ratio") for name in OTHERS]
    paper = [f"{row['predicted']:.2f}", f"{row['share_of_peak']:.0%}"]
    memory = [megabytes(row["ours_megabytes"]), megabytes(row["plain_megabytes"])]
    return [row["setting"], f"{row['ours']:.2f}", f"{row['plain']:.2f}", *ratios, *paper, *memory]


def compiled_cells(row: dict[str, Any]) -> list[str]:
    ratios = [ratio_of(row, f"{name}_compiled_ratio") for name in OTHERS]
    return [row["setting"], f"{row['compiled']:.2f}", *ratios]


def ratio_of(row: dict[str, Any], key: str) -> str:
    low, high = row[f"{key}_range"]
    return f"{row[key]:.2f} ({low:.2f} to {high:.2f})"


def curve_cells(row: dict[str, Any]) -> list[str]:
    low, high = row["ours_range"]
    spread = f"{low:.2f} to {high:.2f}"
    return [
        row["over"],
        f"{row['value']:,}",
        f"{row['ours']:.2f}",
        spread,
        f"{row['predicted']:.2f}",
        f"{row['share_of_peak']:.0%}",
    ]


def megabytes(value: float) -> str:
    return f"{value:,.0f} MB"


def curve_points(rows: Sequence[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """(size, seconds) of each curve."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        points.setdefault(row["over"], []).append((row["value"], row["ours"]))
    return points


def draw_compared(results: dict[str, Any], path: Path) -> None:
    """How many times faster each setting is than the plain algorithm, and the memory of both."""
    rows = results["compared"]
    places = range(len(rows))
    with figure(2, width=4.2, height=0.6 * len(rows) + 1.6) as (made, (left, right)):
        low, high = ([abs(row["plain_ratio"] - row["plain_ratio_range"][n]) for row in rows] for n in (0, 1))
        left.barh(places, [row["plain_ratio"] for row in rows], xerr=[low, high], color=COLOURS[0])
        left.axvline(1, color=GREY, linestyle="--")
        left.set(yticks=places, yticklabels=[row["setting"] for row in rows], xlabel="plain / ours, seconds")
        for shift, side in ((-0.2, "ours"), (0.2, "plain")):
            sizes = [row[f"{side}_megabytes"] / 1e3 for row in rows]
            right.barh([n + shift for n in places], sizes, 0.4, label=side, color=COLOURS[0] if shift < 0 else GREY)
        right.set(yticks=places, yticklabels=[], xlabel="peak memory, GB")
        right.legend(frameon=False)
        for ax in (left, right):
            ax.invert_yaxis()
        save(made, path)


def plots_of(results: dict[str, Any]) -> dict[str, Callable[[Path], None]]:
    """Plots of what was measured, by file name."""
    draws = {"compared": draw_compared, "curves": draw_curves}
    return {f"{name}.png": partial(draw, results) for name, draw in draws.items() if results[name]}


def draw_curves(results: dict[str, Any], path: Path) -> None:
    """Measured seconds, and the cost model's, as each thing grows: one panel each."""
    names = list(curve_points(results["curves"]))
    columns = min(3, len(names))
    with figure(columns, rows=-(-len(names) // columns), width=3.6, height=3.2) as (made, axes):
        for ax in axes[len(names) :]:
            ax.remove()
        for ax, name in zip(axes, names, strict=False):
            rows = [row for row in results["curves"] if row["over"] == name]
            x = [row["value"] for row in rows]
            ax.plot(x, [row["ours"] for row in rows], **look(0), label="measured")
            ax.plot(x, [row["predicted"] for row in rows], color=GREY, linestyle="--", label="predicted")
            ax.set(xscale="log", yscale="log", xlabel=name.replace("_", " "), ylabel="seconds")
            ax.set_title(f"slope {results['exponents'][name]:.2f}")
            ax.set_xticks(x, [f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:,}" for value in x])
            ax.minorticks_off()
            plain_numbers(ax.yaxis)
        axes[0].legend(frameon=False)
        save(made, path)


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log seconds over log size, by least squares."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])
