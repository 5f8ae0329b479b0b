"""The one transformer: the denoiser, the causal model and the energy network are all made of it.

Legend: B batch, L positions, N chosen ones of the whole batch, D width, H heads, V vocabulary (real tokens; the mask is
id V).

A pre-norm transformer with rotary positions: the architecture of MDLM's denoiser. Attention is bidirectional or causal,
and time enters, if at all, by adaptive layer norm. `forward` stops at the hidden states; `head` maps any subset of
them to logits, so that nobody pays for the vocabulary at positions that need no token.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edlm.errors import UserError
from edlm.products import Linear, attention


@dataclass(frozen=True)
class TransformerConfig:
    """Everything needed to rebuild the network."""

    vocab_size: int
    """Number of real tokens; the mask (and start symbol) is the id after the last of them."""
    length: int
    """Positions of a sequence."""
    num_layers: int = 12
    num_heads: int = 12
    width: int = 768
    mlp_ratio: int = 4
    dropout: float = 0.1
    time_conditioning: bool = False
    time_width: int = 128
    time_input: Literal["time", "noise-level"] = "time"
    """What of the time enters: t itself, or, as in MDLM and SEDD, the noise level -log(1 - 0.999 t), which then
    modulates the last norm too."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "length", "num_layers", "num_heads", "width", "mlp_ratio", "time_width"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % (2 * self.num_heads):
            raise UserError(f"width must be a multiple of twice num_heads, got {self.width} and {self.num_heads}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def mask_id(self) -> int:
        return self.vocab_size


PRESETS: dict[str, dict[str, Any]] = {
    "nano": {"num_layers": 6, "num_heads": 4, "width": 256},
    "tiny": {"num_layers": 8, "num_heads": 8, "width": 512},
    "small": {"num_layers": 12, "num_heads": 12, "width": 768},
    "medium": {"num_layers": 24, "num_heads": 16, "width": 1024},
}
"""Sizes by name: nano trains on two CPU cores, small is the paper's, medium is GPT-2 medium's."""


class Cache:
    """Keys and values of the positions already read by a causal model, one pair of tensors a layer.

    They stand in buffers with room to grow, so that reading one more token does not copy all that came before.
    """

    def __init__(self) -> None:
        self._layers: list[tuple[Tensor, Tensor]] = []  # (B, H, room, D/H) each
        self._lengths: list[int] = []

    @property
    def length(self) -> int:
        """Positions read by the whole network."""
        return self._lengths[-1] if self._lengths else 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values (B, H, l, D/H) of new positions of a layer; returns those of all positions."""
        if layer == len(self._layers):
            self._layers.append((k, v))
            self._lengths.append(k.shape[2])
            return k, v
        start, stop = self._lengths[layer], self._lengths[layer] + k.shape[2]
        if stop > self._layers[layer][0].shape[2]:
            room = max(stop, 2 * start) - start
            self._layers[layer] = tuple(F.pad(old[:, :, :start], (0, 0, 0, room)) for old in self._layers[layer])  # type: ignore[assignment]
        keys, values = (kept[: len(k)] for kept in self._layers[layer])
        keys[:, :, start:stop], values[:, :, start:stop] = k, v
        self._lengths[layer] = stop
        return keys[:, :, :stop], values[:, :, :stop]

    def start(self, layer: int) -> int:
        """Positions read by a layer."""
        return self._lengths[layer] if layer < len(self._lengths) else 0

    def forget(self, length: int) -> None:
        """Go back to when only the first `length` positions had been read."""
        self._lengths = [min(length, n) for n in self._lengths]

    def branch(self, rows: Tensor) -> Tensor:
        """Make the next batch go on from `rows` (n,), which are sorted and may repeat: where each of them now is (n,).

        The first to go on from a row stays in its place if it can. Only the others are copied, into places that are
        free: with many rows of few ancestors most of the work of `select` is saved.
        """
        if not self._layers:
            return torch.arange(len(rows), device=rows.device)
        if torch.equal(rows, torch.arange(len(rows), device=rows.device)) and len(rows) <= len(self._layers[0][0]):
            return rows
        stays = (rows < len(rows)) & (rows != torch.cat([rows.new_tensor([-1]), rows[:-1]]))
        is_free = torch.ones_like(stays).index_fill(0, rows[stays], False)
        places = rows.masked_scatter(~stays, is_free.nonzero())
        for layer, length in enumerate(self._lengths):
            missing = len(rows) - len(self._layers[layer][0])
            if missing > 0:
                room = (0, 0, 0, 0, 0, 0, 0, max(missing, len(self._layers[layer][0])))
                self._layers[layer] = tuple(F.pad(kept, room) for kept in self._layers[layer])  # type: ignore[assignment]
            for kept in self._layers[layer]:
                kept[places[~stays], :, :length] = kept[rows[~stays], :, :length]
        return places

    def select(self, rows: Tensor) -> "Cache":
        """A copy for some rows of the batch, which may repeat."""
        copy = Cache()
        copy._lengths = list(self._lengths)
        copy._layers = [(k[rows, :, :n], v[rows, :, :n]) for (k, v), n in zip(self._layers, self._lengths, strict=True)]
        return copy


class Rotary(nn.Module):
    """Rotary positions: query and key pairs (i, i + D/2H) are turned by an angle proportional to the position."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, length: int, base: float = 10_000.0) -> None:
        super().__init__()
        inverse_wavelength = base ** -(torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
        angle = torch.arange(length, dtype=torch.float64).unsqueeze(-1) * inverse_wavelength  # (L, D/2H)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, x: Tensor, start: int) -> Tensor:
        """Turn `x` (..., l, D/H), whose first position is `start`."""
        cos, sin = (table[start : start + x.shape[-2]].to(x.dtype) for table in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        turned = torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)
        return torch.cat(turned, dim=-1)


Positions = tuple[Tensor, ...]
"""Chosen positions of a batch: their rows (N,) and their columns (N,)."""


def pick(x: Tensor, at: Positions | None) -> Tensor:
    """`x` (B, L, D), or (B, 1, D) that stands for all positions, at some of them: (N, D). All of it without `at`."""
    if at is None:
        return x
    return x[at] if x.shape[1] > 1 else x[at[0], 0]


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, *, causal: bool, layer: int) -> None:
        super().__init__()
        self.num_heads, self.causal, self.layer = config.num_heads, causal, layer
        self.qkv = Linear(config.width, 3 * config.width, bias=False)
        self.out = Linear(config.width, config.width, bias=False)

    def forward(self, h: Tensor, rotary: Rotary, cache: Cache | None, at: Positions | None) -> Tensor:
        """(B, L, D), or (N, D) of the positions `at`."""
        B, length, D = h.shape
        qkv = self.qkv(h).view(B, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)  # (3, B, H, l, D/H)
        start = cache.start(self.layer) if cache is not None else 0
        (q, k), v = rotary(qkv[:2], start), qkv[2]
        if cache is not None:
            k, v = cache.append(self.layer, k, v)
        y = attention(q, k, v, **self._visibility(length, start, h.device))
        return self.out(pick(y.transpose(1, 2).reshape(B, length, D), at))

    def _visibility(self, length: int, start: int, device: torch.device) -> dict[str, Any]:
        """Which keys a query sees: all, those up to itself, or (one new position after cached ones) all again."""
        if not self.causal or length == 1:
            return {}
        if start == 0:
            return {"is_causal": True}
        query, key = torch.arange(start, start + length, device=device), torch.arange(start + length, device=device)
        return {"attn_mask": key <= query.unsqueeze(-1)}


class Block(nn.Module):
    """Attention and MLP, each on the normalised residual stream; with time, scale, shift and gate both."""

    def __init__(self, config: TransformerConfig, *, causal: bool, layer: int) -> None:
        super().__init__()
        D = config.width
        self.norm_attention, self.norm_mlp = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention = Attention(config, causal=causal, layer=layer)
        self.mlp_in = Linear(D, config.mlp_ratio * D, gelu=True)
        self.mlp_out = Linear(config.mlp_ratio * D, D)
        self.dropout = nn.Dropout(config.dropout)
        self.modulation = nn.Linear(config.time_width, 6 * D) if config.time_conditioning else None

    def forward(
        self, h: Tensor, rotary: Rotary, time: Tensor | None, cache: Cache | None, at: Positions | None = None
    ) -> Tensor:
        """(B, L, D), or (N, D) of the positions `at`: all are read, and what follows attention is done for those."""
        if self.modulation is None:
            y = self.attention(self.norm_attention(h), rotary, cache, at)
            h = pick(h, at) + self.dropout(y)
            return h + self.dropout(self._mlp(self.norm_mlp(h)))
        shift_a, scale_a, *rest = self.modulation(time).unsqueeze(1).chunk(6, dim=-1)  # (B, 1, D) each
        gate_a, shift_m, scale_m, gate_m = (pick(part, at) for part in rest)
        y = self.attention(self.norm_attention(h) * (1 + scale_a) + shift_a, rotary, cache, at)
        h = pick(h, at) + gate_a * self.dropout(y)
        return h + gate_m * self.dropout(self._mlp(self.norm_mlp(h) * (1 + scale_m) + shift_m))

    def _mlp(self, h: Tensor) -> Tensor:
        return self.mlp_out(self.mlp_in(h))


def noise_level(t: Tensor) -> Tensor:
    """-log(1 - 0.999 t): finite at t = 1, where public log-linear schedules keep one token in a thousand clean."""
    return -torch.log1p(-(1 - 1e-3) * t)


class TimeEmbedding(nn.Module):
    """A sinusoidal code of t in [0, 1], or of its noise level, through a small MLP."""

    def __init__(self, width: int, num_frequencies: int = 128, *, of_noise_level: bool = False) -> None:
        super().__init__()
        self.num_frequencies, self.of_noise_level = num_frequencies, of_noise_level
        self.first, self.second = nn.Linear(2 * num_frequencies, width), nn.Linear(width, width)

    def forward(self, t: Tensor) -> Tensor:
        exponent = torch.arange(self.num_frequencies, device=t.device) / self.num_frequencies
        level = noise_level(t.float()) if self.of_noise_level else 1000 * t.float()
        angle = level.unsqueeze(-1) * torch.exp(-math.log(10_000) * exponent)
        code = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.first.weight.dtype)
        return F.silu(self.second(F.silu(self.first(code))))


