"""Masked language models from elsewhere as denoisers: against plain transformers, and as part of everything else."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from edlm.energy import CarryOverEnergy
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.generation import generate
from edlm.models.load import load_model, load_named, load_own
from edlm.models.masked_files import load_masked
from edlm.models.masked_lm import MaskedLM
from edlm.models.pretrained import fingerprint
from edlm.randomness import make_generator
from edlm.sample_config import SampleConfig
from edlm.sampler import tempered
from foreign import SPECIAL, WORDS, causal_model, copy_folder, save_causal, save_masked, save_with_code, word_pieces
from test_cli import assert_refused, edlm, one_thread  # noqa: F401

V, CLS, SEP, MASK = 14, 2, 3, 4
KINDS = ["bert", "roberta", "modernbert"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("masked")
    for kind in KINDS:
        save_masked(path / kind, kind)
    save_masked(path / "padded", "bert", rows=20)
    save_with_code(path / "code")
    return path


def states(num=4, length=6):
    """Random words with our mask, id V, at about half of the positions."""
    generator = make_generator(1)
    xt = torch.randint(len(SPECIAL), V, (num, length), generator=generator)
    xt[torch.rand(xt.shape, generator=generator) < 0.5] = V
    return xt


def plain_log_probs(network, xt, shift=0):
    """The definition: the network's own mask, [CLS] and [SEP] around, log-softmax over all that is not special."""
    ends = [torch.full((len(xt), 1), id) for id in (CLS, SEP)]
    with torch.no_grad():
        logits = network(torch.cat([ends[0], xt.masked_fill(xt == V, MASK), ends[1]], dim=1)).logits.double()
    logits = logits[:, 1 - shift : 1 - shift + xt.shape[1], :V]
    logits[..., : len(SPECIAL)] = -math.inf
    return logits.log_softmax(-1)


# --- the law


@pytest.mark.parametrize("kind", [*KINDS, "padded"])
def test_log_probabilities_are_those_of_a_plain_forward_pass(folder, kind):
    model, xt = load_model(folder / kind), states()
    assert isinstance(model, MaskedLM) and model.picks and (model.vocab_size, model.mask_id) == (V, V)
    with torch.no_grad():
        found = model(xt)
    assert torch.allclose(found.double(), plain_log_probs(model.network, xt)[xt == V], atol=1e-5)


def test_special_tokens_get_no_mass_and_the_rest_sums_to_one(folder):
    model = load_model(folder / "bert")
    with torch.no_grad():
        found = model(states())
    assert model.never == tuple(range(len(SPECIAL)))
    assert (found[:, : len(SPECIAL)] == -math.inf).all() and found[:, len(SPECIAL) :].isfinite().all()
    assert torch.allclose(found.exp().sum(-1), torch.ones(len(found)), atol=1e-5)
    assert torch.allclose(tempered(found, 0.5).exp().sum(-1), torch.ones(len(found)).double())


def test_some_positions_are_a_part_of_all(folder):
    model, xt = load_model(folder / "roberta"), states()
    where = (xt == V) & (torch.arange(xt.shape[1]) % 2 == 0)
    with torch.no_grad():
        assert torch.allclose(model(xt, where=where), model(xt)[where[xt == V]], atol=1e-5)
        assert model(xt, where=torch.zeros_like(where)).shape == (0, V)


def test_running_the_head_everywhere_gives_the_same(folder):
    model, xt = load_model(folder / "modernbert"), states()
    with torch.no_grad():
        picked = model(xt)
        model.picks = False
        assert torch.allclose(model(xt), picked, atol=1e-5)


def test_a_batch_is_its_rows_alone(folder):
    model, xt = load_model(folder / "bert"), states()
    with torch.no_grad():
        together = model(xt).split((xt == V).sum(-1).tolist())
        for row, found in zip(xt, together, strict=True):
            assert torch.allclose(model(row.unsqueeze(0)), found, atol=1e-5)


def test_lengths_leave_room_for_what_stands_around(folder):
    assert load_model(folder / "bert").length == 22
    assert load_model(folder / "roberta").length == 21  # position 0 is the padding's
    for kind in KINDS:
        model = load_model(folder / kind)
        assert model(torch.full((1, model.length), V)).shape == (model.length, V)


def test_half_precision_gives_float32_log_probabilities(folder):
    half, full = load_model(f"mlm:{folder}/bert,bfloat16"), load_model(folder / "bert")
    with torch.no_grad():
        found = half(states())
        assert found.dtype == torch.float32 and (found.exp() - full(states()).exp()).abs().mean() < 0.02


# --- models with code of their own


def test_code_of_a_model_is_run_only_if_asked_for(folder):
    for name in (folder / "code", f"mlm:{folder}/code", f"mlm:{folder}/code,bfloat16"):
        with pytest.raises(UserError, match=r"with Python code of its own, which is not run; .*,trust-remote-code"):
            load_model(name)
    model, xt = load_model(f"{folder}/code,trust-remote-code"), states()
    assert not model.picks and model.length == 22  # its head is out of reach, so all of it is run
    with torch.no_grad():
        expected = plain_log_probs(model.network, xt)[xt == V]
        assert torch.allclose(model(xt).double(), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["code,trust-remote-code", "bert"])
def test_shifted_output_is_read_one_position_earlier(folder, name):
    model, xt = load_model(f"mlm:{folder}/{name},shifted"), states()
    with torch.no_grad():
        assert torch.allclose(model(xt).double(), plain_log_probs(model.network, xt, shift=1)[xt == V], atol=1e-5)
    assert fingerprint(model) != fingerprint(load_model(f"mlm:{folder}/{name}"))


def test_a_mask_may_stand_behind_the_tokenizer(folder, tmp_path):
    """As LLaDA's does: a row of the network that its tokenizer does not name."""
    path = copy_folder(folder / "padded", tmp_path / "far")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"mask_token_id": 17}))
    model = load_masked(path)
    assert model.own_mask_id == 17 and model.mask_id == V and "id 17" in model.describe()["mask"]
    assert model(states()).isfinite().any(-1).all()


# --- as a denoiser


def test_text_is_drawn_filled_in_and_corrected(folder, tmp_path):
    model = load_model(folder / "bert")
    settings = SampleConfig(steps=4, length=8, candidates=3)
    sample = next(iter(generate(model, 1, settings, prompt="The cat")))
    assert sample.text.startswith("the cat") and not set(sample.tokens) & set(model.never)
    filled = next(iter(generate(model, 1, SampleConfig(steps=3), infill="the [MASK:2] sat")))
    assert filled.tokens[0] == model.tokenizer.encode("the")[0] and len(filled.tokens) == 4
    save_causal_over_words(tmp_path / "gpt2")
    energy = load_energy(f"coar:{tmp_path}/gpt2", model)
    assert isinstance(energy, CarryOverEnergy) and energy.covers
    assert next(iter(generate(model, 1, settings, energy=energy))).energy_evaluations > 0


def save_causal_over_words(folder):
    causal_model("gpt2", V + 2).save_pretrained(folder)
    tokenizer = word_pieces()
    tokenizer.bos_token = "[CLS]"
    tokenizer.save_pretrained(folder)


def test_z_is_one_over_the_tokens_that_can_be_written(folder, tmp_path):
    """Enumerated: two masked positions, nine words each."""
    save_causal_over_words(tmp_path / "gpt2")
    model = load_model(folder / "bert")
    energy = load_energy(f"coar:{tmp_path}/gpt2", model)
    words = range(len(SPECIAL), V)
    x0 = torch.tensor([[[7, a, 8, b] for a in words for b in words]])
    xt = torch.tensor([[7, V, 8, V]])
    with torch.no_grad():
        log_probs = model(xt)
        log_p = log_probs[0, x0[..., 1]] + log_probs[1, x0[..., 3]]
        value = (log_p - energy(x0, xt, torch.ones(1), log_p)).exp().sum()
    assert value.item() == pytest.approx(1, abs=1e-5) and len(WORDS) == 9


