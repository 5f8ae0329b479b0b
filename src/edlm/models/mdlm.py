"""Public MDLM, SEDD and autoregressive weights as models of ours.

Legend: V vocabulary (real tokens), D width, C width of the time code.

Their network is our transformer with other names: fused query, key and value, rotary halves, tanh GELU, norms without
bias, separate embedding and head. Three things differ, and all are settled here, once, in float64:

- Each block scales, shifts and gates by a function of the noise level. Without time conditioning that level is always
  0, so scale and shift become the weight and bias of the norm before, and the gate multiplies the projection behind.
- Embedding and head have a row for the mask, the last. The head's is dropped: MDLM gives it no probability, SEDD's
  scores at a masked position leave it out, and the autoregressive model never predicts it.
- The autoregressive model reads GPT-2's <|endoftext|> where ours reads the start symbol, so the start symbol takes that
  token's embedding, and the first token of a text gets the probability that theirs gives it behind <|endoftext|>.

SEDD learns ratios: its score of token v at a masked position is p(x0^i = v | xt) / (e^sigma - 1), and its network's
output is the log of the score up to terms that do not depend on v. A softmax over the real tokens is therefore its
denoiser, and the only thing lost is by how much its scores missed a total of one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
from edlm.models.denoiser import Denoiser, DenoiserConfig
from edlm.models.transformer import TransformerConfig
from edlm.tokenization import Tokenizer

MAX_LENGTH = 1 << 20
"""A longer length in someone's file is a mistake, and its table of positions would fill the memory."""
NUM_FREQUENCIES = 128
MLP_RATIO = 4
FREQUENCIES = "rotary_emb.inv_freq"
SIZES = {
    "vocab_size": "rows", "hidden_dim": "width", "hidden_size": "width", "n_blocks": "num_layers",
    "n_heads": "num_heads", "cond_dim": "time_width",
}  # fmt: skip
"""Names of sizes in public settings, and in `Sizes`."""


@dataclass(frozen=True)
class PublicModel:
    """What a public checkpoint holds, under its own names without `backbone.`, and what it says of itself."""

    where: str
    """The file or folder, for messages."""
    kind: Literal["mdlm", "sedd", "ar"]
    weights: dict[str, Tensor]
    stated: dict[str, Any]
    """Sizes, as far as they are stated, under the public names of `SIZES`."""
    length: int
    time_conditioning: bool = False
    dropout: float = 0.0
    averaged: bool = False
    """Whether the weights are the moving average of a file that also has those being trained."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a network, read off its weights."""

    rows: int
    """Rows of the embedding: the real tokens and the mask."""
    width: int
    num_layers: int
    num_heads: int
    time_width: int


def to_model(public: PublicModel, tokenizer: Tokenizer | None = None) -> Denoiser | Autoregressive:
    """The model of ours that computes what the public one does, in eval mode, float32, on the CPU."""
    sizes = measure(public)
    check_weights(public, sizes)
    config = TransformerConfig(
        vocab_size=sizes.rows - 1,
        length=public.length,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        width=sizes.width,
        dropout=public.dropout,
    )
    if public.time_conditioning:
        config = replace(config, time_conditioning=True, time_width=sizes.time_width, time_input="noise-level")
    model: Denoiser | Autoregressive
    if public.kind == "ar":
        model = Autoregressive(AutoregressiveConfig(config), tokenizer)
    else:
        model = Denoiser(DenoiserConfig(config), tokenizer)
    model.transformer.load_state_dict(dict(transformer_weights(public, sizes, start_row(sizes, tokenizer))))
    return model.eval()


def start_row(sizes: Sizes, tokenizer: Tokenizer | None) -> int:
    """The token that public autoregressive models read first: the end of text, which is GPT-2's last real one."""
    end = tokenizer.eos_id if tokenizer is not None else None
    return sizes.rows - 2 if end is None else end


