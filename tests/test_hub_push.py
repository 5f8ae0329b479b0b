"""What leaves this machine when a model is saved or pushed: which files, with which card, and no path in them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import edlm
from edlm.data.config import DataConfig
from edlm.models.energy_network import energy_from_denoiser
from edlm.models.load import load_model
from edlm.training.card import licence_of
from edlm.training.config import EnergyTrainConfig, ModelConfig, RunConfig, TrainConfig
from edlm.training.trainer import write_run
from test_cli import assert_refused, one_thread, succeed  # noqa: F401
from test_cli import edlm as command  # noqa: F401
from test_weights import ENV, FILES, PATH
from toys import tiny_autoregressive, tiny_denoiser

KINDS = {
    "denoiser": tiny_denoiser,
    "ar": tiny_autoregressive,
    "energy": lambda: energy_from_denoiser(tiny_denoiser()),
}


@pytest.fixture
def hub(monkeypatch):
    """A hub that keeps what is uploaded: {repository: {file: bytes}}, and how each was made."""
    files, options = {}, {}

    class Api:
        def __init__(self, **_): ...

        def create_repo(self, repo_id, **settings):
            options[repo_id] = settings
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, *, repo_id, folder_path, **_):
            files[repo_id] = {p.name: p.read_bytes() for p in Path(folder_path).iterdir()}
            return f"https://huggingface.co/{repo_id}"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "a token")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return type("Hub", (), {"files": files, "options": options})


def make_run(kind, folder):
    """The folder that a training run leaves, with paths of this machine in its record."""
    folder.mkdir(parents=True)
    model = KINDS[kind]()
    model.save_folder(folder, model.state_dict())
    data = DataConfig(source=f"{folder}/secret.txt", test="5%", cache=str(folder / "cache"), tokenizer=str(folder))
    run = RunConfig(out=str(folder), steps=30, batch_size=4)
    if kind == "energy":
        write_run(folder, EnergyTrainConfig(denoiser=f"{folder.parent}/my-denoiser", data=data, run=run))
    else:
        write_run(folder, TrainConfig(data=data, model=ModelConfig(init=f"{folder.parent}/start"), run=run))
    return folder


def texts(files):
    return {name: content.decode() for name, content in files.items() if not name.endswith(".safetensors")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_pushed_with_a_card_from_its_record_and_without_paths(kind, hub, tmp_path):
    run = make_run(kind, tmp_path / "runs" / "mine")
    edlm.load(run).push_to_hub("someone/tiny", licence="mit")
    files = hub.files["someone/tiny"]
    assert files.keys() == FILES
    for name, text in texts(files).items():
        assert str(tmp_path) not in text and str(Path.home()) not in text, name
        assert name == "tokenizer.json" or not PATH.search(text), name
    card, recipe = files["README.md"].decode(), yaml.safe_load(files["run.yaml"])
    assert card.startswith("---\nlicense: mit\n") and "# someone/tiny" in card and 'edlm.load("someone/tiny")' in card
    assert "| steps | 30, each of 4 sequences |" in card and f"{30 * 4 * 16:,} characters" in card
    assert "`secret.txt`" in card and "nothing yet" in card
    assert recipe["record"]["steps"] == 30 and recipe["run"]["out"] == "runs/tiny" and recipe["data"]["cache"] == ""


def test_an_exported_model_is_pushed_as_it_is_stored(hub):
    edlm.load("text8-nano-denoiser").push_to_hub("someone/text8", private=True)
    files, folder = hub.files["someone/text8"], load_model("text8-nano-denoiser").folder
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()  # float16, bit for bit
    assert hub.options["someone/text8"]["private"] is True
    own, pushed = yaml.safe_load((folder / "run.yaml").read_text()), yaml.safe_load(files["run.yaml"])
    assert pushed["record"] == own["record"] and pushed["data"] == pushed["data"] | own["data"]
    card = (folder / "README.md").read_text().replace('"text8-nano-denoiser"', '"someone/text8"')
    card = card.replace("# text8-nano-denoiser", "# someone/text8")
    assert files["README.md"].decode() == card.replace("--denoiser text8-nano-denoiser", "--denoiser someone/text8")


def test_what_was_pushed_can_be_pulled_and_passed_on(hub, tmp_path, monkeypatch):
    run = make_run("denoiser", tmp_path / "mine")
    edlm.load(run).push_to_hub("someone/tiny", licence="mit")
    for name, content in hub.files["someone/tiny"].items():
        (tmp_path / "snapshot" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "snapshot" / name).write_bytes(content)
    monkeypatch.setattr("edlm.models.pretrained.fetch", lambda name, patterns, **_: tmp_path / "snapshot")
    pulled = edlm.load("someone/tiny")
    x = torch.randint(28, (2, 16))
    assert torch.equal(pulled(x), edlm.load(run)(x))
    pulled.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "run.yaml").is_file() and licence_of(tmp_path / "again") == "mit"


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_record_has_a_card_that_claims_none(kind, hub, tmp_path):
    KINDS[kind]().push_to_hub("someone/new")
    card = hub.files["someone/new"]["README.md"].decode()
    assert "run.yaml" not in hub.files["someone/new"] and "run.yaml" not in card and "licen" not in card.lower()
    assert 'edlm.load("someone/new")' in card and "parameters" in card and "steps |" not in card


def test_changed_weights_lose_the_record(tmp_path):
    model = edlm.load(make_run("denoiser", tmp_path / "mine"))
    with torch.no_grad():
        model.transformer.embedding.weight.add_(1)
    model.save_pretrained(tmp_path / "changed")
    assert not (tmp_path / "changed" / "run.yaml").exists()
    assert "30, each of" not in (tmp_path / "changed" / "README.md").read_text()


def test_a_model_may_be_saved_where_it_was_loaded_from(tmp_path):
    run = make_run("ar", tmp_path / "mine")
    before = load_file(run / "model.safetensors")["transformer.head.weight"].clone()
    edlm.load(run).save_pretrained(run)
    assert torch.equal(load_file(run / "model.safetensors")["transformer.head.weight"], before)
    assert str(tmp_path) not in (run / "run.yaml").read_text()


# --- the command


def test_the_command_pushes_and_prints_where(command, hub, tmp_path):  # noqa: F811
    run = make_run("denoiser", tmp_path / "mine")
    assert "huggingface.co/someone/tiny" in succeed(command("push", run, "someone/tiny", "--private"))
    assert hub.files["someone/tiny"].keys() == FILES and hub.options["someone/tiny"]["private"] is True


def test_the_command_refuses_at_once(command, hub, monkeypatch, tmp_path):  # noqa: F811
    assert_refused(command("push", tmp_path, "tiny"), "OWNER/NAME")
    assert_refused(command("push", tmp_path / "none", "a/b"), "there is no folder", "text8-nano-ar")
    assert_refused(command("push", tmp_path, "a/b"), "is not a model folder")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert_refused(command("push", "text8-nano-ar", "a/b"), "the hub wants a token", "hf auth login")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_refused(command("push", "text8-nano-ar", "a/b"), "HF_HUB_OFFLINE is set")


def test_without_a_network_the_command_says_so(tmp_path):
    env = ENV | {"HF_TOKEN": "no-token", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    words = [sys.executable, "-m", "edlm", "push", "text8-nano-ar", "someone/tiny"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and re.match("edlm: someone/tiny could not be pushed: .*network", done.stderr), done
    assert len(done.stderr.splitlines()) == 1 and json.dumps(done.stdout) == '""'
