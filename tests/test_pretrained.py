import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.load import load_model
from edlm.randomness import make_generator
from toys import tiny_autoregressive, tiny_denoiser

X = torch.randint(28, (2, 16), generator=make_generator(0))


@pytest.fixture
def folder(tmp_path):
    tiny_denoiser().save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config["transformer"].update(changes.pop("transformer", {}))
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_reload_gives_bit_equal_output_and_the_tokenizer(folder):
    model, again = tiny_denoiser(), Denoiser.from_pretrained(folder)
    assert torch.equal(model(X), again(X)) and not again.training
    assert again.tokenizer.decode(again.tokenizer.encode("abc z")) == "abc z"


@pytest.mark.parametrize("make", [tiny_denoiser, tiny_autoregressive])
def test_any_model_is_loaded_by_what_its_config_says(make, tmp_path):
    make(dropout=0.25).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert type(model) is type(make()) and model.config.transformer.dropout == 0.25


def test_a_time_conditioned_model_survives_the_trip(tmp_path):
    model = tiny_denoiser(time_conditioning=True)
    model.save_pretrained(tmp_path)
    t = torch.tensor([0.2, 0.7])
    assert torch.equal(model(X, t), Denoiser.from_pretrained(tmp_path)(X, t))


def test_nothing_on_disk_is_a_pickle(folder):
    assert {p.name for p in folder.iterdir()} <= {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md",
    }  # fmt: skip


def test_a_hub_repository_holds_the_same_files(folder, monkeypatch):
    """push_to_hub uploads what save_pretrained writes; from_pretrained asks the hub by name."""
    uploaded = {}

    class Api:
        def __init__(self, **_): ...

        def create_repo(self, repo_id, **_):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, folder_path, **_):
            uploaded.update({p.name: p.read_bytes() for p in folder_path.iterdir()})

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    tiny_denoiser().push_to_hub("someone/tiny")
    assert uploaded["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr("edlm.models.pretrained.fetch", lambda name, patterns, **_: folder)
    assert torch.equal(Denoiser.from_pretrained("someone/tiny")(X), tiny_denoiser()(X))


def refused(folder, message, cls=Denoiser):
    with pytest.raises(UserError, match=message):
        cls.from_pretrained(folder)


def test_unknown_config_keys_are_refused_not_dropped(folder):
    edit_config(folder, transformer={"num_layer": 2})
    refused(folder, "unknown key 'num_layer'; did you mean 'num_layers'?")


def test_missing_config_keys_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["transformer"]["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "key 'vocab_size' is missing")


def test_wrong_types_in_the_config_are_refused(folder):
    edit_config(folder, transformer={"width": "32"})
    refused(folder, "transformer.width must be of type int, got '32'")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "\x00"])
def test_a_damaged_config_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    refused(folder, "config.json")


def test_missing_and_unknown_weights_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    removed = weights.pop("transformer.norm.weight")
    save_file(weights, folder / "model.safetensors")
    refused(folder, "lacks 1 weights of this model, transformer.norm.weight first")
    save_file(weights | {"transformer.norm.weight": removed, "extra": removed.clone()}, folder / "model.safetensors")
    refused(folder, "has 1 weights this model lacks, extra first")


def test_weights_of_another_shape_are_refused(folder):
    edit_config(folder, transformer={"width": 64})
    refused(folder, "config and weights do not belong together")


@pytest.mark.parametrize("size", [0, 7, 100, 20_000])
def test_truncated_weights_are_refused(folder, size):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:size])
    refused(folder, "model.safetensors is damaged or truncated")


def test_a_tokenizer_of_another_vocabulary_is_refused(folder, tmp_path):
    model = tiny_denoiser(vocab_size=30)
    model.save_pretrained(tmp_path / "other")
    refused(tmp_path / "other", "the tokenizer has 27 tokens but the model 30")


def test_the_wrong_kind_of_model_is_refused(folder):
    refused(folder, "holds a model of type 'edlm-denoiser', expected 'edlm-autoregressive'", Autoregressive)


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    refused(tmp_path, "has no config.json")
    refused(tmp_path / "nothing", "no model folder at")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="model of type 'bert'; known types are"):
        load_model(tmp_path)


def test_offline_the_hub_is_refused_at_once(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("someone/some-model", "'someone/some-model' is not in the local cache, and HF_HUB_OFFLINE is set; connect")
