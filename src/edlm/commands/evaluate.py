"""edlm evaluate likelihood"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from edlm.commands.output import print_json, print_table
from edlm.commands.sample import Device, load, require_one_model
from edlm.data.config import DataConfig
from edlm.data.record import trained_on
from edlm.errors import UserError
from edlm.likelihood_config import LikelihoodConfig
from edlm.sweep_config import SweepConfig, parse_candidates, parse_sweep

if TYPE_CHECKING:
    from edlm.data import Corpus
    from edlm.distributed import World
    from edlm.evaluation import Likelihood
    from edlm.generation import Model

app = App(help="Measure models.")


@dataclass(frozen=True)
class HeldOut:
    """The text that is scored. Tokenizer and block length are the model's."""

    data: Annotated[str, Parameter(allow_leading_hyphen=True)] = ""
    """Source of the text, as in `edlm data prepare --source`; by default what the model was trained with."""
    split: str = "test"
    """Which split of the data is scored."""
    validation: str | None = None
    """Validation text of the data, as in `edlm data prepare`."""
    test: str | None = None
    """Test text of the data, as in `edlm data prepare`."""
    text_field: str | None = None
    """Field that holds the text."""
    document_separator: str | None = None
    """Mark between documents inside a text file."""
    wrap_eos: bool | None = None
    """Start and end every block with the end-of-document token."""
    normalise: bool | None = None
    """Map text to a-z and space first."""
    cache: str | None = None
    """Folder of the tokenised data, and of what an interrupted evaluation has done."""
    max_blocks: int = 0
    """Score only so many evenly spaced blocks; 0 means all."""
    batch_size: int = 0
    """Blocks scored at once; 0 takes what fits into memory. Does not change the result."""

    def __post_init__(self) -> None:
        for name in ("max_blocks", "batch_size"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name.replace('_', '-')} must not be negative, got {getattr(self, name)}")


