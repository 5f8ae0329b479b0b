"""edlm evaluate generation"""

import json as json_module
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from edlm._version import __version__
from edlm.commands.evaluator import HeldOut, corpus_for
from edlm.commands.sample import Device, load
from edlm.errors import UserError
from edlm.extras import require_extra
from edlm.sample_config import SampleConfig

if TYPE_CHECKING:
    from edlm.causal_lm import CausalLM
    from edlm.generation_report import Row
    from edlm.oracle import Oracle
    from edlm.study import Method, Setting

PROTOCOL = {
    "draws": "exact, float64",
    "entropy": "of each sample's token histogram, nats",
    "standard_errors": "over samples; of perplexity by the delta method; of divergences by the bootstrap",
}
TIMING = "seconds per sample are this machine's, batches shared out; compare them only if it did nothing else"


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
    held_out: Annotated[HeldOut, Parameter(name="*")] = HeldOut(),
    features: str = "ngrams",
    length: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    batch_size: int = 16,
    device: Device = "auto",
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
        Who judges the samples: ar:DIR, hf:NAME_OR_DIR, gguf:FILE or smollm2; repeat the flag for several.
    num
        Samples per setting.
    steps
        Denoising steps T, as a list such as 16,32,64.
    candidates
        k, as a list such as 2,8.
    window
        w, as a list such as 0.2,1.
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
    device
        Where to compute; auto takes a GPU if there is one.
    out
        Folder for samples, scores, results.json, results.md and frontier.png.
    json
        Print the results and their whole protocol as JSON.
    """
    if num < 1:
        raise UserError(f"--num must be at least 1, got {num}")
    base = SampleConfig(length=length, temperature=temperature, seed=seed, batch_size=batch_size)
    axes = numbers("--steps", steps, int), numbers("--candidates", candidates, int), numbers("--window", window, float)
    for T, k, w in ((T, k, w) for T in axes[0] for k in axes[1] for w in axes[2]):
        replace(base, steps=T, candidates=k, window=w)  # refuses what cannot be sampled with, before anything is loaded
    require_extras(oracle, held_out.data, out)
    if out is not None:
        from edlm.durable import require_folder

        require_folder("--out", out)
    methods = load_methods(denoiser, energy or [], ar, device)
    texts, about_data = held_out_texts(denoiser, methods[0], held_out, num, length) if held_out.data else ([], None)
    oracles = load_oracles(oracle, methods[0], batch_size)
    embedder = choose_features(features, oracles)
    from edlm.generation import require_tokenizer
    from edlm.generation_study import run
    from edlm.study import make_grid

    grid = make_grid(methods, *axes, base)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(str(out)) as folder:
        rows = run(grid, oracles, num, Path(folder), held_out=texts, features=embedder, progress=progress)
    names = {"denoiser": denoiser, "ar": ar or None, "data": about_data}
    report = report_of(rows, grid, oracles, names)
    show(report, rows, out, unit=require_tokenizer(methods[0].model).unit, json=json)


def report_of(
    rows: "Sequence[Row]", grid: "Sequence[Setting]", oracles: "Sequence[Oracle]", names: dict[str, Any]
) -> dict[str, Any]:
    """The rows with their whole protocol: the samplers' settings are in the rows, what they share is beside them."""
    from edlm.generation_study import circular

    config = grid[0].config
    shared: dict[str, Any] = {"length": config.length or grid[0].method.model.length, "seed": config.seed}
    shared |= {"temperature": config.temperature, "batch_size": config.batch_size, "num": rows[0].num_samples}
    methods = list({id(setting.method): setting.method for setting in grid}.values())
    return {
        "protocol": names | shared | about_oracles(oracles) | PROTOCOL | {"versions": versions()},
        "notes": [TIMING, *circular(methods, oracles)],
        "rows": [asdict(row) for row in rows],
    }


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


def load_methods(denoiser: str, energies: Sequence[str], ar: str, device: Device) -> "list[Method]":
    """MDLM, the denoiser with each energy, and the autoregressive model."""
    from edlm.energy_spec import check_same_tokens, distinct_labels, load_energy
    from edlm.generation import require_tokenizer
    from edlm.models.autoregressive import Autoregressive
    from edlm.models.denoiser import Denoiser
    from edlm.study import Method

    model = load(denoiser, "", device)
    assert isinstance(model, Denoiser)
    require_tokenizer(model)
    specs = list(dict.fromkeys(energies))
    methods = [Method("MDLM", model)]
    for spec, label in zip(specs, distinct_labels(specs), strict=True):
        methods.append(Method(label, model, load_energy(spec, model), spec))
    if ar:
        causal = load("", ar, device)
        assert isinstance(causal, Autoregressive)
        check_same_tokens(model, causal, ar)
        methods.append(Method("AR", causal))
    return methods


def load_oracles(specs: Sequence[str], method: "Method", batch_size: int) -> "list[Oracle]":
    """The oracles, each refused if it could not read what the denoiser may write."""
    from edlm.generation import require_tokenizer
    from edlm.oracle import check_readable
    from edlm.oracle_spec import load_oracle

    device = next(method.model.parameters()).device
    oracles = [load_oracle(spec, device=device, batch_size=batch_size) for spec in dict.fromkeys(specs)]
    for oracle in oracles:
        check_readable(oracle, require_tokenizer(method.model))
    return oracles


def choose_features(features: str, oracles: "Sequence[Oracle]") -> "CausalLM | None":
    """The oracle that gives the texts their vectors, or None for n-grams."""
    from edlm.causal_lm import CausalLM

    able = {oracle.name: oracle for oracle in oracles if isinstance(oracle, CausalLM)}
    if features != "ngrams" and features not in able:
        raise UserError(f"--features must be {' or '.join(['ngrams', *able])}, got {features!r}; or add it as --oracle")
    return able.get(features)


def held_out_texts(
    denoiser: str, method: "Method", held_out: HeldOut, num: int, length: int | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Up to 2 `num` evenly spaced blocks of held-out text, of the samples' length, and where they come from."""
    from edlm.evaluation import choose_blocks
    from edlm.generation import require_tokenizer

    tokenizer = require_tokenizer(method.model)
    corpus = corpus_for(method.model, denoiser, held_out, length=length)
    blocks = corpus[held_out.split]
    index = choose_blocks(len(blocks), 2 * num)
    if len(index) < 4:
        about = f"the {held_out.split} split has {len(index)} blocks"
        raise UserError(f"--data {held_out.data}: {about}; comparing needs at least 4")
    rows = [{"tokens": tokens, "text": tokenizer.decode(tokens)} for tokens in blocks.get(index).tolist()]
    return rows, corpus.describe() | {"split": held_out.split, "num_blocks_used": len(rows)}


def progress(total: float, name: str = "sampling") -> Any:
    """A bar with the time left over all samples, which count by what they cost."""
    from tqdm import tqdm

    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    return tqdm(total=total, desc=name, bar_format=form, disable=not sys.stderr.isatty(), delay=1)


def about_oracles(oracles: "Sequence[Oracle]") -> dict[str, Any]:
    """How each oracle reads a text, for the protocol."""
    return {"oracles": [{"name": o.name, "fingerprint": o.fingerprint, **o.describe()} for o in oracles]}


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"edlm": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "transformers", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


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
