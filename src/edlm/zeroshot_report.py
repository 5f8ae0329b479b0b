"""The zero-shot table: which sets are at hand, and perplexities with the paper's rows below them."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edlm.data.zeroshot import PREFIX, SETS, zeroshot_source
from edlm.errors import UserError
from edlm.evaluation import Likelihood
from edlm.generation import Model
from edlm.paper_figures import PERPLEXITY
from edlm.reports import Report, markdown_table, write_report

Rows = dict[str, dict[str, Likelihood]]
"""Method to set to result."""


def source_of(name: str, files: Path | None) -> str:
    """What `data.source` calls a set: in a folder, or on the hub."""
    return f"{PREFIX}{name}" if files is None else f"{PREFIX}{name}:{files}"


def choose_sets(wanted: str, files: Path | None) -> tuple[list[str], dict[str, str]]:
    """The sets to score, and those left out with the reason. A set that was named is never left out."""
    if wanted:
        names = [name.strip() for name in wanted.split(",")]
        for name in names:
            if name not in SETS:
                raise UserError(f"--sets: unknown set {name!r}; choose from {', '.join(SETS)}")
        return names, {}
    if files is None:
        return list(SETS), {}
    missing = {}
    for name in SETS:
        try:
            zeroshot_source(source_of(name, files))  # finds the file and reads nothing
        except UserError as error:
            missing[name] = str(error)
    if len(missing) == len(SETS):
        raise UserError(f"--files {files} holds none of the sets; {next(iter(missing.values()))}")
    return [name for name in SETS if name not in missing], missing


def require_same_tokens(models: Sequence[Model]) -> None:
    """Perplexities per token of different tokens do not belong in one table."""
    tokenizers = {model.tokenizer.fingerprint for model in models if model.tokenizer is not None}
    if len(tokenizers) > 1:
        raise UserError("--ar and --denoiser have different tokenizers; score them in tables of their own")


def report_zeroshot(folder: Path, rows: Rows, missing: dict[str, str]) -> Report:
    """The table and the numbers behind it in `folder`."""
    results = {
        "rows": {method: {name: asdict(result) for name, result in row.items()} for method, row in rows.items()},
        "missing": missing,
        "paper": PERPLEXITY,
    }
    return write_report(folder, f"{table(rows)}\n{remarks(rows, missing)}\n", results)


def title_of(name: str) -> str:
    """A set as in the paper's table; text of another source as it was named."""
    return SETS[name].title if name in SETS else name


def table(rows: Rows) -> str:
    """Perplexities with standard errors, one row per method, then the paper's."""
    names = list(next(iter(rows.values())))
    lines = [["perplexity", *map(title_of, names)]]
    lines += [[method, *(plus_minus(row[name]) for name in names)] for method, row in rows.items()]
    first = next(iter(rows.values()))
    lines.append([f"{next(iter(first.values())).unit}s scored", *(f"{first[name].num_tokens:,}" for name in names)])
    for method, row in PERPLEXITY.items():
        lines.append([f"paper: {method}", *(f"{row[name]:.2f}" if name in row else "–" for name in names)])
    return markdown_table(lines)


def plus_minus(result: Likelihood) -> str:
    return f"{result.perplexity:.2f} ± {perplexity_error(result):.2f}"


def perplexity_error(result: Likelihood) -> float:
    """The standard error of the perplexity, to first order."""
    return result.perplexity * math.log(2) * result.standard_error


def remarks(rows: Rows, missing: dict[str, str]) -> str:
    """What the numbers are, and what they may not be compared with."""
    first = next(iter(next(iter(rows.values())).values()))
    lines = [f"{method}: {next(iter(row.values())).quantity}" for method, row in rows.items()]
    protocols = sorted({result.protocol for row in rows.values() for result in row.values()})
    lines.append(
        f"Perplexity per {first.unit}, ± standard error over blocks of {first.block_length}; "
        f"protocol {' and '.join(protocols)}."
    )
    lines += sorted({result.remark for row in rows.values() for result in row.values() if result.remark})
    lines.append(
        "The paper's rows: GPT-2's tokens, blocks of 1024, models trained on OpenWebText, its own formula. They "
        "compare with rows of the same tokens, blocks and protocol only."
    )
    lines += [f"Left out: {SETS[name].title} ({reason})" for name, reason in missing.items()]
    return "\n".join(f"- {line}" for line in lines)
