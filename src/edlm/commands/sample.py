"""edlm sample, edlm infill"""

import json as json_module
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from edlm.compute_config import ComputeConfig
from edlm.errors import UserError
from edlm.sample_config import SampleConfig

if TYPE_CHECKING:
    from torch import Tensor

    from edlm.generation import Model


Settings = Annotated[SampleConfig, Parameter(name="*")]
Device = Literal["auto", "cpu", "cuda"]
Compute = Annotated[ComputeConfig, Parameter(name="*")]


def sample(
    *,
    denoiser: str = "",
    ar: str = "",
    energy: str = "",
    draft: str = "",
    drafted: int = 8,
    num: int = 1,
    prompt: str = "",
    infill: str = "",
    settings: Settings = SampleConfig(),
    compute: Compute = ComputeConfig(),
    json: bool = False,
    out: Path | None = None,
    trace: Path | None = None,
    watch: bool = False,
) -> None:
    """Draw text from a denoiser, with or without an energy, or from an autoregressive model.

    Parameters
    ----------
    denoiser
        Folder, built-in name or hub name of a denoiser or a masked language model; a training run's folder will do.
    ar
        Folder, built-in name or hub name of an autoregressive model, instead of a denoiser.
    energy
        What corrects the denoiser: ar:NAME, coar:NAME, nce:NAME or step:NAME, or a sum like 'ar:NAME + 0.5*nce:NAME'.
        NAME of ar and coar is a folder, file, built-in or hub name of any causal language model, such as gpt2.
    draft
        Denoiser that drafts for the autoregressive model, which keeps what it can: the same law in fewer of its passes.
    drafted
        Tokens drafted in a round.
    num
        Number of sequences.
    prompt
        Text that every sequence begins with.
    infill
        Text with holes: [MASK] is one unknown token, [MASK:12] twelve. What is known stays, the holes are filled.
    json
        Print a JSON document with tokens and settings instead of plain text.
    out
        File to write to, instead of standard output: JSON lines if it ends in .jsonl, a JSON document if it ends in
        .json or with --json, else plain text.
    trace
        File for the whole trajectory, as JSON lines: the settings, then what every step revealed, saw and chose.
        `edlm show` makes a page or a GIF of it.
    watch
        Show every step of the first sequence of each batch on standard error while it is drawn.
    """
    require_one_model(denoiser, ar)
    for flag, path in (("--out", out), ("--trace", trace)):
        require_writable(flag, path)
    from edlm.energy_spec import load_energy
    from edlm.generation import generate, require_denoiser, require_drafter
    from edlm.models.load import load_named
    from edlm.models.placement import precision_of
    from edlm.speculative import Drafts
    from edlm.tokenization import TextError

    model = load_named(denoiser, ar, compute)
    correction = load_energy(energy, require_denoiser(model)) if energy else None
    drafter = Drafts(require_drafter(load_named(draft, "", compute), model, draft), drafted) if draft else None
    about = describe(denoiser, ar, energy, prompt, infill, settings) | {"precision": precision_of(model)}
    about |= {"draft": draft, "drafted": drafted} if draft else {}
    try:
        plan = plan_of(model, settings, prompt, infill)
        with progress_bar(plan, num, settings, hide=watch) as bar, writing(trace) as write:
            watchers = [lambda *_: bar.update()]
            if trace is not None or watch:
                watchers.append(traced(plan, about, [write, *([projector()] if watch else [])]))
            texts = {"prompt": prompt, "infill": infill}
            drawn = generate(model, num, settings, energy=correction, drafts=drafter, watch=all_of(watchers), **texts)
            samples = [asdict(s) for s in drawn]
    except TextError as error:
        remedy, flag = "write it in the model's vocabulary", "--infill" if infill else "--prompt"
        raise TextError(error.character, error.position, remedy, where=flag) from error
    text = render(samples, about, "json" if json else out.suffix.lstrip(".") if out else "text")
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")


