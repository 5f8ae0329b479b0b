"""Public MDLM, SEDD and autoregressive checkpoints: the same numbers, and nothing but numbers."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import types
import zipfile
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

import edlm
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.generation import generate
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.mdlm import to_model
from edlm.models.mdlm_files import read_public
from edlm.models.pickled import lookup, read_checkpoint
from edlm.randomness import make_generator
from edlm.sample_config import SampleConfig
from edlm.tokenization import train_bpe
from public_toys import (
    MODEL,
    D,
    L,
    V,
    prefixed,
    public_weights,
    reference_logits,
    write_checkpoint,
    write_folder,
)

MASK = V
WEIGHTS, AVERAGE = public_weights(), public_weights(seed=1)
CAUSAL, CAUSAL_AVERAGE = public_weights(causal=True), public_weights(causal=True, seed=1)
X0 = torch.randint(V, (3, L), generator=make_generator(0))
XT = torch.where(torch.rand(X0.shape, generator=make_generator(1)) < 0.5, MASK, X0)
SEDD = {"model": MODEL, "parameterization": "sedd", "time_conditioning": True, "noise": {"type": "loglinear"}}


@pytest.fixture(scope="module")
def fixtures(shared):
    if not (shared / "fixtures" / "mdlm-tiny").is_dir():
        pytest.skip(f"no public checkpoints at {shared / 'fixtures'}")
    return shared / "fixtures"


@torch.no_grad()
def logits(model, tokens, t=None):
    return model.transformer.head(model.transformer(tokens, t))


def level_to_time(sigma):
    return -torch.expm1(-sigma) / (1 - 1e-3)


def refused(path, message, **options):
    with pytest.raises(UserError, match=message):
        edlm.load(path) if not options else read_public(path, **options)


# --- the numbers of the public code


def test_an_mdlm_folder_gives_the_logits_of_the_public_code(fixtures):
    model, expected = edlm.load(fixtures / "mdlm-tiny"), load_file(fixtures / "mdlm-tiny" / "expected.safetensors")
    assert isinstance(model, Denoiser) and model.mask_id == 60 and model.length == 24 and not model.training
    error = (logits(model, expected["input_ids"]) - expected["logits"][..., :-1]).abs().max()
    assert error < 1e-4


def test_a_time_conditioned_mdlm_folder_gives_them_at_every_noise_level(fixtures, tmp_path):
    folder = shutil.copytree(fixtures / "mdlm-tiny", tmp_path / "timed")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config | {"time_conditioning": True}))
    model, expected = edlm.load(folder), load_file(folder / "expected.safetensors")
    found = logits(model, expected["input_ids"], level_to_time(expected["sigma"]))
    assert model.uses_time and (found - expected["logits_sigma"][..., :-1]).abs().max() < 1e-4


def test_an_autoregressive_checkpoint_gives_the_logits_of_the_public_code(fixtures):
    file = fixtures / "mdlm-ar-tiny" / "ar.ckpt"
    model, expected = edlm.load(file), load_file(file.with_name("expected.safetensors"))
    assert isinstance(model, Autoregressive) and model.start_id == 60 and model.length == 24
    assert (logits(model, expected["input_ids"]) - expected["logits"][..., :-1]).abs().max() < 1e-4


# --- the plain formula


@pytest.mark.parametrize("form", ["folder", "file"])
def test_without_time_the_modulation_of_no_noise_is_folded_in(tmp_path, form):
    path = write_folder(tmp_path) if form == "folder" else write_checkpoint(tmp_path / "m.ckpt", WEIGHTS)
    model = edlm.load(path)
    expected = reference_logits(WEIGHTS, XT, torch.zeros(len(XT)))[..., :-1]
    assert not model.uses_time
    torch.testing.assert_close(logits(model, XT).double(), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(model(XT).double(), expected[XT == MASK].log_softmax(-1), rtol=1e-5, atol=1e-4)


def test_the_moving_average_is_taken_unless_the_raw_weights_are_asked_for(tmp_path):
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS, AVERAGE)
    for raw, weights in ((False, AVERAGE), (True, WEIGHTS)):
        public = read_public(file, raw_weights=raw)
        expected = reference_logits(weights, XT, torch.zeros(len(XT)))[..., :-1]
        torch.testing.assert_close(logits(to_model(public), XT).double(), expected, rtol=1e-5, atol=1e-4)
        assert public.averaged is not raw
    assert not read_public(write_checkpoint(tmp_path / "no-average.ckpt", WEIGHTS)).averaged


def test_the_causal_model_starts_from_the_end_of_text_and_scores_every_token(tmp_path):
    """Public code reads <|endoftext|> (GPT-2's last token), then the text; so do we, with the start symbol for it."""
    model = edlm.load(write_checkpoint(tmp_path / "ar.ckpt", CAUSAL, CAUSAL_AVERAGE))
    read = torch.cat([torch.full_like(X0[:, :1], V - 1), X0[:, :-1]], dim=1)
    log_probs = reference_logits(CAUSAL_AVERAGE, read)[..., :-1].log_softmax(-1)
    expected = log_probs.gather(-1, X0.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        torch.testing.assert_close(model(X0).double(), expected, rtol=1e-5, atol=1e-4)


def test_the_start_symbol_is_the_tokenizers_end_of_text(tmp_path):
    tokenizer = train_bpe(["a tale of two cities " * 20], V)  # its end of text is id 0
    tokenizer.save(tmp_path)
    file = write_checkpoint(tmp_path / "ar.ckpt", public_weights(causal=True, tokens=tokenizer.vocab_size))
    rows = edlm.load(file).transformer.embedding.weight
    assert tokenizer.eos_id == 0 and torch.equal(rows[-1], rows[0])


# --- SEDD


def test_sedd_scores_become_the_denoiser_that_they_are_ratios_of(tmp_path):
    """score(v) = p(v) / (e^sigma - 1) up to a factor that does not depend on v."""
    model = edlm.load(write_checkpoint(tmp_path / "sedd.ckpt", WEIGHTS, AVERAGE, config=SEDD))
    sigma = torch.tensor([0.05, 0.7, 5.0])
    log_scores = reference_logits(AVERAGE, XT, sigma) - sigma.double().expm1().log().view(-1, 1, 1)
    expected = log_scores[..., :-1].log_softmax(-1)[XT == MASK]
    assert model.uses_time and model.schedule.alpha(torch.tensor(0.25)) == 0.75
    with torch.no_grad():
        torch.testing.assert_close(model(XT, level_to_time(sigma)).double(), expected, rtol=1e-5, atol=1e-4)


def test_normalising_sedds_scores_never_loosens_its_bound():
    """Score entropy of scores r p(v) / (e^sigma - 1) is the denoiser's term plus a penalty for r other than 1."""
    generator = make_generator(2)
    log_p = torch.randn(V, dtype=torch.float64, generator=generator).log_softmax(-1)
    for r, k in ((0.3, 2.0), (1.0, 0.01), (4.0, 1.5)):
        score = r * k * log_p.exp()
        entropy = score.sum() - k * score[7].log() + k * (torch.tensor(k).log() - 1)
        penalty = k * (r - 1 - torch.tensor(r, dtype=torch.float64).log())
        torch.testing.assert_close(entropy, -k * log_p[7] + penalty)
        assert penalty >= 0


def test_the_last_step_of_sampling_from_sedd_is_finite(tmp_path):
    model = edlm.load(write_checkpoint(tmp_path / "sedd.ckpt", WEIGHTS, config=SEDD))
    with torch.no_grad():
        assert torch.isfinite(model(XT, torch.ones(3))).all() and torch.isfinite(model(XT, torch.zeros(3))).all()


# --- converted models are models


def test_a_converted_model_is_the_model_that_is_loaded_directly(tmp_path):
    for name, weights in (("mdlm", WEIGHTS), ("sedd", WEIGHTS), ("ar", CAUSAL)):
        direct = edlm.load(
            write_checkpoint(tmp_path / f"{name}.ckpt", weights, config=SEDD if name == "sedd" else None)
        )
        direct.save_pretrained(tmp_path / name)
        again = edlm.load(tmp_path / name)
        assert again.config == direct.config
        assert all(torch.equal(value, again.state_dict()[key]) for key, value in direct.state_dict().items())


def test_public_checkpoints_write_text_with_an_energy(tmp_path):
    tokenizer = train_bpe(["it was the best of times, it was the worst of times"], 270)
    tokenizer.save(tmp_path)
    tokens = tokenizer.vocab_size
    denoiser = edlm.load(write_folder(tmp_path, public_weights(tokens=tokens), vocab_size=tokens + 1))
    file = write_checkpoint(tmp_path / "ar.ckpt", public_weights(causal=True, tokens=tokens))
    energy = load_energy(f"coar:{file}", denoiser)
    samples = list(generate(denoiser, 2, SampleConfig(steps=4, candidates=2), energy=energy, prompt="it was"))
    assert all(len(sample.tokens) == L and sample.text.startswith("it was") for sample in samples)


def test_half_precision_weights_are_read(tmp_path):
    weights = {name: tensor.bfloat16() for name, tensor in WEIGHTS.items()}
    model = edlm.load(write_checkpoint(tmp_path / "m.ckpt", weights))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


# --- pickles


def stand_in(monkeypatch, module, name):
    """A class in a module that is not installed, as the writer of a checkpoint had it."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    made = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


def omegaconf_tree(monkeypatch, value, parent=None):
    """The settings as OmegaConf pickles them: containers with _content, leaves with _val, a parent in each."""
    is_tree = isinstance(value, dict)
    names = ("omegaconf.dictconfig", "DictConfig") if is_tree else ("omegaconf.nodes", "AnyNode")
    known = getattr(sys.modules.get(names[0]), names[1], None)
    self = (known or stand_in(monkeypatch, *names))()
    content = {k: omegaconf_tree(monkeypatch, v, self) for k, v in value.items()} if is_tree else value
    self.__dict__.update({"_parent": parent, "_content" if is_tree else "_val": content})
    return self


def test_the_settings_of_a_lightning_checkpoint_are_read_without_omegaconf(tmp_path, monkeypatch):
    tree = omegaconf_tree(monkeypatch, SEDD | {"data": {"tokenizer_name_or_path": "gpt2"}})
    tokenizer = stand_in(monkeypatch, "lightning.tokenizers", "SomeTokenizer")()
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS, config=tree, tokenizer=tokenizer)
    monkeypatch.undo()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    public = read_public(file)
    assert (public.kind, public.time_conditioning, public.length) == ("sedd", True, L)
    assert lookup(read_checkpoint(file), "hyper_parameters", "config", "data", "tokenizer_name_or_path") == "gpt2"
    assert not any(name.startswith("omegaconf") for name in sys.modules)


def attacks(target):
    code = f"open({str(target)!r}, 'w').close()"
    yield "os", (os.system, (f"touch {target}",))
    yield "subprocess", (subprocess.call, (["touch", str(target)],))
    yield "exec", (exec, (code,))
    yield "eval", (eval, (code,))
    yield "open", (open, (str(target), "w"))
    yield "getattr", (getattr, (target, "touch"))
    yield "runpy", (__import__("runpy").run_path, (str(target),))


@pytest.mark.parametrize("index", range(7), ids=lambda i: list(attacks("x"))[i][0])
@pytest.mark.parametrize("place", ["weights", "settings", "elsewhere"])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path, index, place):
    target = tmp_path / "made"
    call = list(attacks(target))[index][1]
    attack = type("Attack", (), {"__reduce__": lambda self: call})()
    content = {"state_dict": prefixed(WEIGHTS), "hyper_parameters": {"config": {"model": MODEL}}}
    if place == "weights":
        content["state_dict"]["backbone.more"] = attack
    elif place == "settings":
        content["hyper_parameters"]["config"] = attack
    else:
        content["callbacks"] = [attack]
    torch.save(content, tmp_path / "bad.ckpt")
    refused(tmp_path / "bad.ckpt", "names .*, which no weights or settings need; nothing of it was run")
    assert not target.exists()


def test_the_malicious_pickle_would_act_if_it_were_let(tmp_path):
    call = next(attacks(tmp_path / "made"))[1]
    torch.save(type("Attack", (), {"__reduce__": lambda self: call})(), tmp_path / "bad.ckpt")
    torch.load(tmp_path / "bad.ckpt", weights_only=False)
    assert (tmp_path / "made").exists()


def test_names_of_known_packages_are_made_inert_not_called(tmp_path):
    """A function of an allowed package would run in an ordinary unpickler; here a stand-in takes its place."""
    target = tmp_path / "made"
    attack = type("Attack", (), {"__reduce__": lambda self: (torch.save, ({}, str(target)))})()
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS, tokenizer=attack)
    assert isinstance(edlm.load(file), Denoiser) and not target.exists()


# --- damaged, wrong and nonsensical files


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.6, 0.999])
def test_a_truncated_checkpoint_is_refused(tmp_path, keep):
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS)
    data = file.read_bytes()
    file.write_bytes(data[: keep if keep >= 1 else int(keep * len(data))])
    refused(file, "m.ckpt is truncated, damaged or no PyTorch checkpoint .*fetch it again")


@pytest.mark.parametrize("size", [0, 7, 100, 20_000])
def test_truncated_safetensors_are_refused(tmp_path, size):
    file = write_folder(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refused(tmp_path, "model.safetensors is damaged or truncated")


def test_a_damaged_record_inside_a_checkpoint_is_refused(tmp_path):
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS)
    damaged = tmp_path / "damaged.ckpt"
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(damaged, "w") as target:
        for record in source.infolist():
            data = source.read(record)
            target.writestr(record.filename, data[: len(data) // 2] if record.filename.endswith("data.pkl") else data)
    refused(damaged, "damaged.ckpt is damaged or no plain checkpoint")


def test_a_checkpoint_with_changed_bytes_is_read_or_refused_never_more(tmp_path):
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS)
    data, random, refusals = file.read_bytes(), Random(0), 0
    for _ in range(100):
        changed = bytearray(data)
        for _ in range(3):  # in the settings at the front or in the archive's directory at the end
            changed[random.choice([1, -1]) * random.randrange(1, 6000)] = random.randrange(256)
        file.write_bytes(changed)
        try:
            read_public(file)
        except UserError:
            refusals += 1
    assert 10 < refusals < 100


def test_an_archive_that_unpacks_to_more_is_refused(tmp_path):
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS)
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(tmp_path / "z.ckpt", "w", zipfile.ZIP_DEFLATED) as target:
        for record in source.infolist():
            target.writestr(record.filename, source.read(record))
    refused(tmp_path / "z.ckpt", "unpacks to more than its size")


def test_a_tensor_that_declares_more_than_the_file_holds_is_refused(tmp_path):
    huge = torch.zeros(1).expand(1 << 40, D)  # four bytes on disk
    refused(write_checkpoint(tmp_path / "m.ckpt", WEIGHTS | {"vocab_embed.embedding": huge}), "not an ordinary tensor")
    sparse = torch.eye(D).to_sparse()
    refused(
        write_checkpoint(tmp_path / "s.ckpt", WEIGHTS | {"vocab_embed.embedding": sparse}), "not an ordinary tensor"
    )


@pytest.mark.parametrize("content", [[1, 2], {}, {"state_dict": None}, {"state_dict": {"backbone.x": 3}}, "text"])
def test_a_file_that_holds_something_else_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "m.ckpt")
    refused(tmp_path / "m.ckpt", "expected a dictionary|is missing or no dictionary|not an ordinary tensor")


def test_a_missing_file_is_named(tmp_path):
    refused(tmp_path / "nothing.ckpt", "there is no checkpoint file .*nothing.ckpt")
    refused("models/nothing.ckpt", "there is no checkpoint file models/nothing.ckpt")  # no name on the hub


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    broken = {name: tensor.clone() for name, tensor in WEIGHTS.items()}
    broken["blocks.1.mlp.0.weight"][3, 3] = torch.nan
    message = "blocks.1.mlp.0.weight holds values that are not finite numbers"
    refused(write_folder(tmp_path / "folder", broken), message)
    refused(write_checkpoint(tmp_path / "m.ckpt", WEIGHTS, broken), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 50258}, "states vocab_size 50258 but its weights have 301"),
        ({"hidden_dim": 10**12}, "states hidden_dim 1000000000000 but its weights have 24"),
        ({"n_blocks": 10**9}, "states n_blocks 1000000000 but its weights have 2"),
        ({"n_heads": 4}, "states n_heads 4 but its weights have 3"),
        ({"n_heads": 0}, "n_heads must be a whole number of at least 1, got 0"),
        ({"cond_dim": "8"}, "cond_dim must be a whole number of at least 1, got '8'"),
        ({"model_length": 10**12}, "length must be at most 1048576, got 1000000000000"),
        ({"model_length": -1}, "length must be a whole number of at least 1, got -1"),
        ({"model_length": True}, "length must be a whole number of at least 1, got True"),
        ({"model_length": None}, "config.json lacks model_length"),
        ({"dropout": 2}, r"dropout must be a number in \[0, 1\), got 2"),
        ({"dropout": "x"}, r"dropout must be a number in \[0, 1\), got 'x'"),
        ({"time_conditioning": "no"}, "time_conditioning must be true or false, got 'no'"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_refused_at_once(tmp_path, changes, message):
    refused(write_folder(tmp_path, **changes), message)


def test_missing_unknown_and_misshapen_weights_are_refused(tmp_path):
    less = {name: tensor for name, tensor in WEIGHTS.items() if name != "blocks.0.norm1.weight"}
    refused(write_folder(tmp_path / "less", less), "lacks 1 weights, blocks.0.norm1.weight first")
    more = WEIGHTS | {"blocks.0.extra.bias": torch.zeros(2)}
    refused(write_folder(tmp_path / "more", more), "1 weights too many, blocks.0.extra.bias first; it is of another")
    other = WEIGHTS | {"blocks.1.attn_out.weight": torch.zeros(D, 2 * D)}
    refused(write_folder(tmp_path / "other", other), r"blocks.1.attn_out.weight is \(24, 48\), expected \(24, 24\)")
    refused(write_folder(tmp_path / "flat", WEIGHTS | {"vocab_embed.embedding": torch.zeros(5)}), "no vocab_embed.emb")
    save_file({"embedding": torch.zeros(2)}, tmp_path / "less" / "model.safetensors")
    refused(tmp_path / "less", "no weights called backbone")


def test_an_average_that_does_not_fit_is_refused_and_the_other_weights_can_be_had(tmp_path):
    average = list(AVERAGE.items())
    for name, wrong in (("short", dict(average[:-1])), ("turned", dict(reversed(average)))):
        file = write_checkpoint(tmp_path / f"{name}.ckpt", WEIGHTS, wrong)
        refused(file, "moving average does not fit its weights; take the others with --raw-weights")
        assert not read_public(file, raw_weights=True).averaged


def test_another_rotary_base_is_refused(tmp_path):
    weights = prefixed(WEIGHTS)
    weights["backbone.rotary_emb.inv_freq"] = 500_000.0 ** -(torch.arange(4) / 4)
    save_file(weights, write_folder(tmp_path) / "model.safetensors")
    refused(tmp_path, "rotary frequencies have another base than 10,000")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parameterization": "d3pm"}, "has the parameterization 'd3pm'; only subs"),
        ({"data": {"tokenizer_name_or_path": "text8"}}, "the tokenizer text8, whose mask is one of its tokens"),
        ({"time_conditioning": True, "noise": {"type": "cosine"}}, "levels of 'cosine' noise; only loglinear"),
        ({"time_conditioning": True, "training": {"change_of_variables": True}}, "another variable"),
        ({"model": MODEL | {"length": None}}, "does not say how many tokens its model reads; give it with --length"),
        ({"model": MODEL | {"length": "${x}"}}, "length must be a whole number of at least 1"),
    ],
)
def test_settings_that_cannot_be_converted_are_refused(tmp_path, settings, message):
    refused(write_checkpoint(tmp_path / "m.ckpt", WEIGHTS, config={"model": MODEL} | settings), message)


def test_a_length_is_taken_only_where_the_file_does_not_say(tmp_path):
    file = write_checkpoint(tmp_path / "m.ckpt", WEIGHTS, config={"model": {"hidden_size": D}})
    assert read_public(file, length=9).length == 9
    refused(write_checkpoint(tmp_path / "n.ckpt", WEIGHTS), "reads 16 tokens, got --length 9; leave it out", length=9)
    refused(write_folder(tmp_path / "folder"), "--length is for a checkpoint file", length=9)
    refused(tmp_path / "folder", "--raw-weights is for a checkpoint file", raw_weights=True)


# --- tokenizers


def test_without_a_tokenizer_a_model_still_scores_ids(tmp_path):
    model = edlm.load(write_folder(tmp_path))
    assert model.tokenizer is None and model(XT).shape == ((XT == MASK).sum(), V)


def test_a_tokenizer_of_another_vocabulary_beside_the_weights_is_refused(tmp_path):
    train_bpe(["one two three"], 260).save(write_folder(tmp_path))
    refused(tmp_path, r"has \d+ tokens but the model 300; name the one it was trained with")


def test_gpt2s_tokenizer_is_taken_from_the_hub_for_gpt2s_vocabulary(tmp_path, monkeypatch, shared):
    monkeypatch.setattr("edlm.hub.fetch", lambda name, patterns, **_: shared / "data" / "gpt2_bpe")
    weights = public_weights(causal=True, tokens=50_257)
    model = edlm.load(write_checkpoint(tmp_path / "ar.ckpt", weights))
    assert model.tokenizer.decode([50256]) == "<|endoftext|>"
    assert torch.equal(model.transformer.embedding.weight[-1], model.transformer.embedding.weight[50256])


def test_offline_gpt2s_tokenizer_is_done_without_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = edlm.load(write_folder(tmp_path / "m", public_weights(tokens=50_257), vocab_size=50_258))
    assert model.tokenizer is None and model.vocab_size == 50_257


def test_the_hub_name_of_a_public_model_goes_the_usual_way(tmp_path, monkeypatch):
    write_folder(tmp_path)
    monkeypatch.setattr("edlm.models.pretrained.fetch", lambda name, patterns, **_: tmp_path)
    assert isinstance(edlm.load("kuleshov-group/mdlm-owt"), Denoiser)
