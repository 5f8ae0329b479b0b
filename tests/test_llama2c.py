"""Models and tokenizers of llama2.c: against the format's own arithmetic, written out in numpy."""

import itertools
import struct

import numpy as np
import pytest
import torch

from edlm.energy import AutoregressiveEnergy
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.models.causal_files import load_causal
from edlm.oracle_spec import load_oracle
from edlm.tokenizer_files import load_tokenizer
from toys import tiny_denoiser

PIECES = [" ", "a", "b", "t", "h", "e", " t", "he", " the", "the", "th", "ab", "\n", "é"]
SIZES = {"dim": 16, "hidden": 24, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 259 + len(PIECES), "length": 32}


def tokenizer_bytes(pieces=PIECES):
    spelled = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    parts = [struct.pack("<i", max(len(p.encode()) for p in spelled))]
    for id, piece in enumerate(spelled):
        parts.append(struct.pack("<fi", -float(id), len(piece.encode())) + piece.encode())
    return b"".join(parts)


def random_weights(own_output, seed=0):
    s, rng = SIZES, np.random.default_rng(seed)
    D, F, n, kv = s["dim"], s["hidden"], s["layers"], s["dim"] // s["heads"] * s["kv_heads"]
    shapes = {
        "embedding": (s["vocab"], D), "norm_att": (n, D), "q": (n, D, D), "k": (n, kv, D), "v": (n, kv, D),
        "o": (n, D, D), "norm_ffn": (n, D), "w1": (n, F, D), "w2": (n, D, F), "w3": (n, F, D), "norm": (D,),
        "freqs": (2, s["length"], D // s["heads"] // 2),
    }  # fmt: skip
    if own_output:
        shapes["output"] = (s["vocab"], D)
    return {name: rng.normal(0, 0.4, shape).astype("<f4") for name, shape in shapes.items()}


def write_model(folder, *, own_output=False, tokenizer=True):
    weights = random_weights(own_output)
    vocab = -SIZES["vocab"] if own_output else SIZES["vocab"]
    header = struct.pack("<7i", *(vocab if key == "vocab" else value for key, value in SIZES.items()))
    (folder / "model.bin").write_bytes(header + b"".join(w.tobytes() for w in weights.values()))
    if tokenizer:
        (folder / f"tok{SIZES['vocab']}.bin").write_bytes(tokenizer_bytes())
    return folder / "model.bin", weights


def log_probs(weights, tokens):
    """llama2.c's forward pass for one sequence, position by position, in float64: log p of the token after each."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    heads, kv_heads = SIZES["heads"], SIZES["kv_heads"]
    W = SIZES["dim"] // heads
    keys, values, result = [[], []], [[], []], []
    for position, token in enumerate(tokens):
        x = w["embedding"][token]
        for layer in range(SIZES["layers"]):
            h = rms(x, w["norm_att"][layer])
            q, k = (turn(w[name][layer] @ h, position, W) for name in ("q", "k"))
            keys[layer].append(k.reshape(kv_heads, W))
            values[layer].append((w["v"][layer] @ h).reshape(kv_heads, W))
            out = []
            for head, query in enumerate(q.reshape(heads, W)):
                group = head * kv_heads // heads
                score = np.array([key[group] @ query for key in keys[layer]]) / np.sqrt(W)
                share = np.exp(score - score.max())
                out.append((share / share.sum()) @ np.array([value[group] for value in values[layer]]))
            x = x + w["o"][layer] @ np.concatenate(out)
            h = rms(x, w["norm_ffn"][layer])
            gate = w["w1"][layer] @ h
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ h))
        logits = w.get("output", w["embedding"]) @ rms(x, w["norm"])
        result.append(logits - np.logaddexp.reduce(logits))
    return np.array(result)


def rms(x, scale):
    return scale * x / np.sqrt((x * x).mean() + 1e-5)


def turn(x, position, W):
    """Rotate each pair (2i, 2i + 1) of every head."""
    pairs = x.reshape(-1, W // 2, 2)
    z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * position * 10_000.0 ** (-2 * np.arange(W // 2) / W))
    return np.stack([z.real, z.imag], axis=-1).reshape(-1)


def merged(text, pieces, scores):
    """llama2.c's encoder: characters, or their bytes, then again and again the best pair of neighbours."""
    ids = {piece: id for id, piece in enumerate(pieces)}
    tokens = []
    for character in " " + text if text else "":
        tokens += [ids[character]] if character in ids else [byte + 3 for byte in character.encode()]
    while True:
        pairs = [(pieces[a] + pieces[b], i) for i, (a, b) in enumerate(itertools.pairwise(tokens))]
        best = max(((scores[ids[p]], -i) for p, i in pairs if p in ids), default=None)
        if best is None:
            return tokens
        i = -best[1]
        tokens[i : i + 2] = [ids[pieces[tokens[i]] + pieces[tokens[i + 1]]]]


@pytest.mark.parametrize("own_output", [False, True])
def test_log_probabilities_are_those_of_llama2cs_arithmetic(tmp_path, own_output):
    path, weights = write_model(tmp_path, own_output=own_output)
    model = load_causal(path)
    x0 = torch.randint(SIZES["vocab"], (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = model(x0)
    for row, tokens in zip(found, x0.tolist(), strict=True):
        expected = log_probs(weights, [1, *tokens[:-1]])[np.arange(12), tokens]
        assert row.numpy() == pytest.approx(expected, abs=1e-4)
    assert model.length == 32 and model.start_id == 1 and model.describe()["start"] == "<s>"


@pytest.mark.parametrize("text", ["the", "the the", "abé\n", "", " the", "thé ☃ a", "hethe", "tab the"])
def test_text_is_cut_as_llama2c_cuts_it(tmp_path, text):
    (tmp_path / "tok.bin").write_bytes(tokenizer_bytes())
    tokenizer = load_tokenizer(str(tmp_path / "tok.bin"))
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    assert tokenizer.encode(text).tolist() == merged(text, pieces, [-id for id in range(len(pieces))])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_id == 2 and tokenizer.vocab_size == SIZES["vocab"]


def test_the_tokenizer_survives_being_saved(tmp_path):
    (tmp_path / "tok.bin").write_bytes(tokenizer_bytes())
    tokenizer = load_tokenizer(str(tmp_path / "tok.bin"))
    tokenizer.save(tmp_path / "saved")
    again = load_tokenizer(str(tmp_path / "saved"))
    assert again == tokenizer and again.encode("the ab\né").tolist() == tokenizer.encode("the ab\né").tolist()


def test_a_denoiser_over_its_tokenizer_takes_it_for_an_energy(tmp_path):
    path, _ = write_model(tmp_path)
    denoiser = tiny_denoiser(vocab_size=SIZES["vocab"])
    denoiser.tokenizer = load_tokenizer(str(tmp_path / f"tok{SIZES['vocab']}.bin"))
    energy = load_energy(f"ar:{path}", denoiser)
    assert isinstance(energy, AutoregressiveEnergy) and energy.covers
    half = load_energy(f"ar:{path},bfloat16", denoiser)
    assert next(half.model.parameters()).dtype == torch.bfloat16


def damaged(folder, change):
    path, _ = write_model(folder)
    data = bytearray(path.read_bytes())
    path.write_bytes(change(data))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:20], "is too short for a llama2.c model"),
        (lambda data: data[:-4], "bytes, but its header asks for"),
        (lambda data: data + b"\0" * 4, "bytes, but its header asks for"),
        (lambda data: b"hello, I am a text, not a model" + data, "is no llama2.c model: its first numbers are"),
        (lambda data: struct.pack("<I", 0x616B3432) + data, "is in a later llama2.c format; export it with version 0"),
        (lambda data: data[:400] + struct.pack("<f", float("nan")) + data[404:], "is not a finite number everywhere"),
    ],
)
def test_damaged_models_are_refused(tmp_path, change, message):
    with pytest.raises(UserError) as error:
        load_causal(damaged(tmp_path, change))
    assert message in str(error.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        load_causal(tmp_path / "none.bin")
    path, _ = write_model(tmp_path, tokenizer=False)
    with pytest.raises(UserError, match=r"needs its tokenizer: put tok273.bin or tokenizer.bin beside it"):
        load_causal(path)
    (tmp_path / "tokenizer.bin").write_bytes(tokenizer_bytes(PIECES[:5]))
    with pytest.raises(UserError, match=r"has 273 tokens, but the tokenizer beside it 264"):
        load_causal(path)


@pytest.mark.parametrize("change", [lambda d: d[:3000], lambda d: d[:-2], lambda d: b"", lambda d: b"\1" * 9000])
def test_damaged_tokenizers_are_refused(tmp_path, change):
    (tmp_path / "tok.bin").write_bytes(change(tokenizer_bytes()))
    with pytest.raises(UserError, match=r"tok.bin ends or breaks off after .* it is no whole tokenizer of llama2.c"):
        load_tokenizer(str(tmp_path / "tok.bin"))


def test_a_real_model_knows_its_stories(shared):
    folder = shared / "data" / "stories"
    oracle = load_oracle(f"ar:{folder / 'stories260K.bin'}")
    stories = (folder / "tinystories_sample_2MiB.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    scores = oracle.nll([story.strip() for story in stories[1:5]])
    per_token = scores.nats.sum() / scores.num_tokens.sum()
    assert 1.1 < per_token < 1.7
    shuffled = oracle.nll([" ".join(sorted(stories[1].split()))])
    assert shuffled.nats[0] / shuffled.num_tokens[0] > 2 * per_token


def test_real_text_is_cut_as_llama2c_cuts_it(shared):
    from edlm.llama2c_tokenizer import _read_pieces

    folder = shared / "data" / "stories"
    tokenizer = load_tokenizer(str(folder / "tok512.bin"))
    pieces, scores = _read_pieces(folder / "tok512.bin")
    words = (folder / "tinystories_sample_2MiB.txt").read_text(encoding="utf-8")[:20_000].split(" ")
    for start in range(0, len(words), 20):
        text = " ".join(words[start : start + 20])
        assert tokenizer.encode(text).tolist() == merged(text, pieces, scores)
