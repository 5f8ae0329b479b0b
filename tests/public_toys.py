"""Checkpoints in the public MDLM forms at tiny size, and the plain formula of the network in them."""

import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

V, D, H, N, C, L = 300, 24, 3, 2, 8, 16  # real tokens, width, heads, blocks, time code, positions
MODEL = {"hidden_size": D, "n_heads": H, "n_blocks": N, "cond_dim": C, "length": L, "dropout": 0.1}
CONFIG = {
    "model_type": "mdlm", "vocab_size": V + 1, "model_length": L, "hidden_dim": D, "cond_dim": C, "n_blocks": N,
    "n_heads": H, "dropout": 0.1, "time_conditioning": False, "torch_dtype": "float32",
}  # fmt: skip


def public_weights(*, causal=False, seed=0, tokens=V):
    """Random weights, none of them zero, in the order of the public module."""
    shapes = {"vocab_embed.embedding": (tokens + 1, D)}
    if not causal:
        shapes |= {"sigma_map.mlp.0.weight": (C, 256), "sigma_map.mlp.0.bias": (C,)}
        shapes |= {"sigma_map.mlp.2.weight": (C, C), "sigma_map.mlp.2.bias": (C,)}
    for block in (f"blocks.{i}" for i in range(N)):
        shapes |= {f"{block}.norm1.weight": (D,), f"{block}.attn_qkv.weight": (3 * D, D)}
        shapes |= {f"{block}.attn_out.weight": (D, D), f"{block}.norm2.weight": (D,)}
        shapes |= {f"{block}.mlp.0.weight": (4 * D, D), f"{block}.mlp.0.bias": (4 * D,)}
        shapes |= {f"{block}.mlp.2.weight": (D, 4 * D), f"{block}.mlp.2.bias": (D,)}
        if not causal:
            shapes |= {f"{block}.adaLN_modulation.weight": (6 * D, C), f"{block}.adaLN_modulation.bias": (6 * D,)}
    shapes |= {"output_layer.norm_final.weight": (D,), "output_layer.linear.weight": (tokens + 1, D)}
    shapes |= {"output_layer.linear.bias": (tokens + 1,)}
    if not causal:
        shapes |= {"output_layer.adaLN_modulation.weight": (2 * D, C), "output_layer.adaLN_modulation.bias": (2 * D,)}
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def prefixed(weights):
    """As stored: below `backbone.`, with the table of rotary frequencies among them."""
    table = {"backbone.rotary_emb.inv_freq": 10_000.0 ** -(torch.arange(0, D // H, 2) / (D // H))}
    return {f"backbone.{name}": tensor for name, tensor in weights.items()} | table


def write_folder(folder, weights=None, **changes):
    """The Hugging Face form; a change to None leaves a field out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(prefixed(public_weights() if weights is None else weights), folder / "model.safetensors")
    return folder


def write_checkpoint(path, weights, average=None, *, config=None, **extra):
    """The Lightning form; `config` is what the public code calls so, `extra` goes beside it."""
    content = {"state_dict": prefixed(weights), "hyper_parameters": {"config": config or {"model": MODEL}} | extra}
    if average is not None:
        content["ema"] = {"decay": 0.9999, "num_updates": 3, "shadow_params": list(average.values())}
    torch.save(content, path)
    return path


def reference_logits(weights, tokens, sigma=None):
    """The public network's output (B, L, V + 1), in float64; without `sigma` it is the causal one."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    c = None if sigma is None else time_code(w, sigma.double())
    h = w["vocab_embed.embedding"][tokens]
    for block in (f"blocks.{i}" for i in range(N)):
        shift, scale, gate, shift2, scale2, gate2 = modulate(w, block, 6, c)
        x = F.layer_norm(h, [D]) * w[f"{block}.norm1.weight"] * (1 + scale) + shift
        q, k, v = (x @ w[f"{block}.attn_qkv.weight"].T).view(*tokens.shape, 3, H, D // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=sigma is None)
        h = h + gate * (y.transpose(1, 2).flatten(2) @ w[f"{block}.attn_out.weight"].T)
        x = F.layer_norm(h, [D]) * w[f"{block}.norm2.weight"] * (1 + scale2) + shift2
        x = F.gelu(x @ w[f"{block}.mlp.0.weight"].T + w[f"{block}.mlp.0.bias"], approximate="tanh")
        h = h + gate2 * (x @ w[f"{block}.mlp.2.weight"].T + w[f"{block}.mlp.2.bias"])
    shift, scale = modulate(w, "output_layer", 2, c)
    h = F.layer_norm(h, [D]) * w["output_layer.norm_final.weight"] * (1 + scale) + shift
    return h @ w["output_layer.linear.weight"].T + w["output_layer.linear.bias"]


def time_code(w, sigma):
    frequencies = torch.exp(-math.log(10_000) * torch.arange(128, dtype=torch.float64) / 128)
    angle = sigma.unsqueeze(-1) * frequencies
    x = torch.cat([angle.cos(), angle.sin()], dim=-1) @ w["sigma_map.mlp.0.weight"].T + w["sigma_map.mlp.0.bias"]
    return F.silu(F.silu(x) @ w["sigma_map.mlp.2.weight"].T + w["sigma_map.mlp.2.bias"])


def modulate(w, where, parts, c):
    if c is None:
        return torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0][:parts], dtype=torch.float64)
    values = c @ w[f"{where}.adaLN_modulation.weight"].T + w[f"{where}.adaLN_modulation.bias"]
    return values.unsqueeze(1).chunk(parts, dim=-1)


def turned(x):
    """Rotary positions, as complex numbers."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float64).unsqueeze(-1) * frequencies
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag], dim=-1)