def test_the_command_line_takes_a_masked_model_for_a_denoiser(edlm, folder, tmp_path):  # noqa: F811
    done = edlm("sample", "--denoiser", folder / "bert", "--steps", 2, "--length", 5, "--num", 2)
    assert len(done.out.splitlines()) == 2 and "[" not in done.out
    done = edlm("sample", "--denoiser", f"mlm:{folder}/roberta", "--steps", 2, "--length", 5, "--json")
    assert len(json.loads(done.out)["samples"][0]["tokens"]) == 5
    assert_refused(edlm("sample", "--ar", folder / "bert"), "holds a model of type masked; --denoiser takes")
    assert "[CLS] [SEP]" in edlm("info", folder / "bert").out


def test_held_out_text_is_scored_without_marks_between_documents(edlm, folder, tmp_path):  # noqa: F811
    (tmp_path / "text.txt").write_text("the cat sat on a mat|the dogs ran|" * 40)
    words = ["--data", tmp_path / "text.txt", "--document-separator", "|", "--test", "50%", "--cache", tmp_path / "c"]
    done = edlm("evaluate", "likelihood", "--denoiser", folder / "bert", *words, "--json")
    report = json.loads(done.out)
    assert math.isfinite(report["bits"]) and report["data"]["special_tokens"] == "none"


# --- refusals


def edited_config(folder, target, **changes):
    config = json.loads((copy_folder(folder, target) / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}))
    return target


def test_folders_that_are_no_masked_model_are_refused(folder, tmp_path):
    nan = copy_folder(folder / "bert", tmp_path / "nan")
    weights = load_file(nan / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"][9, 0] = math.nan
    save_file(weights, nan / "model.safetensors", metadata={"format": "pt"})
    short = copy_folder(folder / "bert", tmp_path / "short")
    (short / "model.safetensors").write_bytes((short / "model.safetensors").read_bytes()[:-100])
    (copy_folder(folder / "bert", tmp_path / "pickle") / "model.safetensors").rename(tmp_path / "pickle" / "model.bin")
    edited_config(folder / "bert", tmp_path / "far", mask_token_id=99)
    edited_config(folder / "bert", tmp_path / "unnamed", architectures=None)
    save_causal(tmp_path / "gpt2", "gpt2", load_model(folder / "bert").tokenizer)
    for name, message in (
        ("nan", "is not a finite number everywhere; fetch the model again"),
        ("short", "cannot load"),
        ("pickle", "has no .safetensors file, and no other kind of weights is read"),
        ("far", "its mask is id 99, but it has only 14 rows"),
        ("unnamed", "holds a model of type 'bert'; known types are"),
        ("mlm:gpt2", "name a masked language model"),
        ("mlm:nowhere", "no model folder at"),
    ):
        prefix, _, rest = name.rpartition(":")
        with pytest.raises(UserError) as error:
            load_model(f"{prefix}{':' * bool(prefix)}{tmp_path}/{rest}")
        assert message in str(error.value) and "\n" not in str(error.value), name
    assert isinstance(load_model(f"mlm:{tmp_path}/unnamed"), MaskedLM)


def test_a_network_that_looks_left_only_is_refused(folder):
    tokenizer = load_model(folder / "bert").tokenizer
    with pytest.raises(UserError, match="gpt2 looks to the left only: it is no masked model"):
        MaskedLM(causal_model("gpt2", V), tokenizer, MASK, "gpt2", vocab_size=V)
    with pytest.raises(UserError, match="shifted output needs a token before the text"):
        network = load_model(folder / "bert").network
        MaskedLM(network, tokenizer, MASK, "bert", vocab_size=V, shifted=True)


def test_what_only_ours_can_do_refuses_it(folder):
    with pytest.raises(UserError, match="is a model from elsewhere; only a model of edlm will do here"):
        load_own(folder / "bert")
    with pytest.raises(UserError, match="holds a model of type masked"):
        load_named("", str(folder / "bert"))