class Transformer(nn.Module):
    """Tokens to hidden states. Embedding and head are not tied; the embedding has one row more, for the mask."""

    def __init__(self, config: TransformerConfig, *, causal: bool) -> None:
        super().__init__()
        self.config, self.causal = config, causal
        self.embedding = nn.Embedding(config.vocab_size + 1, config.width)
        self.rotary = Rotary(config.width // config.num_heads, config.length)
        by_level = config.time_input == "noise-level"
        has_time, C = config.time_conditioning, config.time_width
        self.time = TimeEmbedding(C, of_noise_level=by_level) if has_time else None
        self.blocks = nn.ModuleList(Block(config, causal=causal, layer=i) for i in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width)
        self.modulation = nn.Linear(C, 2 * config.width) if has_time and by_level else None
        self.head: nn.Linear = Linear(config.width, config.vocab_size)
        self._initialise()

    def forward(
        self, tokens: Tensor, t: Tensor | None = None, cache: Cache | None = None, where: Tensor | None = None
    ) -> Tensor:
        """Hidden states (B, L, D) after the last norm. `t` (B,) is needed if, and used only if, time enters.

        With `where` (B, L) only of those positions, (N, D): the last block then does less.
        """
        return self.run(self.embedding(tokens), t, cache, where)

    def run(
        self, h: Tensor, t: Tensor | None = None, cache: Cache | None = None, where: Tensor | None = None
    ) -> Tensor:
        """The same from embeddings (B, L, D): for networks that make their own."""
        self._check(h, t, cache)
        time = self.time(t) if self.time is not None else None
        at = where.nonzero(as_tuple=True) if where is not None else None
        *others, last = self.blocks
        for block in others:
            h = _whole(block, h, self.rotary, time, cache)
        if _is_compiled(last):
            h = pick(_whole(last, h, self.rotary, time, cache), at)
        else:
            h = last(h, self.rotary, time, cache, at)
        if self.modulation is None:
            return self.norm(h)
        shift, scale = (pick(part, at) for part in self.modulation(time).unsqueeze(1).chunk(2, dim=-1))
        return self.norm(h) * (1 + scale) + shift

    def _check(self, h: Tensor, t: Tensor | None, cache: Cache | None) -> None:
        end = h.shape[1] + (cache.length if cache is not None else 0)
        if end > self.config.length:
            raise UserError(f"the model reads at most {self.config.length} tokens, got {end}; cut the input")
        if self.time is not None and t is None:
            raise ValueError("this network is time-conditioned: pass t")

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if self.modulation is not None:
            nn.init.zeros_(self.modulation.weight)
        for block in self.blocks:
            assert isinstance(block, Block)
            for residual in (block.attention.out, block.mlp_out):  # keeps the residual stream's variance near one
                nn.init.normal_(residual.weight, std=0.02 / math.sqrt(2 * self.config.num_layers))
            if block.modulation is not None:  # scale 0, shift 0, gate 1: starts as the network without time
                nn.init.zeros_(block.modulation.weight)
                with torch.no_grad():
                    block.modulation.bias.view(6, -1)[[2, 5]] = 1


def _whole(block: nn.Module, h: Tensor, *rest: Any) -> Tensor:
    """A block over all positions; the last of `rest` is the cache.

    A compiled block is for whole inputs: a cache that grows would have it compiled again and again. Any other is
    called, so that its hooks gather its weights where they are sharded.
    """
    return (block.forward if _is_compiled(block) and rest[-1] is not None else block)(h, *rest)


def _is_compiled(block: nn.Module) -> bool:
    return block._compiled_call_impl is not None


def count_parameters(config: TransformerConfig) -> int:
    """Number of weights, counted without making them."""
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config, causal=False).parameters())


def make_transformer_config(preset: str, vocab_size: int, length: int, **overrides: object) -> TransformerConfig:
    """A preset with some of its fields replaced; overrides that are None keep the preset's value."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}; choose from {', '.join(PRESETS)}")
    base = TransformerConfig(vocab_size=vocab_size, length=length, **PRESETS[preset])
    return replace(base, **{key: value for key, value in overrides.items() if value is not None})  # type: ignore[arg-type]
