"""GGUF files: tiny ones built here give the numbers of the network they were made of; SmolLM2 fits to a denoiser."""

import json

import gguf
import pytest
import torch

from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.gguf_files import smollm2_file
from edlm.models.causal_files import load_causal
from edlm.randomness import make_generator
from edlm.tokenization import train_bpe
from edlm.tokenizer_files import load_tokenizer
from foreign import causal_model
from test_cli import CONFIGS, edlm, succeed  # noqa: F401
from toys import tiny_denoiser

BPE = train_bpe(["the cat sat on the mat " * 20], 265)
NAMES = {
    "llama": {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    },
    "gpt2": {
        "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
        "lm_head": "output", "transformer.h": "blk", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    },
}  # fmt: skip


def write_gguf(path, kind):
    """A tiny network with the tokens of BPE as llama.cpp's converter would write it; returns the network."""
    model = causal_model(kind, BPE.vocab_size)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64 if kind == "llama" else 128)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    if kind == "llama":
        writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
        writer.add_rope_dimension_count(16)
        writer.add_vocab_size(BPE.vocab_size)
    else:
        writer.add_layer_norm_eps(model.config.layer_norm_epsilon)
    inner = json.loads(BPE._inner.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(BPE.tokens())
    writer.add_token_merges([" ".join(pair) for pair in inner["merges"]])
    writer.add_bos_token_id(BPE.eos_id)
    writer.add_eos_token_id(BPE.eos_id)
    for name, weight in model.state_dict().items():
        writer.add_tensor(gguf_name(name, kind), as_stored(name, weight, kind).contiguous().numpy())
    for finish in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        finish()
    writer.close()
    return model


def gguf_name(name, kind):
    for theirs, ours in NAMES[kind].items():
        name = name.replace(theirs, ours, 1)
    return name


def as_stored(name, weight, kind):
    """llama.cpp interleaves the halves of rotary heads, and stores GPT-2's matrices the other way round."""
    if kind == "llama" and ("q_proj" in name or "k_proj" in name):
        return weight.view(2, 2, 8, 32).transpose(1, 2).reshape(32, 32)
    return weight.T if kind == "gpt2" and weight.ndim == 2 and ".h." in name else weight


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def tiny(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    return path, write_gguf(path, request.param)


@torch.no_grad()
def test_a_gguf_file_gives_the_log_probabilities_of_its_network(tiny):
    path, network = tiny
    model = load_causal(path)
    x0 = torch.randint(BPE.vocab_size, (3, 16), generator=make_generator(0))
    inputs = torch.cat([torch.full((3, 1), BPE.eos_id), x0[:, :-1]], dim=1)
    plain = network(input_ids=inputs).logits.double().log_softmax(-1).gather(-1, x0.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(model(x0).double(), plain, atol=1e-4, rtol=0)


def test_a_denoiser_over_the_tokens_of_a_gguf_file_takes_its_model_for_an_energy(tiny, tmp_path):
    path, _ = tiny
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.tokens() == BPE.tokens() and tokenizer.eos == "<|endoftext|>"
    text = "the cat sat <|endoftext|> on it"  # spelled out, a mark is text
    assert tokenizer.encode(text).tolist() == BPE.encode(text).tolist()
    denoiser = tiny_denoiser(vocab_size=tokenizer.vocab_size)
    denoiser.tokenizer = tokenizer
    assert load_energy(f"coar:{path}", denoiser).covers  # refused if it read other tokens


def test_what_is_no_gguf_file_is_no_tokenizer(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    (tmp_path / "short.gguf").write_bytes(b"GGUF\3\0\0\0")
    for name, message in (("bad", "is not a GGUF file"), ("short", "cannot read its tokenizer"), ("none", "hub")):
        with pytest.raises(UserError, match=message):
            load_tokenizer(str(tmp_path / f"{name}.gguf"))


@pytest.mark.slow
def test_a_denoiser_over_smollm2s_tokens_is_trained_corrected_and_judged_by_it(edlm, tmp_path):  # noqa: F811
    try:
        smollm2_file()
    except UserError as error:
        pytest.skip(str(error))
    (tmp_path / "text.txt").write_text("The state of the union is strong, and 1 in 10 know it.\n" * 40)
    data = ["--data.source", tmp_path / "text.txt", "--data.validation", "10%", "--data.cache", tmp_path / "cache"]
    size = ["--data.length", 8, "--model.width", 12, "--model.num-layers", 1, "--model.num-heads", 1]
    run = ["--run.steps", 2, "--run.batch-size", 2, "--run.eval-every", 0, "--run.out", tmp_path / "run"]
    succeed(edlm("train", "denoiser", "--config", CONFIGS / "smollm2.yaml", *data, *size, *run))
    study = ["--denoiser", tmp_path / "run", "--energy", "coar:smollm2", "--oracle", "smollm2", "--num", 2]
    report = json.loads(succeed(edlm("evaluate", "generation", *study, "--steps", "2", "--candidates", "2", "--json")))
    plain, corrected = report["rows"]
    assert corrected["energy"] == "coar:smollm2"
    assert corrected["energy_passes"]["mean"] > 0 == plain["energy_passes"]["mean"]
    assert any("its perplexity flatters EDLM-coAR" in note for note in report["notes"])
    assert all(row["perplexity"]["smollm2"]["perplexity"]["mean"] > 1 for row in (plain, corrected))
