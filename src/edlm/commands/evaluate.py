"""edlm evaluate likelihood"""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from edlm.commands.generation import generation
from edlm.commands.sample import load, require_one_model
from edlm.data.config import DataConfig
from edlm.data.record import trained_on
from edlm.errors import UserError

if TYPE_CHECKING:
    from edlm.evaluation import Likelihood

app = App(help="Measure models.")
app.command(generation)


@app.command
def likelihood(
    *,
    denoiser: str = "",
    ar: str = "",
    data: Annotated[str, Parameter(allow_leading_hyphen=True)] = "",
    split: str = "test",
    validation: str | None = None,
    test: str | None = None,
    text_field: str | None = None,
    document_separator: str | None = None,
    wrap_eos: bool | None = None,
    normalise: bool | None = None,
    cache: str | None = None,
    steps: int = 0,
    max_blocks: int = 0,
    batch_size: int = 32,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
) -> None:
    """Bits per character (or token) of held-out text: exact for an autoregressive model, an upper bound for a denoiser.

    Tokenizer and block length are the model's. Without --data, the model is scored on the data it was trained with.

    Parameters
    ----------
    denoiser
        Folder or hub name of a denoiser; a training run's folder will do.
    ar
        Folder or hub name of an autoregressive model, instead of a denoiser.
    data
        Source of the text, as in `edlm data prepare --source`.
    split
        Which split of the data is scored.
    validation
        Validation text of the data, as in `edlm data prepare`.
    test
        Test text of the data, as in `edlm data prepare`.
    text_field
        Field that holds the text.
    document_separator
        Mark between documents inside a text file.
    wrap_eos
        Start and end every block with the end-of-document token.
    normalise
        Map text to a-z and space first.
    cache
        Folder of the tokenised data.
    steps
        Bound the sampler with this many steps; 0 means its continuous-time limit.
    max_blocks
        Score only so many evenly spaced blocks; 0 means all.
    batch_size
        Blocks scored at once; does not change the result.
    seed
        Seeds the masks. Not used by an autoregressive model.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print the result and its whole protocol as JSON.
    """
    if steps < 0:
        raise UserError(f"--steps must not be negative, got {steps}")
    if batch_size < 1:
        raise UserError(f"--batch-size must be at least 1, got {batch_size}")
    if max_blocks < 0:
        raise UserError(f"--max-blocks must not be negative, got {max_blocks}")
    require_one_model(denoiser, ar)
    from edlm.data import prepare
    from edlm.evaluation import evaluate_likelihood
    from edlm.models.pretrained import find_folder

    model = load(denoiser, ar, device)
    options = {
        "validation": validation, "test": test, "text_field": text_field, "document_separator": document_separator,
        "wrap_eos": wrap_eos, "normalise": normalise, "cache": cache,
    }  # fmt: skip
    folder = find_folder(denoiser or ar)
    if model.tokenizer is None:
        raise UserError(
            f"{folder} has no tokenizer.json; put the tokenizer the model was trained with beside its weights"
        )
    config = replace(data_of(folder, data, options), tokenizer=str(folder), length=model.length)
    result = evaluate_likelihood(
        model, prepare(config), split, steps=steps or None, max_blocks=max_blocks, batch_size=batch_size, seed=seed,
        progress=sys.stderr.isatty(),
    )  # fmt: skip
    show(result, json=json)


def data_of(folder: Path, source: str, options: dict[str, Any]) -> DataConfig:
    """The data named on the command line; what was left out is as in the model's training, if it is the same source."""
    trained = trained_on(folder)
    if trained is None and not source:
        raise UserError(f"{folder} does not say what it was trained on; name the text with --data SOURCE")
    base = trained if trained is not None and source in ("", trained.source) else DataConfig(source=source)
    return replace(base, **{key: value for key, value in options.items() if value is not None})


def show(result: "Likelihood", *, json: bool) -> None:
    from edlm.commands.output import print_json, print_table

    rows = asdict(result)
    if json:
        print_json(rows)
        return
    about = rows.pop("data") or {}
    about["data"] = about.pop("splits", {}).get(about.get("split"))
    print(
        f"{result.bits:.4f} ± {result.standard_error:.4f} bits per {result.unit}  (perplexity {result.perplexity:.3f})"
    )
    print_table({**{k: v for k, v in rows.items() if k not in ("bits", "standard_error", "perplexity")}, **about})