def measure(public: PublicModel) -> Sizes:
    """Sizes from the shapes of the weights, refused if the checkpoint states others.

    Read off the weights first, so that a nonsensical statement is refused before anything of that size is made.
    """
    _require_size(public, "length", public.length)
    if public.length > MAX_LENGTH:
        raise UserError(f"{public.where}: length must be at most {MAX_LENGTH}, got {public.length}")
    embedding = _matrix(public, "vocab_embed.embedding")
    num_layers = len({name.split(".")[1] for name in public.weights if name.startswith("blocks.")})
    code = public.weights.get("sigma_map.mlp.2.bias")
    time_width = 0 if code is None else code.numel()
    rows, width = embedding.shape
    sizes = Sizes(rows, width, num_layers, _num_heads(public, width), time_width)
    for name, value in public.stated.items():
        _require_size(public, name, value)
        found = getattr(sizes, SIZES[name])
        if found != value and (public.kind, name) != ("ar", "cond_dim"):  # which it states but has no use for
            raise UserError(f"{public.where} states {name} {value} but its weights have {found}; wrong config or file")
    return sizes


def _require_size(public: PublicModel, name: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise UserError(f"{public.where}: {name} must be a whole number of at least 1, got {value!r}")


def _num_heads(public: PublicModel, width: int) -> int:
    """From the table of rotary frequencies, one for two entries of a head; else what the checkpoint states."""
    frequencies = public.weights.get(FREQUENCIES)
    if frequencies is None:
        stated = public.stated.get("n_heads", 0)
        if type(stated) is not int or stated < 1 or width % (2 * stated):
            raise UserError(f"{public.where}: width {width} cannot be split into {stated!r} heads of even width")
        return stated
    count = len(frequencies) if frequencies.ndim == 1 else 0
    if not count or width % (2 * count):
        raise UserError(f"{public.where}: {FREQUENCIES} has {count} entries, which do not divide a width of {width}")
    expected = 10_000.0 ** -(torch.arange(count, dtype=torch.float64) / count)
    if not torch.allclose(frequencies.double(), expected, rtol=1e-2, atol=0):  # may be stored in few bits
        raise UserError(f"{public.where}: its rotary frequencies have another base than 10,000, which is not supported")
    return width // (2 * count)


def check_weights(public: PublicModel, sizes: Sizes) -> None:
    """Exactly the weights of such a network, in their shapes, all finite."""
    wanted, found = dict(public_shapes(public.kind, sizes)), public.weights.keys() - {FREQUENCIES}
    if missing := sorted(wanted.keys() - found):
        raise UserError(f"{public.where} lacks {len(missing)} weights, {missing[0]} first; wrong or damaged file")
    if unknown := sorted(found - wanted.keys()):
        remedy = "it is of another architecture than MDLM's transformer"
        raise UserError(f"{public.where} has {len(unknown)} weights too many, {unknown[0]} first; {remedy}")
    for name, shape in wanted.items():
        tensor = public.weights[name]
        if tuple(tensor.shape) != shape:
            raise UserError(f"{public.where}: {name} is {tuple(tensor.shape)}, expected {shape}; wrong or damaged file")
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise UserError(
                f"{public.where}: {name} holds values that are not finite numbers; fetch another checkpoint"
            )


def public_shapes(kind: str, sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a public network's weights."""
    V, D, C = sizes.rows, sizes.width, sizes.time_width
    yield from {"vocab_embed.embedding": (V, D), "output_layer.norm_final.weight": (D,)}.items()
    yield from {"output_layer.linear.weight": (V, D), "output_layer.linear.bias": (V,)}.items()
    if kind != "ar":
        yield from {"sigma_map.mlp.0.weight": (C, 2 * NUM_FREQUENCIES), "sigma_map.mlp.0.bias": (C,)}.items()
        yield from {"sigma_map.mlp.2.weight": (C, C), "sigma_map.mlp.2.bias": (C,)}.items()
        yield from _modulation_shapes("output_layer", 2 * D, C)
    for i in range(sizes.num_layers):
        block = f"blocks.{i}"
        yield from {f"{block}.norm1.weight": (D,), f"{block}.norm2.weight": (D,)}.items()
        yield from {f"{block}.attn_qkv.weight": (3 * D, D), f"{block}.attn_out.weight": (D, D)}.items()
        yield from {f"{block}.mlp.0.weight": (MLP_RATIO * D, D), f"{block}.mlp.0.bias": (MLP_RATIO * D,)}.items()
        yield from {f"{block}.mlp.2.weight": (D, MLP_RATIO * D), f"{block}.mlp.2.bias": (D,)}.items()
        if kind != "ar":
            yield from _modulation_shapes(block, 6 * D, C)


def _modulation_shapes(where: str, out: int, C: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{where}.adaLN_modulation.weight", (out, C)
    yield f"{where}.adaLN_modulation.bias", (out,)


def transformer_weights(public: PublicModel, sizes: Sizes, start: int) -> Iterator[tuple[str, Tensor]]:
    """Names and values of the weights of our transformer."""
    theirs = public.weights
    embedding = theirs["vocab_embed.embedding"].float()
    if public.kind == "ar":
        embedding = torch.cat([embedding[:-1], embedding[start : start + 1]])
    yield "embedding.weight", embedding
    for i in range(sizes.num_layers):
        for name, tensor in _block_weights(public, f"blocks.{i}"):
            yield f"blocks.{i}.{name}", tensor.float()
    shift, scale = modulation(public, "output_layer", "shift scale")
    yield "norm.weight", (theirs["output_layer.norm_final.weight"].double() * (1 + scale)).float()
    yield "norm.bias", shift.float()
    yield "head.weight", theirs["output_layer.linear.weight"][:-1].float()
    yield "head.bias", theirs["output_layer.linear.bias"][:-1].float()
    if public.time_conditioning:
        for ours, name in {"time.first": "sigma_map.mlp.0", "time.second": "sigma_map.mlp.2"}.items():
            yield f"{ours}.weight", theirs[f"{name}.weight"].float()
            yield f"{ours}.bias", theirs[f"{name}.bias"].float()
        yield "modulation.weight", theirs["output_layer.adaLN_modulation.weight"].float()
        yield "modulation.bias", theirs["output_layer.adaLN_modulation.bias"].float()


def _block_weights(public: PublicModel, block: str) -> Iterator[tuple[str, Tensor]]:
    """Weights of one block, a constant modulation folded in: W (x (1 + scale) + shift), then times the gate."""
    theirs = {
        name.removeprefix(f"{block}."): tensor
        for name, tensor in public.weights.items()
        if name.startswith(f"{block}.")
    }
    parts = modulation(public, block, "shift scale gate shift scale gate")
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = parts
    yield "norm_attention.weight", theirs["norm1.weight"].double() * (1 + scale_a)
    yield "norm_attention.bias", shift_a
    yield "attention.qkv.weight", theirs["attn_qkv.weight"]
    yield "attention.out.weight", theirs["attn_out.weight"].double() * gate_a.unsqueeze(-1)
    yield "norm_mlp.weight", theirs["norm2.weight"].double() * (1 + scale_m)
    yield "norm_mlp.bias", shift_m
    yield "mlp_in.weight", theirs["mlp.0.weight"]
    yield "mlp_in.bias", theirs["mlp.0.bias"]
    yield "mlp_out.weight", theirs["mlp.2.weight"].double() * gate_m.unsqueeze(-1)
    yield "mlp_out.bias", theirs["mlp.2.bias"].double() * gate_m
    if public.time_conditioning:
        yield "modulation.weight", theirs["adaLN_modulation.weight"]
        yield "modulation.bias", theirs["adaLN_modulation.bias"]


def modulation(public: PublicModel, where: str, parts: str) -> tuple[Tensor, ...]:
    """What a block's constant modulation is, in float64, one vector (D,) for each of its `parts`.

    A network that has none, or whose modulation stays a function of time, has shift 0, scale 0 and gate 1 to fold.
    """
    names = parts.split()
    if public.kind == "ar" or public.time_conditioning:
        D = public.weights["vocab_embed.embedding"].shape[1]
        return tuple(torch.full((D,), float(name == "gate"), dtype=torch.float64) for name in names)
    return _linear(public, f"{where}.adaLN_modulation", _code_of_no_noise(public)).chunk(len(names))


def _code_of_no_noise(public: PublicModel) -> Tensor:
    """The time code (C,) of noise level 0, whose sines are 0 and cosines 1."""
    waves = torch.cat([torch.ones(NUM_FREQUENCIES), torch.zeros(NUM_FREQUENCIES)]).double()
    hidden = F.silu(_linear(public, "sigma_map.mlp.0", waves))
    return F.silu(_linear(public, "sigma_map.mlp.2", hidden))


def _linear(public: PublicModel, name: str, x: Tensor) -> Tensor:
    return F.linear(x, public.weights[f"{name}.weight"].double(), public.weights[f"{name}.bias"].double())


def _matrix(public: PublicModel, name: str) -> Tensor:
    tensor = public.weights.get(name)
    if tensor is None or tensor.ndim != 2 or min(tensor.shape) < 2:
        raise UserError(f"{public.where} has no {name} of two dimensions; it is no checkpoint of MDLM's transformer")
    return tensor
