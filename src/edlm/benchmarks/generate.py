"""Autoregressive sampling against `transformers`: the same weights in a GPT-NeoX, which has our kind of block."""

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from edlm import causal_sampler, sampler
from edlm.models.autoregressive import Autoregressive
from edlm.randomness import make_streams


def as_gpt_neox(model: Autoregressive) -> Any:
    """The same function as a `GPTNeoXForCausalLM`, which reads the start symbol in front of the text.

    Its last projection has no bias, so a model whose bias is not zero is refused.
    """
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    size = model.config.transformer
    if model.transformer.head.bias.any():
        raise ValueError("a GPT-NeoX has no bias in its last projection")
    config = GPTNeoXConfig(
        vocab_size=size.vocab_size + 1, hidden_size=size.width, num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads, intermediate_size=size.mlp_ratio * size.width, hidden_act="gelu_new",
        max_position_embeddings=size.length + 1, use_parallel_residual=False, attention_bias=False,
        bos_token_id=model.start_id, eos_token_id=None,
        rope_parameters={"rope_theta": 10_000.0, "partial_rotary_factor": 1.0, "rope_type": "default"},
    )  # fmt: skip
    twin = GPTNeoXForCausalLM(config)
    outcome = twin.load_state_dict(gpt_neox_weights(model), strict=False)
    assert len(outcome.missing_keys) == 1 and not outcome.unexpected_keys, outcome
    # The one that is missing: its name differs between versions. The start symbol's row is never chosen.
    projection = torch.cat([model.transformer.head.weight.detach(), torch.zeros(1, size.width)])
    twin.get_output_embeddings().weight = torch.nn.Parameter(projection)
    return twin.eval()


def gpt_neox_weights(model: Autoregressive) -> dict[str, Tensor]:
    """Our weights, but for the last projection, under its names."""
    size, own = model.config.transformer, model.transformer.state_dict()
    named = {
        "gpt_neox.embed_in.weight": own["embedding.weight"],
        "gpt_neox.final_layer_norm.weight": own["norm.weight"],
        "gpt_neox.final_layer_norm.bias": own["norm.bias"],
    }
    parts = {
        "norm_attention": "input_layernorm", "norm_mlp": "post_attention_layernorm", "attention.out": "attention.dense",
        "mlp_in": "mlp.dense_h_to_4h", "mlp_out": "mlp.dense_4h_to_h",
    }  # fmt: skip
    for n in range(size.num_layers):
        for ours, theirs in parts.items():
            for kind in ("weight", "bias"):
                if (name := f"blocks.{n}.{ours}.{kind}") in own:
                    named[f"gpt_neox.layers.{n}.{theirs}.{kind}"] = own[name]
        # Ours has all queries, then all keys, then all values; theirs has the three of one head together.
        fused = own[f"blocks.{n}.attention.qkv.weight"].view(3, size.num_heads, -1, size.width).transpose(0, 1)
        named[f"gpt_neox.layers.{n}.attention.query_key_value.weight"] = fused.reshape(3 * size.width, size.width)
    return named


def bench_generate(model: Autoregressive, *, batch_size: int, repeats: int) -> dict[str, Any]:
    """Tokens per second of both, taking turns after one turn each to warm up."""
    twin, length = as_gpt_neox(model), model.length

    def draw_ours(seed: int) -> None:
        state = sampler.init(length, make_streams(seed, range(batch_size)), model.start_id)
        causal_sampler.sample(state, model)

    def draw_theirs(seed: int) -> None:
        torch.manual_seed(seed)
        start = torch.full((batch_size, 1), model.start_id)
        blocked = [[model.start_id]]
        with torch.inference_mode():
            twin.generate(
                start, attention_mask=torch.ones_like(start), do_sample=True, top_k=0, max_new_tokens=length,
                min_new_tokens=length, bad_words_ids=blocked, pad_token_id=model.start_id,
            )  # fmt: skip

    seconds: dict[str, list[float]] = {"ours": [], "transformers": []}
    for seed in range(repeats + 1):
        for name, draw in (("ours", draw_ours), ("transformers", draw_theirs)):
            start = time.perf_counter()
            draw(seed)
            seconds[name].append(time.perf_counter() - start)
    ratios = [b / a for a, b in zip(seconds["ours"][1:], seconds["transformers"][1:], strict=True)]
    tokens = batch_size * length
    return {
        "setting": f"causal, {batch_size} x {length} tokens",
        "ours": tokens / statistics.median(seconds["ours"][1:]),
        "transformers": tokens / statistics.median(seconds["transformers"][1:]),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }
