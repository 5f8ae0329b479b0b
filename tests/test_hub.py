"""The hub by name: its answer, its silence, its absence, and the local cache."""

import socket
import time

import pytest
from huggingface_hub import constants

from edlm.errors import UserError
from edlm.hub import fetch
from edlm.models.pretrained import find_folder
from test_cli import assert_refused, edlm  # noqa: F401

COMMIT = "0123456789" * 4


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def silent_hub(monkeypatch):
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.5)
        yield


def put_into(cache, name):
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "snapshots" / COMMIT / "config.json").write_text("{}")
    return folder / "snapshots" / COMMIT


def test_a_hub_that_stays_silent_is_given_up_in_time(cache, silent_hub):
    start = time.perf_counter()
    with pytest.raises(UserError, match=r"'some/model' is not in the local cache, and http://127.* does not answer"):
        fetch("some/model", ["*.json"])
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("name", ["gpt2", "some/model"])
def test_the_cache_serves_where_the_hub_does_not(cache, silent_hub, name):
    folder = put_into(cache, name)
    assert fetch(name, ["*.json"]) == folder == find_folder(name)


def test_a_mirror_is_asked_instead_of_the_hub(cache, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with pytest.raises(UserError, match=f"{address} does not answer"):
        fetch("gpt2", ["*.json"])


def test_offline_by_setting_nobody_is_asked(cache, monkeypatch, silent_hub):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    start = time.perf_counter()
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set; connect, or put the files into a folder"):
        fetch("some/model", ["*.json"])
    assert time.perf_counter() - start < 0.4


@pytest.mark.parametrize(
    ("denoiser", "missing"), [("kuleshov-group/mdlm-owt", "kuleshov-group/mdlm-owt"), ("text8-nano-denoiser", "gpt2")]
)
def test_without_the_hub_a_command_ends_at_once_with_one_line(cache, silent_hub, denoiser, missing, edlm):  # noqa: F811
    options = ["--energy", "ar:gpt2", "--steps", 256, "--candidates", 8, "--window", 0.2]
    start = time.perf_counter()
    done = edlm("sample", "--denoiser", denoiser, *options)
    assert time.perf_counter() - start < 10
    assert_refused(done, f"no model called {missing}: there is no such folder here", "does not answer", "; connect, or")


def test_names_that_cannot_be_on_the_hub_are_refused_without_asking(cache, silent_hub):
    start = time.perf_counter()
    for name in ("./nowhere", "a/b/c", "/nowhere", "no model", "..x"):
        with pytest.raises(UserError, match="no model"):
            find_folder(name)
    assert time.perf_counter() - start < 0.4
