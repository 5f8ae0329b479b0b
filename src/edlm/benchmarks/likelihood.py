"""What likelihood costs as its effort grows: speed and peak memory, each setting in a process of its own.

Weights and text are random: neither changes the work. The denoiser's pass is shared by all draws, and draws are scored
a few at a time, so seconds grow with their number and memory does not.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edlm.benchmarks.isolated import arguments_of, isolated, peak_megabytes
from edlm.errors import UserError
from edlm.likelihood_config import LikelihoodConfig
from edlm.plots import figure, look, save
from edlm.reports import markdown_table

ENERGIES = ("ar", "coar", "nce")


@dataclass(frozen=True)
class Setting:
    """One measurement."""

    protocol: str
    num: int
    """n of the paper's formula, or R of the certified bound."""
    energy: str
    preset: str
    vocab_size: int
    length: int
    batch_size: int
    steps: int
    candidates: int
    repeats: int

    def config(self) -> LikelihoodConfig:
        if self.protocol == "paper":
            return LikelihoodConfig("paper", self.steps, partition_samples=self.num)
        return LikelihoodConfig("certified", self.steps, self.candidates, inner=self.num)


def bench_likelihood(
    nums: Sequence[int], *, energy: str, preset: str, vocab_size: int, length: int, batch_size: int, steps: int,
    candidates: int, repeats: int,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One row per protocol and number of draws, as it is measured."""
    if energy not in ENERGIES:
        raise UserError(f"--energy must be one of {', '.join(ENERGIES)}, got {energy!r}")
    for protocol in ("paper", "certified"):
        for num in nums:
            setting = Setting(protocol, num, energy, preset, vocab_size, length, batch_size, steps, candidates, repeats)
            yield isolated("edlm.benchmarks.likelihood", f"{protocol}, {num} draws", asdict(setting))


def run(setting: Setting) -> dict[str, Any]:
    """The measurement itself: the median time of scoring one batch, after one to warm up."""
    import torch

    from edlm.evaluation import make_score
    from edlm.randomness import make_generator

    denoiser, energy = random_models(setting)
    score = make_score(denoiser, setting.config(), energy)
    shape = (setting.batch_size, setting.length)
    x0 = torch.randint(setting.vocab_size, shape, generator=make_generator(0))
    seconds = []
    for n in range(setting.repeats + 1):
        start = time.perf_counter()
        score.function(x0, range(n * len(x0), (n + 1) * len(x0)))
        seconds.append(time.perf_counter() - start)
    typical = statistics.median(seconds[1:])
    return {
        "protocol": setting.protocol,
        "num": setting.num,
        "draws": f"{'n' if setting.protocol == 'paper' else 'R'} = {setting.num}",
        "tokens_per_second": x0.numel() / typical,
        "range": [x0.numel() / max(seconds[1:]), x0.numel() / min(seconds[1:])],
        "peak_megabytes": peak_megabytes(),
        "threads": torch.get_num_threads(),
    }


def random_models(setting: Setting) -> Any:
    """A denoiser and an energy with random weights."""
    from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy
    from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
    from edlm.models.denoiser import Denoiser, DenoiserConfig
    from edlm.models.energy_network import energy_from_denoiser
    from edlm.models.transformer import make_transformer_config

    config = make_transformer_config(setting.preset, setting.vocab_size, setting.length, dropout=0.0)
    denoiser = Denoiser(DenoiserConfig(config)).eval()
    if setting.energy == "nce":
        return denoiser, LearnedEnergy(energy_from_denoiser(denoiser).eval())
    causal = Autoregressive(AutoregressiveConfig(config)).eval()
    return denoiser, AutoregressiveEnergy(causal) if setting.energy == "ar" else CarryOverEnergy(causal)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows for a person."""
    cells = [["protocol", "draws", "tokens/s", "range", "peak memory"]]
    for row in rows:
        low, high = row["range"]
        speed, memory = f"{row['tokens_per_second']:.1f}", f"{row['peak_megabytes']:.0f} MB"
        cells.append([row["protocol"], row["draws"], speed, f"{low:.1f} to {high:.1f}", memory])
    return markdown_table(cells)


def draw_effort(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Seconds per token and peak memory over the number of draws, one line per protocol."""
    with figure(2, width=4.2, height=3.4) as (made, (left, right)):
        for index, protocol in enumerate(dict.fromkeys(row["protocol"] for row in rows)):
            some = [row for row in rows if row["protocol"] == protocol]
            x = [row["num"] for row in some]
            left.plot(x, [1 / row["tokens_per_second"] for row in some], **look(index), label=protocol)
            right.plot(x, [row["peak_megabytes"] for row in some], **look(index), label=protocol)
        left.set(xscale="log", yscale="log", xlabel="draws (n or R)", ylabel="seconds per token")
        right.set(xscale="log", xlabel="draws (n or R)", ylabel="peak memory, MB", ylim=(0, None))
        left.legend(frameon=False)
        save(made, path)


if __name__ == "__main__":
    print(json.dumps(run(Setting(**arguments_of(sys.argv[1:])[0]))))
