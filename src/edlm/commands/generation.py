"""edlm evaluate generation"""

import json as json_module
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from edlm.commands.sample import Compute
from edlm.compute_config import ComputeConfig
from edlm.errors import UserError
from edlm.evaluator import HeldOut
from edlm.extras import require_extra
from edlm.sample_config import SampleConfig

if TYPE_CHECKING:
    from edlm.generation_report import Row


def generation(
    *,
    denoiser: str,
    energy: list[str] | None = None,
    ar: str = "",
    oracle: list[str],
    num: int = 64,
    steps: str = "16,64",
    candidates: str = "2",
    window: str = "1",
    completions: str = "0",
    smc: str = "0",
    lookahead: str = "0",
    ess: str = "0",
    budget: int = 0,
    order: str = "uniform",
    held_out: Annotated[HeldOut, Parameter(name="*")] = HeldOut(),
    features: str = "ngrams",
    length: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 16,
    compute: Compute = ComputeConfig(),
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Quality, diversity and cost of samples, for a grid of samplers; the plain denoiser (MDLM) is always among them.

    With --out everything drawn is kept: run the same command again to continue after an interruption, or with a larger
    --num to add samples.

    Parameters
    ----------
    denoiser
        Folder, built-in name or hub name of a denoiser; a training run's folder will do.
    energy
        What corrects the denoiser, as in `edlm sample`; repeat the flag to compare several.
    ar
        Folder, built-in name or hub name of an autoregressive model to compare with.
    oracle
        Who judges the samples: smollm2, or ar:NAME, any causal language model as in --energy; repeat it for several.
    num
        Samples per setting.
    steps
        Denoising steps T, as a list such as 16,32,64.
    candidates
        k, as a list such as 2,8.
    window
        w, as a list such as 0.2,1.
    completions
        0 for the paper's Algorithm 1, R of at least 1 for reveal-first importance sampling; a list such as 0,1.
    smc
        Positions of a block of sequential Monte Carlo, 0 for none; a list such as 0,8.
    lookahead
        With --smc: how strongly the denoiser tells the causal model what is coming, 0 to draw from the denoiser; a list
        such as 0,1.
    ess
        Effective number of candidates that is enough, 0 to take k always; a list such as 0,1.5.
    budget
        With --ess: energy passes that a sample may take in all; 0 for any number.
    order
        What a step reveals, as in `edlm sample`; a list such as uniform,confidence,entropy:0.5,remask-cap:0.1.
    features
        What texts are compared by: ngrams (of characters), or one of the oracles hf:, gguf: and smollm2.
    length
        Tokens per sample; by default the denoiser's length.
    temperature
        Of the denoiser or causal model. Below 1 lowers perplexity and entropy alike.
    seed
        Sample i of every setting is drawn from the numbers seeded by (seed, i).
    batch_size
        Samples drawn, and texts scored, at once; changes the time only.
    out
        Folder for samples, scores, results.json, results.md and frontier.png.
    json
        Print the results and their whole protocol as JSON.
    """
    if num < 1:
        raise UserError(f"--num must be at least 1, got {num}")
    base = SampleConfig(length=length, temperature=temperature, seed=seed, batch_size=batch_size)
    axes = numbers("--steps", steps, int), numbers("--candidates", candidates, int), numbers("--window", window, float)
    shared = numbers("--completions", completions, int)
    kinds = {"smc": numbers("--smc", smc, int), "ess": numbers("--ess", ess, float), "orders": order.split(","),
             "lookahead": numbers("--lookahead", lookahead, float)}  # fmt: skip
    if budget:
        base = replace(base, budget=budget, ess=max(kinds["ess"]))
    fields = ("steps", "candidates", "window", "completions", "smc", "ess", "order", "lookahead")
    check_settings(base, dict(zip(fields, (*axes, shared, *kinds.values()), strict=True)))
    require_extras(oracle, held_out.data, out)
    if out is not None:
        from edlm.durable import require_folder

        require_folder("--out", out)
    from edlm import generation_setup as setup
    from edlm.generation import require_tokenizer
    from edlm.generation_study import run
    from edlm.study import make_grid

    methods = setup.load_methods(denoiser, energy or [], ar, compute)
    texts: list[dict[str, Any]] = []
    about_data = None
    if held_out.data:
        texts, about_data = setup.held_out_texts(denoiser, methods[0], held_out, num, length)
    oracles = setup.load_oracles(oracle, methods[0], batch_size)
    embedder = setup.choose_features(features, oracles)
    grid = make_grid(methods, *axes, base, shared, **kinds)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as folder:
        rows = run(grid, oracles, num, Path(folder), held_out=texts, features=embedder, progress=setup.progress)
    names = {"denoiser": denoiser, "ar": ar or None, "data": about_data}
    report = setup.report_of(rows, grid, oracles, names)
    show(report, rows, out, unit=require_tokenizer(methods[0].model).unit, json=json)


def check_settings(base: SampleConfig, axes: dict[str, list[Any]]) -> None:
    """Refuse what cannot be sampled with, before anything is loaded."""
    plain = replace(base, budget=0, ess=0.0)
    for name, value in ((name, value) for name, values in axes.items() for value in values):
        replace(plain, **({"smc": max(axes["smc"])} if name == "lookahead" else {}), **{name: value})


def numbers(flag: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    """The numbers of a list such as 16,32,64, each once, in the order given."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{flag} must be {what} with commas between, such as 2,8; got {text!r}") from None
    return list(dict.fromkeys(values))


def require_extras(oracles: Sequence[str], data: str, out: Path | None) -> None:
    """Refuse at once what would be missed only after the samples are drawn."""
    if any(not name.startswith("ar:") for name in oracles):
        require_extra("eval", "transformers")
    if data:
        require_extra("eval", "sklearn")
    if out is not None:
        require_extra("eval", "matplotlib")


def show(report: dict[str, Any], rows: "Sequence[Row]", out: Path | None, *, unit: str, json: bool) -> None:
    """Print the results, and write them to the folder."""
    from edlm.commands.output import print_json
    from edlm.durable import write_whole
    from edlm.generation_report import plot_frontier, table
    from edlm.reports import plain

    text = table(rows) + "\n" + "".join(f"- {note}\n" for note in report["notes"])
    if out is not None:
        write_whole(out / "results.json", (json_module.dumps(plain(report), indent=2) + "\n").encode())
        write_whole(out / "results.md", text.encode())
        plot_frontier(rows, out / "frontier.png", unit)
    print_json(report) if json else print(text, end="")