def infill(
    text: str, /, *, denoiser: str, energy: str = "", num: int = 1, settings: Settings = SampleConfig(),
    compute: Compute = ComputeConfig(), json: bool = False, out: Path | None = None, trace: Path | None = None,
    watch: bool = False,
) -> None:  # fmt: skip
    """Fill the holes of a text: short for `edlm sample --infill TEXT`.

    Parameters
    ----------
    text
        Text with holes: [MASK] is one unknown token, [MASK:12] twelve.
    denoiser
        Folder, built-in name or hub name of a denoiser.
    energy
        What corrects the denoiser, as in `edlm sample`.
    num
        Number of ways to fill it.
    json
        Print a JSON document with tokens and settings instead of plain text.
    out
        File to write to, as in `edlm sample`.
    trace
        File for the whole trajectory, as in `edlm sample`.
    watch
        Show every step, as in `edlm sample`.
    """
    if not text:
        raise UserError("the infill text is empty; mark what to fill in with [MASK] or [MASK:12]")
    sample(
        denoiser=denoiser, energy=energy, num=num, infill=text, settings=settings, compute=compute, json=json,
        out=out, trace=trace, watch=watch,
    )  # fmt: skip


def describe(denoiser: str, ar: str, energy: str, prompt: str, infill: str, settings: SampleConfig) -> dict[str, Any]:
    """What the samples are, for the JSON document and the trace."""
    about = {"model": denoiser or ar, "kind": "denoiser" if denoiser else "ar", "energy": energy or None}
    about |= {"prompt": prompt, "infill": infill or None} | asdict(settings)
    return about | {"tempered": settings.is_tempered}


@dataclass(frozen=True)
class Plan:
    """What is known before the first step."""

    model: "Model"
    fixed: "Tensor"
    """(L,) known tokens, masks elsewhere."""
    num_steps: int
    """Of each sequence."""


def plan_of(model: "Model", settings: SampleConfig, prompt: str, infill: str) -> Plan:
    from edlm.generation import count_steps, known_tokens, require_tokenizer

    fixed = known_tokens(model, require_tokenizer(model), settings, prompt, infill)
    return Plan(model, fixed, count_steps(model, settings, fixed))


@contextmanager
def writing(path: Path | None) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that appends a line to the trace, or does nothing if none was asked for."""
    if path is None:
        yield lambda line: None
        return
    with path.open("w", encoding="utf-8") as file:
        yield lambda line: print(json_module.dumps(line, ensure_ascii=False), file=file)


def projector() -> Callable[[dict[str, Any]], None]:
    """A function that takes the lines of a trace and shows the first sequence of each batch in the terminal."""
    from edlm.show.film import Reel
    from edlm.show.terminal import Screen

    reels: list[Reel] = []
    screen = Screen()

    def show(line: dict[str, Any]) -> None:
        if not reels:
            reels.append(Reel(line))
            return
        reels[0].add(line)
        screen.show(reels[0].film(line["indices"][0]))

    return show


def traced(plan: Plan, about: dict[str, Any], readers: list[Callable[[dict[str, Any]], None]]) -> Callable[..., None]:
    """A watcher that makes lines of a trace for all readers, the header first."""
    from edlm.generation import require_tokenizer
    from edlm.trace import Tracer

    tracer = Tracer(require_tokenizer(plan.model), plan.model.mask_id)

    def tell(line: dict[str, Any]) -> None:
        for read in readers:
            read(line)

    tell(tracer.header(about, plan.fixed, plan.num_steps))
    return lambda *step: tell(tracer.line(*step))


def all_of(watchers: list[Callable[..., Any]]) -> Callable[..., None]:
    """A watcher that tells several."""

    def watch(*step: Any) -> None:
        for tell in watchers:
            tell(*step)

    return watch


def require_one_model(denoiser: str, ar: str) -> None:
    """Refuse both kinds of model at once, and none."""
    if bool(denoiser) == bool(ar):
        raise UserError("name one model: either --denoiser DIR or --ar DIR")


def require_writable(flag: str, path: Path | None) -> None:
    """Refuse, before the work is done, a file that could not be written after it."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{flag} {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{flag} {path}: there is no folder {path.parent}; make it first")


def progress_bar(plan: Plan, num: int, settings: SampleConfig, *, hide: bool) -> Any:
    from tqdm import tqdm

    total = plan.num_steps * -(-num // settings.batch_size)
    return tqdm(total=total, unit="step", desc="sampling", disable=hide or not sys.stderr.isatty(), delay=1)


def render(samples: list[dict[str, Any]], about: dict[str, Any], form: str) -> str:
    """Samples as text, a JSON document or JSON lines."""
    if form == "json":
        return json_module.dumps({"settings": about, "samples": samples}, indent=2, ensure_ascii=False) + "\n"
    if form == "jsonl":
        return "".join(json_module.dumps(s, ensure_ascii=False) + "\n" for s in samples)
    return "".join(f"{s['text']}\n" for s in samples)
