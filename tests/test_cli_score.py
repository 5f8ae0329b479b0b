"""`edlm score`: texts from arguments, a file or standard input; a table or JSON; what it refuses."""

import io
import json

import pytest

import edlm as library
from test_cli import assert_refused, edlm, home, one_thread, succeed  # noqa: F401


@pytest.fixture
def score(edlm, home):  # noqa: F811
    return lambda *words: edlm("score", *words, "--ar", home / "ar")


def scores(done):
    return json.loads(succeed(done))["scores"]


def test_a_table_shows_text_nats_error_and_bits(score):
    lines = succeed(score("the people", "of")).splitlines()
    assert lines[0].split() == ["nats", "±", "tokens", "bits/token", "text"]
    assert lines[1].endswith("  the people") and lines[2].split()[1:3] == ["0.000", "2"]
    assert lines[3] == "exact NLL, certified protocol"


def test_arguments_a_file_and_standard_input_give_the_same(score, tmp_path, monkeypatch):
    named = scores(score("the people", "of", "--given", "in ", "--json"))
    (tmp_path / "texts.txt").write_text("the people\n\nof\n")
    assert scores(score("--file", tmp_path / "texts.txt", "--given", "in ", "--json")) == named
    items = [{"text": "the people", "given": "in "}, {"text": "of"}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, items)))
    from_json = scores(score("--file", tmp_path / "texts.jsonl", "--json"))
    assert from_json[0] == named[0] and from_json[1]["given"] == ""
    monkeypatch.setattr("sys.stdin", io.StringIO("the people\nof\n"))
    assert scores(score("--given", "in ", "--json")) == named


def test_a_bound_with_an_energy_says_whose_it_is(edlm, home):  # noqa: F811
    options = ["--energy", f"ar:{home / 'ar'}", "--steps", 4, "--candidates", 3, "--window", 0.5, "--num-draws", 8]
    done = edlm("score", "the people", "--given", "in ", "--denoiser", home / "denoiser", *options, "--json")
    result = json.loads(succeed(done))
    (found,) = result["scores"]
    assert found["quantity"] == "upper bound of the sampler, T = 4, k = 3, w = 0.5" and found["standard_error"] > 0
    assert result["settings"]["num_draws"] == 8 and result["settings"]["steps"] == 4
    settings = {"steps": 4, "candidates": 3, "window": 0.5, "num_draws": 8, "energy": f"ar:{home / 'ar'}"}
    (same,) = library.score(home / "denoiser", "the people", given="in ", **settings)
    assert found["nats"] == pytest.approx(same.nats) and found["log_likelihood"] == -found["nats"]


def test_a_long_text_needs_windows(score):
    assert_refused(score("the people of the united states"), "31 tokens", "overlap 8")
    assert "31" in succeed(score("the people of the united states", "--overlap", 8))


def test_normalise_maps_the_text_first(score):
    assert_refused(score("The people"), "text 1 has 'T'", "normalise")
    assert scores(score("The people!", "--normalise", "--json")) == scores(score("the people", "--json"))


def test_mistakes_are_one_line(score, edlm, home, tmp_path, monkeypatch):  # noqa: F811
    assert_refused(edlm("score", "a"), "name one model")
    assert_refused(score("a", "--energy", "ar:x"), "an energy corrects a denoiser")
    assert_refused(score("a", "--file", tmp_path / "x"), "not both")
    assert_refused(score("--file", tmp_path / "none.txt"), "none.txt", "No such file")
    assert_refused(score("a", "--num-draws", 0), "num-draws must be at least 1")
    for name, content, message in (
        ("a.jsonl", '{"txt": 1}', "object with a text"),
        ("b.jsonl", "{", "line 1 is not valid JSON"),
        ("c.jsonl", '{"text": "a", "given": 1}', "given must be a text"),
        ("d.txt", " \n", "holds no text"),
    ):
        (tmp_path / name).write_text(content)
        assert_refused(score("--file", tmp_path / name), message)
    (tmp_path / "e.txt").write_bytes(b"\xff\xfe")
    assert_refused(score("--file", tmp_path / "e.txt"), "not UTF-8")
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert_refused(score(), "no text to score")
