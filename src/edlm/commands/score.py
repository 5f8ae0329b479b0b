"""edlm score"""

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from edlm.commands.sample import Compute, require_one_model
from edlm.compute_config import FULL
from edlm.errors import UserError
from edlm.likelihood_config import LikelihoodConfig
from edlm.score_config import Effort
from edlm.sweep_config import one_number_of_candidates

if TYPE_CHECKING:
    from edlm.text_score import TextScore

Pairs = list[tuple[str, str]]
"""What is given, and the text that follows."""


def score(
    *texts: Annotated[str, Parameter(allow_leading_hyphen=True)],
    denoiser: str = "",
    ar: str = "",
    energy: str = "",
    given: str = "",
    file: Path | None = None,
    normalise: bool = False,
    effort: Annotated[Effort, Parameter(name="*")] = Effort(),
    candidates: str = "2",
    settings: Annotated[LikelihoodConfig, Parameter(name="*")] = LikelihoodConfig(),
    compute: Compute = FULL,
    json: bool = False,
) -> None:
    """How likely texts are: exact for an autoregressive model, a bound for a denoiser with or without an energy.

    The bound is of the sampler that draws texts of this many tokens with the same steps, candidates and window. Texts
    are arguments, lines of a file, or lines of standard input.

    Parameters
    ----------
    texts
        Texts to score.
    denoiser
        Folder, built-in name or hub name of a denoiser; a training run's folder will do.
    ar
        Folder, built-in name or hub name of an autoregressive model, instead of a denoiser.
    energy
        What corrects the denoiser, as in `edlm sample`.
    given
        What comes before each text. It is not scored: the likelihood is that of the text after it.
    file
        File with one text a line, or, if it ends in .jsonl, one object a line with the keys text and, if any, given.
    normalise
        Map text to a-z and space first.
    candidates
        k: candidates of a step, of which the energy chooses one; 'ideal' for the limit of many.
    json
        Print scores and settings as JSON.
    """
    require_one_model(denoiser, ar)
    if energy and ar:
        raise UserError("an energy corrects a denoiser; an autoregressive model needs none")
    config = replace(settings, candidates=one_number_of_candidates(candidates))
    pairs = read_pairs(texts, file, given)
    from edlm.energy_spec import load_energy
    from edlm.generation import require_denoiser
    from edlm.models.load import load_named
    from edlm.text_score import score_texts

    model = load_named(denoiser, ar, compute)
    correction = load_energy(energy, require_denoiser(model)) if energy else None
    scores = score_texts(
        model, [text for _, text in pairs], config, effort, energy=correction, given=[prefix for prefix, _ in pairs],
        normalise=normalise, progress=sys.stderr.isatty(),
    )  # fmt: skip
    about = {"model": denoiser or ar, "kind": "denoiser" if denoiser else "ar", "energy": energy or None}
    show(scores, about | asdict(config) | asdict(effort), json=json)


def read_pairs(texts: Sequence[str], file: Path | None, given: str) -> Pairs:
    """The texts that were named in one of the three ways."""
    if texts and file is not None:
        raise UserError("texts come as arguments or from --file, not both; leave out one")
    if texts:
        return [(given, text) for text in texts]
    if file is not None:
        return from_lines(read_lines(file), given, is_json=file.suffix == ".jsonl", where=f"--file {file}")
    if sys.stdin.isatty():
        raise UserError("no text to score; name texts as arguments, in a file with --file, or on standard input")
    return from_lines(sys.stdin.read().splitlines(), given, is_json=False, where="standard input")


def read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"--file {file} is not UTF-8 text ({error.reason}); save it as UTF-8") from error


def from_lines(lines: Sequence[str], given: str, *, is_json: bool, where: str) -> Pairs:
    """One text a line; empty lines are left out."""
    pairs = [
        parse(line, given, f"{where}, line {number}") if is_json else (given, line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not pairs:
        raise UserError(f"{where} holds no text; write one text a line")
    return pairs


def parse(line: str, given: str, where: str) -> tuple[str, str]:
    """{"given": ..., "text": ...}, where a prefix of its own takes the place of the one of all."""
    try:
        item = json_module.loads(line)
    except json_module.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON ({error.msg}); write one object a line") from error
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise UserError(f'{where} must be an object with a text, such as {{"text": "..."}}, got {line[:60]}')
    prefix = item.get("given", given)
    if not isinstance(prefix, str):
        raise UserError(f"{where}: given must be a text, got {prefix!r}")
    return prefix, item["text"]


def show(scores: "Sequence[TextScore]", about: dict[str, Any], *, json: bool) -> None:
    """One row a text and what the numbers are; or JSON with all settings."""
    from edlm.commands.output import print_json

    if json:
        extra = [{"log_likelihood": s.log_likelihood, "bits_per_token": s.bits_per_token} for s in scores]
        print_json({"settings": about, "scores": [asdict(s) | e for s, e in zip(scores, extra, strict=True)]})
        return
    print(f"{'nats':>10} {'±':>8} {'tokens':>7} {'bits/token':>11}  text")
    for s in scores:
        text = f"[{s.given}] {s.text}" if s.given else s.text
        print(f"{s.nats:>10.3f} {s.standard_error:>8.3f} {s.num_tokens:>7} {s.bits_per_token:>11.3f}  {text}")
    print(f"{scores[0].quantity}, {scores[0].protocol} protocol")
