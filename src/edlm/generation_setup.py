"""What a study of samplers is made of, by name: methods, oracles, held-out text; and its report with the protocol."""

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tqdm import tqdm

from edlm._version import __version__
from edlm.compute_config import ComputeConfig
from edlm.energy_spec import check_same_tokens, distinct_labels, load_energy
from edlm.errors import UserError
from edlm.evaluation import choose_blocks
from edlm.evaluator import HeldOut, corpus_for
from edlm.generation import require_denoiser, require_tokenizer
from edlm.generation_report import Row
from edlm.generation_study import circular
from edlm.models.autoregressive import Autoregressive
from edlm.models.causal_lm import CausalLM
from edlm.models.load import load_named
from edlm.oracle import CausalOracle, Oracle, check_readable
from edlm.oracle_spec import load_oracle
from edlm.study import Method, Setting

PROTOCOL = {
    "draws": "exact, float64",
    "entropy": "of each sample's token histogram, nats",
    "standard_errors": "over samples; of perplexity by the delta method; of divergences by the bootstrap",
}
TIMING = "seconds per sample are this machine's, batches shared out; compare them only if it did nothing else"


def load_methods(denoiser: str, energies: Sequence[str], ar: str, compute: ComputeConfig) -> list[Method]:
    """MDLM, the denoiser with each energy, and the autoregressive model."""
    model = require_denoiser(load_named(denoiser, "", compute))
    require_tokenizer(model)
    specs = list(dict.fromkeys(energies))
    methods = [Method("MDLM", model)]
    for spec, label in zip(specs, distinct_labels(specs), strict=True):
        methods.append(Method(label, model, load_energy(spec, model), spec))
    if ar:
        causal = load_named("", ar, compute)
        assert isinstance(causal, Autoregressive)
        check_same_tokens(model, causal, ar)
        methods.append(Method("AR", causal))
    return methods


def load_oracles(specs: Sequence[str], method: Method, batch_size: int) -> list[Oracle]:
    """The oracles, each refused if it could not read what the denoiser may write."""
    device = next(method.model.parameters()).device
    oracles: list[Oracle] = [load_oracle(spec, device=device, batch_size=batch_size) for spec in dict.fromkeys(specs)]
    for oracle in oracles:
        check_readable(oracle, require_tokenizer(method.model))
    return oracles


def choose_features(features: str, oracles: Sequence[Oracle]) -> CausalOracle | None:
    """The oracle that gives the texts their vectors, or None for n-grams."""
    judges = [oracle for oracle in oracles if isinstance(oracle, CausalOracle)]
    able = {oracle.name: oracle for oracle in judges if isinstance(oracle.model, CausalLM)}
    if features != "ngrams" and features not in able:
        raise UserError(f"--features must be {' or '.join(['ngrams', *able])}, got {features!r}; or add it as --oracle")
    return able.get(features)


def held_out_texts(
    denoiser: str, method: Method, held_out: HeldOut, num: int, length: int | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Up to 2 `num` evenly spaced blocks of held-out text, of the samples' length, and where they come from."""
    tokenizer = require_tokenizer(method.model)
    corpus = corpus_for(method.model, denoiser, held_out, length=length)
    blocks = corpus[held_out.split]
    index = choose_blocks(len(blocks), 2 * num)
    if len(index) < 4:
        about = f"the {held_out.split} split has {len(index)} blocks"
        raise UserError(f"--data {held_out.data}: {about}; comparing needs at least 4")
    rows = [{"tokens": tokens, "text": tokenizer.decode(tokens)} for tokens in blocks.get(index).tolist()]
    return rows, corpus.describe() | {"split": held_out.split, "num_blocks_used": len(rows)}


def report_of(
    rows: Sequence[Row], grid: Sequence[Setting], oracles: Sequence[Oracle], names: dict[str, Any]
) -> dict[str, Any]:
    """The rows with their whole protocol: the samplers' settings are in the rows, what they share is beside them."""
    config = grid[0].config
    shared: dict[str, Any] = {"length": config.length or grid[0].method.model.length, "seed": config.seed}
    shared |= {"temperature": config.temperature, "batch_size": config.batch_size, "num": rows[0].num_samples}
    methods = list({id(setting.method): setting.method for setting in grid}.values())
    return {
        "protocol": names | shared | about_oracles(oracles) | PROTOCOL | {"versions": versions()},
        "notes": [TIMING, *circular(methods, oracles)],
        "rows": [asdict(row) for row in rows],
    }


def about_oracles(oracles: Sequence[Oracle]) -> dict[str, Any]:
    """How each oracle reads a text, for the protocol."""
    return {"oracles": [{"name": o.name, "fingerprint": o.fingerprint, **o.describe()} for o in oracles]}


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"edlm": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "transformers", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def progress(total: float, name: str = "sampling") -> Any:
    """A bar with the time left over all samples, which count by what they cost."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    return tqdm(total=total, desc=name, bar_format=form, disable=not sys.stderr.isatty(), delay=1)
