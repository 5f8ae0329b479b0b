"""The built-in models, storage in fewer bits, and the export of a run to a folder with a model card."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import edlm
from edlm.data.config import DataConfig
from edlm.data.record import portable_data, portable_name, portable_source, trained_on
from edlm.energy_spec import load_energy
from edlm.errors import UserError
from edlm.generation import generate
from edlm.likelihood import autoregressive_nll, denoiser_nelbo
from edlm.models.autoregressive import Autoregressive
from edlm.models.builtin import FOLDER, builtin_names
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.models.load import load_model
from edlm.models.precision import round_weights, rounded
from edlm.models.pretrained import find_folder
from edlm.sample_config import SampleConfig
from runs import ENV, TINY, train
from toys import tiny_autoregressive, tiny_denoiser

ROOT = Path(__file__).parents[1]
KINDS = {"denoiser": Denoiser, "ar": Autoregressive, "oracle": Autoregressive, "energy": EnergyNetwork}
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "run.yaml"}
PATH = re.compile(r"(?<![\w/.<*])(~|[A-Za-z]:\\|/)[\w.-]+[/\\]|/(home|root|tmp|work|mnt|Users|var|data)\b")
X = torch.randint(28, (2, 16), generator=torch.Generator().manual_seed(0))


def edlm_command(*words, cwd=None):
    command = [sys.executable, "-m", "edlm", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=ENV, cwd=cwd, timeout=300)


# --- what is in the box


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text8-nano-energy", "text8-nano-step-energy"])
def test_the_recipe_of_a_built_in_energy_can_be_given_back(name, tmp_path):
    (tmp_path / "text.txt").write_text("the people of the united states " * 200)
    command = [sys.executable, "-m", "edlm", "train", "energy", "--config", FOLDER / name / "run.yaml"]
    command += ["--data.source", tmp_path / "text.txt", "--data.validation", "10%", "--data.test", "10%"]
    command += ["--data.cache", tmp_path, "--run.out", tmp_path / "run"]
    command += ["--run.steps", 1, "--run.batch-size", 1, "--run.eval-every", 0, "--run.save-every", 1]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_models_that_samplers_need_are_there():
    assert {"text8-nano-ar", "text8-nano-denoiser", "text8-nano-oracle"} <= set(builtin_names())


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_model_loads_by_name_and_is_whole(name):
    model = edlm.load(name)
    assert type(model) is KINDS[name.rpartition("-")[2]] and model.tokenizer.unit == "character"
    assert {p.dtype for p in model.parameters()} == {torch.float32} and not model.training
    assert {t.dtype for t in load_file(FOLDER / name / "model.safetensors").values()} == {torch.float16}
    assert {path.name for path in (FOLDER / name).iterdir()} == FILES


def test_builtin_models_write_text_with_an_energy_and_score_it():
    denoiser = edlm.load("text8-nano-denoiser")
    specs = ["ar:text8-nano-ar", "coar:text8-nano-ar"]
    specs += ["nce:text8-nano-energy"] if "text8-nano-energy" in builtin_names() else []
    specs += ["step:text8-nano-step-energy"] if "text8-nano-step-energy" in builtin_names() else []
    for spec in specs:
        config = SampleConfig(steps=4, candidates=2, length=32)
        sample = next(iter(generate(denoiser, 1, config, energy=load_energy(spec, denoiser))))
        assert len(sample.text) == 32 and sample.energy_evaluations > 0
    x0 = torch.tensor([sample.tokens])
    assert denoiser_nelbo(denoiser, x0, range(1), seed=0, steps=None).item() > 0
    assert autoregressive_nll(edlm.load("text8-nano-oracle"), x0).item() > 0


def test_builtin_models_know_more_about_english_than_about_noise():
    text, noise = "the history of the united states", "zqj xkvwq pzzr jjqk wvx kqzj xqp"
    for name in ("text8-nano-ar", "text8-nano-oracle"):
        model = edlm.load(name)
        x0 = torch.tensor([model.tokenizer.encode(words).astype("int64").tolist() for words in (text, noise)])
        likely, unlikely = autoregressive_nll(model, x0).tolist()
        assert likely < 0.5 * unlikely


def test_the_oracle_is_another_model_than_the_energy():
    energy, oracle = (load_file(FOLDER / f"text8-nano-{name}" / "model.safetensors") for name in ("ar", "oracle"))
    assert not torch.equal(energy["transformer.head.weight"], oracle["transformer.head.weight"])


def test_all_weights_together_stay_below_40_megabytes():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 40e6


def test_the_package_takes_the_weights_along():
    """What is under the package is in the wheel, and `artifacts` keeps it there if a file of that kind is ignored."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["packages"] == ["src/edlm"] and build["artifacts"] == ["src/edlm/weights/**"]
    assert FOLDER.parent.name == "edlm" and not list(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("name", builtin_names())
def test_cards_and_recipes_state_the_facts_and_no_path(name):
    card, recipe = (FOLDER / name / "README.md").read_text(), (FOLDER / name / "run.yaml").read_text()
    record = yaml.safe_load(recipe)["record"]
    facts = [name, "text8", "62,000,000", "5,000,000", f"{record['steps']:,}", f"{record['tokens_seen']:,}"]
    facts += [f"{record['parameters']:,}", f'edlm.load("{name}")', f"{record['measured']['num_blocks']:,} blocks", "±"]
    facts += ["float16", "Apache 2.0", "CC BY-SA", "not like for like", record["splits"]["test"]["tokens_sha256"]]
    assert [fact for fact in facts if fact not in card] == []
    assert not PATH.search(card) and not PATH.search(recipe)
    assert abs(record["measured"]["rounding_cost"]) <= 0.002


def test_the_table_of_the_documentation_is_that_of_the_records(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    export_weights = importlib.import_module("export_weights")
    assert export_weights.table() in (ROOT / "docs" / "weights.md").read_text()


# --- names


def test_importing_edlm_does_not_load_torch():
    code = "import sys, edlm; edlm.load; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENV).returncode == 0


def test_a_local_folder_goes_before_a_builtin_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_folder("text8-nano-ar") == FOLDER / "text8-nano-ar"
    tiny_autoregressive().save_pretrained(tmp_path / "text8-nano-ar")
    assert edlm.load("text8-nano-ar").config == tiny_autoregressive().config


def test_an_unknown_name_lists_the_builtin_ones():
    for name in ("text8-nano-dnoiser", "no model", "..x"):
        with pytest.raises(UserError, match=f"no model called {name}: .*built-in are text8-nano-ar, text8-nano"):
            edlm.load(name)


def test_data_of_a_builtin_model_is_asked_for_or_recognised_by_its_name(tmp_path, monkeypatch):
    from edlm.evaluator import HeldOut, data_of

    monkeypatch.chdir(tmp_path)
    folder = find_folder("text8-nano-denoiser")
    with pytest.raises(
        UserError, match=r"text8-72M\.txt\.xz, which is not in this folder; name the file with --data text8:"
    ):
        data_of(folder, HeldOut())
    source = f"text8:{tmp_path}/text8-72M.txt.xz"
    assert data_of(folder, HeldOut(data=source)).source == source


# --- fewer bits


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32"])
def test_rounded_weights_survive_the_trip_bit_for_bit_and_load_as_float32(precision, tmp_path):
    model = tiny_denoiser()
    model.save_folder(tmp_path, rounded(model.state_dict(), precision))
    round_weights(model, precision)
    again = load_model(tmp_path)
    assert torch.equal(model(X), again(X)) and next(again.parameters()).dtype == torch.float32
    stored = load_file(tmp_path / "model.safetensors")["transformer.head.weight"]
    assert str(stored.dtype) == f"torch.{precision}"


def test_weights_that_overflow_are_refused_not_clipped():
    with pytest.raises(
        UserError, match="w has a weight of size 70000, which float16 cannot hold; store it as bfloat16"
    ):
        rounded({"w": torch.tensor([1.0, -70000.0])}, "float16")
    assert rounded({"w": torch.tensor([70000.0])}, "bfloat16")["w"].isfinite().all()
    with pytest.raises(UserError, match="cannot hold; train it again"):
        rounded({"w": torch.tensor([float("nan")])}, "float32")
    with pytest.raises(UserError, match="unknown precision 'int8'; choose float32, float16, bfloat16"):
        rounded({}, "int8")


# --- no paths


@pytest.mark.parametrize("text", ["text8:/some/where/text8", "`/a/b`", "out: ~/runs/x", r"C:\me\x", "in /work"])
def test_what_counts_as_a_path_here(text):
    assert PATH.search(text) and not PATH.search("https://a.b/c 90M/5M/5M out: runs/x text8:text8.xz and/or")


@pytest.mark.parametrize(
    ("spec", "portable"),
    [
        ("text8:/some/where/text8-72M.txt.xz", "text8:text8-72M.txt.xz"),
        ("text8", "text8"),
        ("/home/me/my.txt", "my.txt"),
        ("~/texts/", "texts"),
        (r"C:\me\my.txt", "my.txt"),
        ("zeroshot:lambada:/x/lambada.jsonl", "zeroshot:lambada:lambada.jsonl"),
        ("hub:owner/name:config@train", "hub:owner/name:config@train"),
        ("5M characters", "5M characters"),
        ("-", "-"),
        ("", ""),
    ],
)
def test_sources_lose_their_folders_and_nothing_else(spec, portable):
    assert portable_source(spec) == portable


def test_models_lose_their_folders_and_hub_names_stay(tmp_path):
    assert portable_name(f"ar:{tmp_path}/text8-ar") == "ar:text8-ar"
    assert portable_name("owner/name") == "owner/name" and portable_name("/a/b/") == "b" and portable_name("") == ""


def test_all_settings_of_the_data_lose_their_folders():
    data = DataConfig(source="/a/b.txt", validation="/a/v.txt", test="5%", tokenizer="/a/tokenizer", cache="/a/cache")
    assert not PATH.search(str(portable_data(data))) and "'v.txt'" in str(portable_data(data))


# --- export


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory):
    """A tiny denoiser run and the folder that the command made of it."""
    run, _ = finished
    out = tmp_path_factory.mktemp("exported") / "my-denoiser"
    done = edlm_command("export", run, out, "--max-blocks", 8, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    return run, out, json.loads(done.stdout)


@pytest.mark.slow
def test_an_exported_run_loads_and_its_card_states_what_was_measured(exported):
    run, out, record = exported
    trained, stored = load_model(run), load_model(out)
    round_weights(trained, "float16")
    assert torch.equal(trained(X), stored(X)) and record["steps"] == 40
    card = (out / "README.md").read_text()
    assert f"{record['measured']['bits']:.4f} ± " in card and "upper bound (NELBO), continuous time" in card
    assert "8 blocks of 32" in card and f"{40 * 8 * 32:,} characters" in card
    assert {path.name for path in out.iterdir()} == FILES
    for path in ("README.md", "run.yaml", "config.json"):
        text = (out / path).read_text()
        assert not PATH.search(text) and str(run.parent) not in text and str(out.parent) not in text


@pytest.mark.slow
def test_an_exported_model_is_measured_on_the_split_of_its_training(exported, corpus):
    _, out, record = exported
    assert trained_on(out).source == "train.txt" and trained_on(out).test == "5%"
    flags = ["--data", corpus["data.source"], "--cache", corpus["data.cache"], "--max-blocks", 8, "--json"]
    done = edlm_command("evaluate", "likelihood", "--denoiser", out, *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bits"] == record["measured"]["bits"]
    done = edlm_command("evaluate", "likelihood", "--denoiser", out, cwd=out.parent)
    assert done.returncode == 2 and "name the file with --data PATH" in done.stderr


@pytest.mark.slow
def test_an_export_is_replaced_by_the_next_and_nothing_else_is(exported, tmp_path):
    run, out, _ = exported
    again = edlm_command("export", run, out, "--max-blocks", 4, "--precision", "float32")
    assert again.returncode == 0 and "4 blocks" in (out / "README.md").read_text(), again.stderr
    (tmp_path / "mine.txt").write_text("precious")
    refused = edlm_command("export", run, tmp_path, "--max-blocks", 4)
    assert refused.returncode == 2 and "holds something else than an exported model" in refused.stderr
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.slow
def test_an_energy_is_exported_with_its_accuracy_by_time(finished, corpus, tmp_path):
    run, _ = finished
    settings = {key: TINY[key] for key in ("run.batch-size", "run.eval-every", "run.eval-blocks", "optim.warmup-steps")}
    train("energy", tmp_path / "energy", settings | {"denoiser": run, "run.steps": 4, "run.eval-every": 2})
    out = tmp_path / "my-energy"
    done = edlm_command("export", tmp_path / "energy", out, "--max-blocks", 32)
    assert done.returncode == 0, done.stderr[-3000:]
    card, recipe = (out / "README.md").read_text(), (out / "run.yaml").read_text()
    assert "| 0.0 to 0.2 |" in card and "accuracy" in card and "binary NCE loss" in card
    assert not PATH.search(card + recipe) and str(tmp_path) not in card + recipe
    assert isinstance(load_model(out), EnergyNetwork)


def test_a_model_without_a_record_is_refused(tmp_path):
    tiny_denoiser().save_pretrained(tmp_path / "model")
    done = edlm_command("export", tmp_path / "model", tmp_path / "out", "--data", "my.txt")
    assert done.returncode == 2 and "has no run.yaml" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("text", ["[1]", "{", "record: {steps: x}\n", "record: {steps: 3}\nmodel: 7\n"])
def test_a_damaged_record_is_refused(text, tmp_path):
    from edlm.training.record import read_record

    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UserError, match=r"run\.yaml"):
        read_record(tmp_path, 16)


@pytest.mark.slow
def test_the_quickstart_shows_texts_figures_and_a_plot(tmp_path):
    script = ROOT / "examples" / "quickstart.py"
    flags = ["--out", str(tmp_path), "--num", "2", "--steps", "1,2", "--candidates", "2"]
    done = subprocess.run([sys.executable, str(script), *flags], capture_output=True, text=True, env=ENV, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for words in ("MDLM, 1 steps: perplexity", "EDLM-AR, k=2, w=1, 2 steps", "EDLM-coAR, k=2, w=1, 1 steps", "entropy",
                  "EDLM-AR smc=1 lookahead=1.5, k=2, w=1, 1 steps"):  # fmt: skip
        assert words in done.stdout
    assert (tmp_path / "frontier.png").is_file() and str(tmp_path / "frontier.png") in done.stdout