@app.command
def likelihood(
    *,
    denoiser: str = "",
    ar: str = "",
    energy: Annotated[list[str] | None, Parameter(negative=())] = None,
    held_out: Annotated[HeldOut, Parameter(name="*")] = HeldOut(),
    candidates: str = "2",
    settings: Annotated[LikelihoodConfig, Parameter(name="*")] = LikelihoodConfig(),
    sweep: str = "",
    out: Path = Path("runs/likelihood"),
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Bits per character (or token) of held-out text: exact for an autoregressive model, an upper bound for a denoiser.

    With an energy the bound is of the sampler that would be run with the same steps, candidates and window. An
    interrupted evaluation goes on where it was when the same command is given again; under torchrun the blocks are
    shared out.

    Parameters
    ----------
    denoiser
        Folder or hub name of a denoiser; a training run's folder will do.
    ar
        Folder or hub name of an autoregressive model, instead of a denoiser; beside one in a sweep.
    energy
        What corrects the denoiser, as in `edlm sample`: ar:DIR, coar:DIR, nce:DIR or a weighted sum. A sweep takes
        several.
    candidates
        k: candidates of a step, of which the energy chooses one; 'ideal' for the limit of many. A sweep takes a list,
        such as 2,4,8,ideal.
    sweep
        Measure a whole grid, such as steps=1,2,4,...,256, for the denoiser alone and with every energy and number of
        candidates; writes a table and a plot.
    out
        Folder for the table and the plot of a sweep.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print the result and its whole protocol as JSON.
    """
    specs = energy or []
    if sweep:
        return run_sweep(denoiser, ar, specs, held_out, parse_sweep(sweep, candidates, settings), out, device, json)
    require_one_model(denoiser, ar)
    if len(specs) > 1:
        raise UserError("one energy at a time, or a sum such as 'ar:DIR + nce:DIR'; several need --sweep steps=...")
    if specs and ar:
        raise UserError("an energy corrects a denoiser; an autoregressive model needs none")
    k, *more = parse_candidates(candidates)
    if more:
        raise UserError(f"several numbers of candidates need --sweep steps=..., got --candidates {candidates}")
    from edlm.distributed import join_world

    with join_world() as world:
        model = load(denoiser, ar, device)
        corpus = prepare_for(model, denoiser or ar, held_out, world)
        config = replace(settings, candidates=k)
        with measuring(model, denoiser or ar, corpus, held_out, world) as measure:
            result = measure(specs[0] if specs else None, config)
        if world.is_first:
            show(result, json=json)
    return None


def run_sweep(
    denoiser: str, ar: str, energies: list[str], held_out: HeldOut, grid: SweepConfig, out: Path, device: Device,
    json: bool,
) -> None:  # fmt: skip
    """The whole grid, in the order of its points; what is done stays done if it is interrupted."""
    if not denoiser:
        raise UserError("--sweep needs a denoiser; name one with --denoiser DIR")
    from edlm.commands.require import require_extra

    require_extra("eval", "matplotlib")
    from edlm.distributed import join_world
    from edlm.sweep import Series, series_of, write_report

    with join_world() as world:
        model = load(denoiser, "", device)
        corpus = prepare_for(model, denoiser, held_out, world)
        lines: list[Series] = []
        with measuring(model, denoiser, corpus, held_out, world) as measure:
            for name, spec, configs in series_of(grid, energies):
                lines.append(Series(name, [measure(spec, config, name) for config in configs]))
        reference = None
        if ar:
            causal = load("", ar, device)
            with measuring(causal, ar, corpus, held_out, world) as measure:
                reference = measure(None, grid.settings, "autoregressive")
        if world.is_first:
            report = write_report(out, lines, reference)
            print_json(report.as_dict()) if json else print(report.as_text())


def prepare_for(model: "Model", name: str, held_out: HeldOut, world: "World") -> "Corpus":
    """The held-out text in the model's tokens."""
    from edlm.data import prepare
    from edlm.models.pretrained import find_folder

    folder = find_folder(name)
    if model.tokenizer is None:
        raise UserError(
            f"{folder} has no tokenizer.json; put the tokenizer the model was trained with beside its weights"
        )
    config = replace(data_of(folder, held_out), tokenizer=str(folder), length=model.length)
    return prepare(config, progress=None if world.is_first else False)


def data_of(folder: Path, held_out: HeldOut) -> DataConfig:
    """The data named on the command line; what was left out is as in the model's training, if it is the same source."""
    trained = trained_on(folder)
    if trained is None and not held_out.data:
        raise UserError(f"{folder} does not say what it was trained on; name the text with --data SOURCE")
    is_same = trained is not None and held_out.data in ("", trained.source)
    base = trained if trained is not None and is_same else DataConfig(source=held_out.data)
    names = ("validation", "test", "text_field", "document_separator", "wrap_eos", "normalise", "cache")
    given = {name: getattr(held_out, name) for name in names}
    return replace(base, **{key: value for key, value in given.items() if value is not None})


@contextmanager
def measuring(
    model: "Model", name: str, corpus: "Corpus", held_out: HeldOut, world: "World"
) -> Iterator[Any]:  # fmt: skip
    """A function that measures the model with an energy and settings, and keeps a journal until all is measured."""
    from edlm.data.cache import cache_folder
    from edlm.energy_spec import energy_folders, load_energy
    from edlm.evaluation import evaluate_likelihood
    from edlm.generation import require_denoiser
    from edlm.journal import Journal
    from edlm.models.pretrained import find_folder, fingerprint

    folder = cache_folder(corpus.config.cache) / "evaluations"
    text = corpus.describe() | {"split": held_out.split, "max_blocks": held_out.max_blocks}
    journals: list[Journal] = []
    energies: dict[str, Any] = {}

    def measure(spec: str | None, config: LikelihoodConfig, label: str = "") -> "Likelihood":
        if spec is not None and spec not in energies:
            energies.clear()  # one in memory at a time
            energies[spec] = load_energy(spec, require_denoiser(model))
        models = [find_folder(name), *(energy_folders(spec) if spec else [])]
        key = {"models": [fingerprint(path) for path in models], "energy": spec, "text": text, **asdict(config)}
        journals.append(Journal(folder, key, world.rank))
        show_progress = world.is_first and sys.stderr.isatty()
        result = evaluate_likelihood(
            model, corpus, held_out.split, config, energy=energies[spec] if spec else None,
            max_blocks=held_out.max_blocks, batch_size=held_out.batch_size, progress=show_progress,
            journal=journals[-1], world=world, label=label,
        )  # fmt: skip
        return replace(result, energy=spec)

    yield measure
    if world.is_first:
        for journal in journals:
            journal.remove()


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
    if result.remark:
        print(result.remark)
    shown = {key: value for key, value in rows.items() if value not in (None, "")}
    print_table({**{k: v for k, v in shown.items() if k not in ("bits", "nats", "perplexity", "remark")}, **about})
