"""What sampling costs: against the plain algorithm, as the work grows, and against the arithmetic on paper.

Where two samplers are compared they take turns in one process; memory is measured in a process of its own for each,
whose peak is then that sampler's alone. Every measurement is kept, so that a benchmark can be made in parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from edlm.benchmarks.cost import Setting, Speed, work
from edlm.errors import UserError

QUICK = Setting(num_layers=2, width=64, vocab_size=2000, length=64, batch_size=1, steps=4)
TEXT8 = Setting(num_layers=6, width=256, vocab_size=27, length=256, batch_size=1, steps=64)
SMALL = Setting(num_layers=12, width=768, vocab_size=50_257, length=1024, batch_size=1, steps=4)
PARTS = ("compared", "causal", "steps", "memory", "curves")
PROCESS = "edlm.benchmarks.sampling_process"
Ask = Callable[..., dict[str, Any]]
"""`isolated`, or one that remembers."""


@dataclass(frozen=True)
class Scale:
    """What is measured at one size of networks."""

    compared: Sequence[Setting]
    """Our sampler and the plain ones take turns."""
    lean: Sequence[Setting]
    """Ours alone, for its memory: the plain one would not fit."""
    by_step: Setting
    """Ours alone, step by step."""
    curves: Mapping[str, Sequence[Setting]]
    """Ours alone, as one thing grows."""


def growing(base: Setting, **values: Sequence[int]) -> dict[str, list[Setting]]:
    return {name: [replace(base, **{name: value}) for value in some] for name, some in values.items()}  # type: ignore[arg-type]


SCALES = {
    "quick": Scale(
        [QUICK, replace(QUICK, candidates=4)],
        [replace(QUICK, steps=1, candidates=k) for k in (1, 16, 64)],
        replace(QUICK, steps=4, candidates=4),
        growing(replace(QUICK, candidates=2), steps=[2, 4, 8], candidates=[2, 4, 8]),
    ),
    "text8": Scale(
        [replace(TEXT8, candidates=2), replace(TEXT8, candidates=8), replace(TEXT8, candidates=2, window=0.2), TEXT8],
        [replace(TEXT8, steps=4, candidates=k) for k in (1, 16, 256)],
        replace(TEXT8, steps=16, candidates=8),
        growing(
            replace(TEXT8, steps=16, candidates=4),
            steps=[4, 16, 64, 256, 1024], candidates=[1, 2, 4, 8, 16, 32], length=[64, 128, 256, 512, 1024],
            vocab_size=[27, 256, 2048, 16_384, 50_257], batch_size=[1, 2, 4, 8, 16],
        ),
    ),
    "small": Scale(
        [
            SMALL, replace(SMALL, candidates=2), replace(SMALL, steps=2, candidates=8),
            replace(SMALL, steps=1, candidates=16),
        ],
        [replace(SMALL, steps=1, candidates=k) for k in (1, 16, 256)],
        replace(SMALL, steps=8, candidates=4),
        growing(replace(SMALL, steps=2, candidates=2), steps=[1, 2, 4, 8], candidates=[1, 2, 4, 8]),
    ),
}  # fmt: skip


def bench_sampling(
    scale: str, ask: Ask, *, parts: Sequence[str], repeats: int, compiled: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:  # fmt: skip
    """(section, row) of the parts that were asked for at one scale, as they are measured; the machine comes first.

    With `compiled` our sampler also takes its turns with compiled networks.
    """
    if scale not in SCALES:
        raise UserError(f"--scale must be one of {', '.join(SCALES)}, got {scale!r}")
    if unknown := [part for part in parts if part not in PARTS]:
        raise UserError(f"--parts must be some of {','.join(PARTS)}, got {unknown[0]!r}")
    plan = SCALES[scale]

    def measure(setting: Setting, what: str, repeats: int = repeats) -> dict[str, Any]:
        what = "turns-compiled" if what == "turns" and compiled else what
        return ask(PROCESS, setting.label, asdict(setting), what, repeats)

    speed = measure(plan.compared[0], "speed")
    yield "machine", speed
    for part in parts:
        for row in MEASURES[part](plan, measure, speed):
            yield part, row


def compared(plan: Scale, measure: Ask, speed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All samplers in turns. Memory does not depend on the number of steps: the first is the largest."""
    for setting in plan.compared:
        row = measure(setting, "turns")
        for side in ("ours", "plain"):
            row |= {f"{side}_megabytes": measure(replace(setting, steps=1), f"{side}-memory", 0)["peak_megabytes"]}
        yield row | on_paper(setting, speed, row["ours"])


def causal(plan: Scale, measure: Ask, speed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield measure(plan.compared[0], "causal")


def by_step(plan: Scale, measure: Ask, speed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield measure(plan.by_step, "steps")


def memory(plan: Scale, measure: Ask, speed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for setting in plan.lean:
        yield measure(setting, "ours-memory", 0)


def curves(plan: Scale, measure: Ask, speed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, settings in plan.curves.items():
        for setting in settings:
            row = measure(setting, "ours")
            yield {"over": name, "value": getattr(setting, name)} | row | on_paper(setting, speed, row["ours"])


MEASURES = {"compared": compared, "causal": causal, "steps": by_step, "memory": memory, "curves": curves}


def on_paper(setting: Setting, speed: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The cost model's prediction, and which share of the processor's matrix speed the needed arithmetic reached."""
    needed = work(setting)
    machine = Speed(*(speed[name] for name in ("network", "drawn", "scored", "call", "step")))
    return {"predicted": machine.seconds(needed), "share_of_peak": needed.total / seconds / speed["peak"]}
