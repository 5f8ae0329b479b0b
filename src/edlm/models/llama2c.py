"""Models in llama2.c's first binary format, such as stories260K.bin, as the Llama of `transformers`.

Seven int32 (width, hidden width, layers, heads, key-value heads, vocabulary, length), then float32 weights in a fixed
order, layer by layer within each kind. A negative vocabulary means an output matrix of its own, at the end.

Legend: D width, F hidden width, V vocabulary, L length, W width of a head.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edlm.errors import UserError
from edlm.extras import require_extra
from edlm.llama2c_tokenizer import BEGIN, read_llama2c_tokenizer
from edlm.models.causal_lm import CausalLM
from edlm.models.naming import ModelName
from edlm.models.transformers_files import require_finite
from edlm.strict_tokenizer import StrictTokenizer

HEADER_BYTES = 28
LATER_MAGIC = 0x616B3432
LARGEST = 1 << 20


@dataclass(frozen=True)
class Header:
    width: int
    hidden_width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    length: int
    has_own_output: bool

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Kind and shape of each part of the file, in its order; kinds without a name here are not needed."""
        n, D, F, kv = self.num_layers, self.width, self.hidden_width, self.num_kv_heads * self.head_width
        yield "embed_tokens", (self.vocab_size, D)
        yield "input_layernorm", (n, D)
        yield "self_attn.q_proj", (n, D, D)
        yield "self_attn.k_proj", (n, kv, D)
        yield "self_attn.v_proj", (n, kv, D)
        yield "self_attn.o_proj", (n, D, D)
        yield "post_attention_layernorm", (n, D)
        yield "mlp.gate_proj", (n, F, D)
        yield "mlp.down_proj", (n, D, F)
        yield "mlp.up_proj", (n, F, D)
        yield "norm", (D,)
        yield "", (2, self.length, self.head_width // 2)  # cosines and sines of the rotations
        if self.has_own_output:
            yield "lm_head", (self.vocab_size, D)


def load_llama2c(file: Path, name: ModelName) -> CausalLM:
    """The model in a llama2.c file. Its tokenizer is tokV.bin beside it, V the vocabulary's size, or tokenizer.bin."""
    require_extra("eval", "transformers")
    if not file.is_file():
        raise UserError(f"{name.name}: there is no file {file}; name a llama2.c file")
    header = read_header(file)
    network = _network(header, read_weights(file, header)).to(name.dtype)
    require_finite(network, name.name)
    inner = read_llama2c_tokenizer(_tokenizer_file(file, header))
    if inner.get_vocab_size() != header.vocab_size:
        raise UserError(f"{file} has {header.vocab_size} tokens, but the tokenizer beside it {inner.get_vocab_size()}")
    tokenizer = StrictTokenizer(inner, header.vocab_size, {})
    return CausalLM(network, tokenizer, tokenizer.tokens().index(BEGIN), name.name, file=file.name)


def read_header(file: Path) -> Header:
    """The first seven numbers, refused if they are not those of a model."""
    with file.open("rb") as stream:
        numbers = np.frombuffer(stream.read(HEADER_BYTES), dtype="<i4")
    if len(numbers) < 7:
        raise UserError(f"{file} is too short for a llama2.c model; fetch it again")
    if numbers[0] == LATER_MAGIC:
        raise UserError(f"{file} is in a later llama2.c format; export it with version 0, or for transformers")
    D, F, n, heads, kv_heads, V, length = map(int, numbers)
    sizes = (D, F, n, heads, kv_heads, abs(V), length)
    if not all(0 < size < LARGEST for size in sizes) or D % (2 * heads) or heads % kv_heads:
        raise UserError(f"{file} is no llama2.c model: its first numbers are {', '.join(map(str, numbers))}")
    return Header(D, F, n, heads, kv_heads, abs(V), length, has_own_output=V < 0)


def read_weights(file: Path, header: Header) -> dict[str, Tensor]:
    """Each kind of weight, all layers together. The file must be as long as its header says."""
    wanted = HEADER_BYTES + 4 * sum(int(np.prod(shape)) for _, shape in header.shapes())
    if file.stat().st_size != wanted:
        raise UserError(f"{file} has {file.stat().st_size} bytes, but its header asks for {wanted}; fetch it again")
    flat = torch.from_numpy(np.fromfile(file, dtype="<f4", offset=HEADER_BYTES))
    weights = {}
    for kind, shape in header.shapes():
        part, flat = flat[: int(np.prod(shape))], flat[int(np.prod(shape)) :]
        weights[kind] = part.view(shape)
    return weights


def _tokenizer_file(file: Path, header: Header) -> Path:
    names = [f"tok{header.vocab_size}.bin", "tokenizer.bin"]
    found = next((file.parent / name for name in names if (file.parent / name).is_file()), None)
    if found is None:
        raise UserError(f"{file} needs its tokenizer: put {' or '.join(names)} beside it")
    return found


def _network(header: Header, weights: dict[str, Tensor]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=header.vocab_size,
        hidden_size=header.width,
        intermediate_size=header.hidden_width,
        num_hidden_layers=header.num_layers,
        num_attention_heads=header.num_heads,
        num_key_value_heads=header.num_kv_heads,
        max_position_embeddings=header.length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=not header.has_own_output,
    )
    network = LlamaForCausalLM(config)
    network.load_state_dict(_state(header, weights))
    return network.eval()


def _state(header: Header, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {"lm_head.weight": weights.get("lm_head", weights["embed_tokens"])}
    for kind, tensor in weights.items():
        if kind in ("embed_tokens", "norm"):
            state[f"model.{kind}.weight"] = tensor
        elif kind not in ("", "lm_head"):
            turned = kind in ("self_attn.q_proj", "self_attn.k_proj")
            for layer, weight in enumerate(tensor):
                key = f"model.layers.{layer}.{kind}.weight"
                state[key] = pairs_to_halves(weight, header.head_width) if turned else weight
    return state


def pairs_to_halves(weight: Tensor, head_width: int) -> Tensor:
    """Reorder the outputs (H * W, D) of a query or key matrix.

    llama2.c turns neighbouring numbers (2i, 2i + 1) by an angle, `transformers` those half a head apart (i, i + W/2).
    """
    return weight.view(-1, head_width // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
