"""edlm evaluate likelihood"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from edlm.commands.generation import generation
from edlm.commands.output import print_json, print_table
from edlm.commands.sample import Compute, require_one_model
from edlm.commands.zeroshot import zeroshot
from edlm.compute_config import FULL, ComputeConfig
from edlm.errors import UserError
from edlm.evaluator import HeldOut, Work, evaluator
from edlm.likelihood_config import LikelihoodConfig
from edlm.sweep_config import SweepConfig, one_number_of_candidates, parse_sweep

if TYPE_CHECKING:
    from edlm.evaluation import Likelihood

app = App(help="Measure models.")
HEADLINE = ("bits", "standard_error", "nats", "perplexity", "remark", "gain", "gain_standard_error")
app.command(zeroshot)
app.command(generation)


@app.command
def likelihood(
    *,
    denoiser: str = "",
    ar: str = "",
    energy: Annotated[list[str] | None, Parameter(negative=())] = None,
    held_out: Annotated[HeldOut, Parameter(name="*")] = HeldOut(),
    work: Annotated[Work, Parameter(name="*")] = Work(),
    candidates: str = "2",
    settings: Annotated[LikelihoodConfig, Parameter(name="*")] = LikelihoodConfig(),
    sweep: str = "",
    out: Path = Path("runs/likelihood"),
    compute: Compute = FULL,
    json: bool = False,
) -> None:
    """Bits per character (or token) of held-out text: exact for an autoregressive model, an upper bound for a denoiser.

    With an energy the bound is of the sampler that would be run with the same steps, candidates and window. An
    interrupted evaluation goes on where it was when the same command is given again; under torchrun the blocks are
    shared out.

    Parameters
    ----------
    denoiser
        Folder, built-in name or hub name of a denoiser or a masked language model; a training run's folder will do.
    ar
        Folder, built-in name or hub name of an autoregressive model, instead of a denoiser; beside one in a sweep.
    energy
        What corrects the denoiser, as in `edlm sample`: ar:NAME, coar:NAME, nce:NAME, step:NAME or a sum. A sweep takes
        several.
    candidates
        k: candidates of a step, of which the energy chooses one; 'ideal' for the limit of many. A sweep takes a list,
        such as 2,4,8,ideal.
    sweep
        Measure a whole grid, such as steps=1,2,4,...,256, for the denoiser alone and with every energy and number of
        candidates; writes a table and a plot.
    out
        Folder for the table and the plot of a sweep.
    json
        Print the result and its whole protocol as JSON.
    """
    specs = energy or []
    if sweep:
        grid = parse_sweep(sweep, candidates, settings)
        return run_sweep(denoiser, ar, specs, grid, held_out, work, out=out, compute=compute, json=json)
    require_one_model(denoiser, ar)
    if len(specs) > 1:
        raise UserError("one energy at a time, or a sum such as 'ar:NAME + nce:NAME'; several need --sweep steps=...")
    if specs and ar:
        raise UserError("an energy corrects a denoiser; an autoregressive model needs none")
    config = replace(settings, candidates=one_number_of_candidates(candidates))
    name, spec = denoiser or ar, specs[0] if specs else None
    from edlm.models.load import load_named

    with evaluator(work) as measuring:
        model = load_named(denoiser, ar, compute)
        corpus = measuring.corpus(model, name, held_out)
        result = measuring.measure(model, corpus, held_out.split, config, energy=spec)
        if measuring.world.is_first:
            show(result, json=json)
    return None


def run_sweep(
    denoiser: str, ar: str, energies: list[str], grid: SweepConfig, held_out: HeldOut, work: Work, *, out: Path,
    compute: ComputeConfig, json: bool,
) -> None:  # fmt: skip
    """The whole grid, in the order of its points; what is done stays done if it is interrupted."""
    if not denoiser:
        raise UserError("--sweep needs a denoiser; name one with --denoiser DIR")
    from edlm.models.load import load_named
    from edlm.sweep import Series, report_sweep, series_of

    with evaluator(work) as measuring:
        model = load_named(denoiser, "", compute)
        corpus = measuring.corpus(model, denoiser, held_out)
        split = held_out.split
        lines = []
        for name, spec, configs in series_of(grid, energies):
            points = [
                measuring.measure(model, corpus, split, config, energy=spec, label=f"{name}, T = {config.steps}")
                for config in configs
            ]
            lines.append(Series(name, points))
        reference = None
        if ar:
            causal = load_named("", ar, compute)
            reference = measuring.measure(causal, corpus, split, grid.settings, label="autoregressive")
        if measuring.world.is_first:
            report = report_sweep(out, lines, reference)
            print_json(report.as_dict()) if json else print(report.as_text())


def show(result: "Likelihood", *, json: bool) -> None:
    """The result with its protocol: a table for a person, or JSON."""
    rows = asdict(result)
    if json:
        print_json(rows)
        return
    about = rows.pop("data") or {}
    about["data"] = about.pop("splits", {}).get(about.get("split"))
    print(
        f"{result.bits:.4f} ± {result.standard_error:.4f} bits per {result.unit}  "
        f"({result.nats:.4f} nats, perplexity {result.perplexity:.3f})"
    )
    if result.gain is not None:
        print(
            f"{result.gain:+.4f} ± {result.gain_standard_error:.4f} gained over the denoiser alone, on the same masks"
        )
    if result.remark:
        print(result.remark)
    shown = {key: value for key, value in rows.items() if value not in (None, "")}
    print_table({**{k: v for k, v in shown.items() if k not in HEADLINE}, **about})
