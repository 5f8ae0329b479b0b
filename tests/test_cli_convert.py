"""edlm convert, and public checkpoints wherever the command line takes a model."""

import json
import os
import subprocess
import sys

import pytest
import torch

import edlm as library
from edlm.cli import main
from edlm.tokenization import train_bpe
from public_toys import L, V, public_weights, write_checkpoint, write_folder
from runs import ENV

TEXT = "it was the best of times, it was the worst of times, it was the age of wisdom. "


@pytest.fixture
def edlm(monkeypatch, capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["edlm", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    monkeypatch.delenv("EDLM_TRACEBACK", raising=False)
    return run


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A tokenizer in a folder of its own, and its number of tokens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = train_bpe([TEXT], 280)
    tokenizer.save(folder)
    return folder, tokenizer.vocab_size


@pytest.fixture
def file(tmp_path, bpe):
    weights, average = (public_weights(tokens=bpe[1], seed=seed) for seed in (0, 1))
    return write_checkpoint(tmp_path / "m.ckpt", weights, average)


def assert_refused(done, *phrases):
    code, out, err = done
    assert code == 2 and not out and err.count("\n") == 1 and err.startswith("edlm: "), done
    assert all(phrase in err for phrase in phrases), err


def test_help_is_quick_and_loads_no_torch():
    code = """
import sys
from edlm.cli import main
sys.argv = ["edlm", "convert", "--help"]
try:
    main()
finally:
    sys.exit(bool({"torch", "transformers"} & sys.modules.keys()))
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=ENV, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0 and usage.ru_utime + usage.ru_stime < 0.6


def test_a_converted_folder_is_the_model_that_the_file_is(edlm, file, bpe, tmp_path):
    code, out, _ = edlm("convert", file, tmp_path / "out", "--tokenizer", bpe[0], "--json")
    facts = json.loads(out)
    assert code == 0 and facts["weights"] == "moving average" and facts["from"] == "MDLM" and facts["length"] == L
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    direct, again = library.load(file), library.load(tmp_path / "out")
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in direct.state_dict().items())
    assert facts["parameters"] == sum(p.numel() for p in again.parameters())


def test_raw_weights_are_other_weights(edlm, file, tmp_path):
    for name, flags in (("average", []), ("raw", ["--raw-weights"])):
        code, out, _ = edlm("convert", file, tmp_path / name, "--tokenizer", "none", *flags)
        assert code == 0 and ("moving average" in out) == (name == "average")
    heads = [library.load(tmp_path / name).transformer.head.weight for name in ("average", "raw")]
    assert not torch.equal(*heads)


def test_a_folder_converts_with_the_tokenizer_beside_it_and_samples(edlm, bpe, tmp_path):
    folder = write_folder(tmp_path / "public", public_weights(tokens=bpe[1]), vocab_size=bpe[1] + 1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((bpe[0] / name).read_bytes())
    code, out, _ = edlm("convert", folder, tmp_path / "out")
    assert code == 0 and "per token" in out
    sampled = [edlm("sample", "--denoiser", path, "--steps", 4, "--json") for path in (folder, tmp_path / "out")]
    one, two = (json.loads(out)["samples"] for _, out, _ in sampled)
    assert [s["tokens"] for s in one] == [s["tokens"] for s in two] and len(one[0]["tokens"]) == L


def test_public_checkpoints_serve_directly_as_model_and_as_energy(edlm, file, bpe, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((bpe[0] / name).read_bytes())
    (tmp_path / "text.txt").write_text(TEXT * 40)
    ar = write_checkpoint(tmp_path / "ar.ckpt", public_weights(causal=True, tokens=bpe[1]))
    code, out, err = edlm("sample", "--denoiser", file, "--energy", f"ar:{ar}", "--steps", 2, "--prompt", "it was")
    assert code == 0 and out.startswith("it was"), err
    text = ["--data", tmp_path / "text.txt", "--split", "train", "--max-blocks", 4, "--cache", tmp_path / "cache"]
    for flag, path in (("--denoiser", file), ("--ar", ar)):
        code, out, err = edlm("evaluate", "likelihood", flag, path, *text, "--json")
        assert code == 0 and json.loads(out)["bits"] > 0, err
    code, out, _ = edlm("info", ar)
    assert code == 0 and "edlm-autoregressive" in out


def test_a_model_for_which_no_tokenizer_is_found_is_refused_with_both_ways_out(edlm, file, tmp_path):
    done = edlm("convert", file, tmp_path / "out")
    assert_refused(done, "has no tokenizer beside it", "name it with --tokenizer FOLDER", "with --tokenizer none")
    assert not (tmp_path / "out").exists()


def test_offline_the_default_tokenizer_is_refused_at_once(edlm, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = write_folder(tmp_path / "owt", public_weights(tokens=50_257), vocab_size=50_258)
    done = edlm("convert", folder, tmp_path / "out")
    assert_refused(done, "GPT-2's could not be had from the hub; name it with --tokenizer FOLDER, or convert without")
    code, out, _ = edlm("convert", folder, tmp_path / "out", "--tokenizer", "none")
    assert code == 0 and "50257" in out


def test_a_tokenizer_that_does_not_fit_is_refused(edlm, bpe, tmp_path):
    done = edlm("convert", write_folder(tmp_path / "m"), tmp_path / "out", "--tokenizer", bpe[0])
    assert_refused(done, f"has {bpe[1]} tokens but the model {V}")
    done = edlm("convert", tmp_path / "m", tmp_path / "out", "--tokenizer", tmp_path / "nothing.json")
    assert_refused(done, "nothing.json' does not exist")


def test_nothing_is_replaced_and_nothing_is_left_of_a_conversion_that_failed(edlm, file, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    assert_refused(edlm("convert", file, kept, "--tokenizer", "none"), "is not empty; choose another folder")
    assert_refused(edlm("convert", file, file, "--tokenizer", "none"), "is a file; choose a folder")
    file.write_bytes(file.read_bytes()[:5000])
    assert_refused(edlm("convert", file, tmp_path / "out", "--tokenizer", "none"), "is truncated, damaged")
    assert {p.name for p in tmp_path.iterdir()} == {"kept", "m.ckpt"} and [p.name for p in kept.iterdir()] == [
        "notes.txt"
    ]


def test_a_disk_that_fails_while_writing_leaves_nothing(edlm, file, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edlm.models.pretrained.save_file", full)
    assert_refused(edlm("convert", file, tmp_path / "out", "--tokenizer", "none"), "the disk is full")
    assert {p.name for p in tmp_path.iterdir()} == {"m.ckpt"}


def test_what_is_no_public_model_is_refused(edlm, tmp_path):
    library.load("text8-nano-ar").save_pretrained(tmp_path / "ours")
    done = edlm("convert", tmp_path / "ours", tmp_path / "out")
    assert_refused(done, "holds a model of type 'edlm-autoregressive', expected 'mdlm'")
    assert_refused(edlm("convert", tmp_path / "no.ckpt", tmp_path / "out"), "there is no checkpoint file")
    ar = write_checkpoint(tmp_path / "ar.ckpt", public_weights(causal=True))
    assert_refused(edlm("sample", "--denoiser", ar), "holds a model of type edlm-autoregressive")
