"""edlm evaluate zeroshot"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from edlm.commands.output import print_json
from edlm.commands.sample import Compute
from edlm.compute_config import FULL
from edlm.errors import UserError
from edlm.evaluator import Evaluator, HeldOut, Work, evaluator
from edlm.likelihood_config import LikelihoodConfig
from edlm.sweep_config import one_number_of_candidates

if TYPE_CHECKING:
    from edlm.generation import Model
    from edlm.zeroshot_report import Rows


def zeroshot(
    *,
    denoiser: str = "",
    ar: str = "",
    energy: Annotated[list[str] | None, Parameter(negative=())] = None,
    suite: Literal["paper"] = "paper",
    sets: str = "",
    files: Path | None = None,
    candidates: str = "2",
    settings: Annotated[LikelihoodConfig, Parameter(name="*")] = LikelihoodConfig(),
    wrap_eos: bool | None = None,
    cache: str | None = None,
    work: Annotated[Work, Parameter(name="*")] = Work(),
    out: Path = Path("runs/zeroshot"),
    compute: Compute = FULL,
    json: bool = False,
) -> None:
    """Perplexity on text of other kinds than a model was trained on: one table, with the paper's rows below it.

    Interrupted, it goes on where it was when the same command is given again; under torchrun the blocks are shared out.

    Parameters
    ----------
    denoiser
        Folder, built-in name or hub name of a denoiser; it is scored alone and with every energy.
    ar
        Folder, built-in name or hub name of an autoregressive model, for a row of its own.
    energy
        What corrects the denoiser, as in `edlm sample`; may be given several times.
    suite
        Which sets: the paper's seven, PTB, WikiText, LM1B, LAMBADA, AG News, PubMed and arXiv.
    sets
        Only these of them, such as wikitext,lambada.
    files
        Folder with the sets' files, instead of the hub. Sets whose file is not there are left out and named.
    candidates
        k: candidates of a step, of which the energy chooses one; 'ideal' for the limit of many.
    wrap_eos
        Start and end every block with the end-of-document token; by default as in the model's training.
    cache
        Folder of the tokenised data, and of what an interrupted evaluation has done.
    out
        Folder for the table.
    json
        Print all results and their protocols as JSON.
    """
    if not (denoiser or ar):
        raise UserError("name a model: --denoiser DIR, --ar DIR or both")
    if energy and not denoiser:
        raise UserError("an energy corrects a denoiser; name one with --denoiser DIR")
    config = replace(settings, candidates=one_number_of_candidates(candidates))
    from edlm.models.load import load_named
    from edlm.zeroshot_report import choose_sets, report_zeroshot, require_same_tokens

    names, missing = choose_sets(sets, files)
    held_out = HeldOut(wrap_eos=wrap_eos, cache=cache)
    with evaluator(work) as measuring:
        models = {flag: load_named(*flag, compute) for flag in (("", ar), (denoiser, "")) if any(flag)}
        require_same_tokens(list(models.values()))
        rows: Rows = {}
        for (name, other), model in models.items():
            specs = (energy or []) if name else []
            rows |= measure_rows(measuring, model, name or other, specs, names, files, held_out, config)
        if measuring.world.is_first:
            report = report_zeroshot(out, rows, missing)
            print_json(report.as_dict()) if json else print(report.as_text())


def measure_rows(
    measuring: Evaluator, model: "Model", name: str, energies: list[str], names: list[str], files: Path | None,
    held_out: HeldOut, config: LikelihoodConfig,
) -> "Rows":  # fmt: skip
    """Method to set to result: a model alone, and with each energy."""
    from edlm.energy_spec import distinct_labels
    from edlm.models.autoregressive import Autoregressive
    from edlm.zeroshot_report import source_of

    rows: Rows = {}
    alone = "AR" if isinstance(model, Autoregressive) else "MDLM"
    for spec, title in zip([None, *energies], [alone, *distinct_labels(energies)], strict=True):
        rows[title] = {}
        for each in names:
            text = replace(held_out, data=source_of(each, files))
            corpus = measuring.corpus(model, name, text)
            label = f"{title}, {each}"
            rows[title][each] = measuring.measure(model, corpus, text.split, config, energy=spec, label=label)
    return rows
