"""edlm sample"""

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from edlm.errors import UserError
from edlm.sample_config import SampleConfig

if TYPE_CHECKING:
    from edlm.generation import Model


def sample(
    *,
    denoiser: str = "",
    ar: str = "",
    num: int = 1,
    prompt: str = "",
    settings: Annotated[SampleConfig, Parameter(name="*")] = SampleConfig(),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Draw text from a denoiser or from an autoregressive model.

    Parameters
    ----------
    denoiser
        Folder or hub name of a denoiser; a training run's folder will do.
    ar
        Folder or hub name of an autoregressive model, instead of a denoiser.
    num
        Number of sequences.
    prompt
        Text that every sequence begins with.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print a JSON document with tokens and settings instead of plain text.
    out
        File to write to, instead of standard output: JSON lines if it ends in .jsonl, a JSON document if it ends in
        .json or with --json, else plain text.
    """
    require_one_model(denoiser, ar)
    if out is not None:
        require_writable(out)
    from edlm.generation import generate
    from edlm.tokenization import TextError

    model = load(denoiser, ar, device)
    try:
        with progress_bar(model, num, settings) as bar:
            samples = [asdict(s) for s in generate(model, num, settings, prompt=prompt, watch=lambda *_: bar.update())]
    except TextError as error:
        raise TextError(
            error.character, error.position, "write it in the model's vocabulary", where="--prompt"
        ) from error
    about = {"model": denoiser or ar, "kind": "denoiser" if denoiser else "ar", "prompt": prompt} | asdict(settings)
    text = render(samples, about, "json" if json else out.suffix.lstrip(".") if out else "text")
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")


def require_one_model(denoiser: str, ar: str) -> None:
    """Refuse both kinds of model at once, and none."""
    if bool(denoiser) == bool(ar):
        raise UserError("name one model: either --denoiser DIR or --ar DIR")


def require_writable(out: Path) -> None:
    """Refuse, before the work is done, a file that could not be written after it."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file in it")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first")


def load(denoiser: str, ar: str, device: str) -> "Model":
    """The one model that was named, refused if it is of the other kind."""
    import torch

    from edlm.models.autoregressive import Autoregressive
    from edlm.models.denoiser import Denoiser
    from edlm.models.load import load_model

    model = load_model(denoiser or ar)
    if not isinstance(model, Denoiser if denoiser else Autoregressive):
        remedy = f"--denoiser takes the type {Denoiser.model_type}, --ar {Autoregressive.model_type}"
        raise UserError(f"{denoiser or ar} holds a model of type {model.model_type}; {remedy}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no GPU; install a CUDA build or choose cpu")
    return model.to("cuda" if device == "cuda" or (device == "auto" and torch.cuda.is_available()) else "cpu")


def progress_bar(model: "Model", num: int, settings: SampleConfig) -> Any:
    from tqdm import tqdm

    from edlm.models.autoregressive import Autoregressive

    batches = -(-num // settings.batch_size)
    length = settings.length or model.length
    steps = length if isinstance(model, Autoregressive) else settings.steps
    return tqdm(total=steps * batches, unit="step", desc="sampling", disable=not sys.stderr.isatty(), delay=1)


def render(samples: list[dict[str, Any]], about: dict[str, Any], form: str) -> str:
    """Samples as text, a JSON document or JSON lines."""
    if form == "json":
        return json_module.dumps({"settings": about, "samples": samples}, indent=2, ensure_ascii=False) + "\n"
    if form == "jsonl":
        return "".join(json_module.dumps(s, ensure_ascii=False) + "\n" for s in samples)
    return "".join(f"{s['text']}\n" for s in samples)
