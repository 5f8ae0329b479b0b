"""Energies, holes, traces and benchmarks from the command line."""

import json

import pytest

from edlm.models.energy_network import energy_from_denoiser
from test_cli import assert_refused, edlm, one_thread  # noqa: F401
from toys import tiny_autoregressive, tiny_denoiser


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_denoiser().save_pretrained(folder / "denoiser")
    tiny_autoregressive().save_pretrained(folder / "ar")
    energy_from_denoiser(tiny_denoiser()).save_pretrained(folder / "nce")
    energy_from_denoiser(tiny_denoiser(), target="step").save_pretrained(folder / "step")
    return folder


@pytest.mark.parametrize(
    "energy", ["ar:{}/ar", "coar:{}/ar", "nce:{}/nce", "step:{}/step", "ar:{0}/ar + 0.5*nce:{0}/nce"]
)
def test_sampling_with_an_energy_says_what_it_cost(edlm, models, energy):  # noqa: F811
    words = ["--steps", 4, "--candidates", 3, "--window", 0.5, "--num", 2, "--json"]
    done = edlm("sample", "--denoiser", models / "denoiser", "--energy", energy.format(models), *words)
    report = json.loads(done.out)
    assert report["settings"]["energy"] == energy.format(models) and not report["settings"]["tempered"]
    for sample in report["samples"]:
        assert 0 < sample["energy_evaluations"] <= 3 * 3 * (1 + ("+" in energy)) and sample["denoiser_evaluations"] <= 4


def test_tempered_weights_are_marked(edlm, models):  # noqa: F811
    words = ["--energy", f"ar:{models}/ar", "--weight-temperature", 2, "--steps", 2, "--json"]
    assert json.loads(edlm("sample", "--denoiser", models / "denoiser", *words).out)["settings"]["tempered"]


def test_infill_keeps_the_known_text(edlm, models):  # noqa: F811
    done = edlm("infill", "the [MASK:4] sat", "--denoiser", models / "denoiser", "--num", 3)
    lines = done.out.splitlines()
    assert len(lines) == 3 and all(line.startswith("the ") and line.endswith(" sat") for line in lines)
    same = edlm("sample", "--infill", "the [MASK:4] sat", "--denoiser", models / "denoiser", "--num", 3)
    assert same.out == done.out


def test_a_trace_file_has_the_settings_and_every_step(edlm, models, tmp_path):  # noqa: F811
    words = ["--energy", f"coar:{models}/ar", "--candidates", 2, "--steps", 5, "--trace", tmp_path / "t.jsonl"]
    edlm("sample", "--denoiser", models / "denoiser", *words)
    first, *steps = map(json.loads, (tmp_path / "t.jsonl").read_text().splitlines())
    assert first["settings"]["candidates"] == 2 and [line["step"] for line in steps] == [1, 2, 3, 4, 5]
    assert sum(len(row) for line in steps for row in line["revealed"]) == 16
    assert all(len(line["choice"]["weights"][0]) == 2 for line in steps if "choice" in line)


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["--energy", "ar:{}/ar", "--candidates", "0"], "candidates must be at least 1, got 0"),
        (["--energy", "ar:{}/ar", "--window", "1.5"], "window must be between 0 and 1, got 1.5"),
        (["--energy", "ar:{}/ar", "--steps", "0"], "steps must be at least 1, got 0"),
        (["--energy", "gpt:{}/ar"], "unknown energy"),
        (["--energy", "ar:{}/nce"], "expected 'edlm-autoregressive'"),
        (["--energy", "nce:{}/step"], "write step:"),
        (["--energy", "step:{}/step", "--completions", "2"], "reads no completions"),
        (["--infill", "no hole"], "has no hole"),
        (["--infill", "[MASK:17]"], "longer than the model's 16 tokens"),
        (["--infill", "A [MASK]"], "--infill has 'A' at character 0"),
        (["--prompt", "a" * 16], "shorten the prompt"),
        (["--length", "40", "--overlap", "16"], "overlap must be at least 0"),
        (["--trace", "{}/nowhere/t.jsonl"], "--trace"),
    ],
)
def test_bad_requests_are_refused(edlm, models, words, phrase):  # noqa: F811
    done = edlm("sample", "--denoiser", models / "denoiser", *(word.format(models) for word in words))
    assert_refused(done, phrase)


def test_an_energy_for_a_causal_model_is_refused(edlm, models):  # noqa: F811
    done = edlm("sample", "--ar", models / "ar", "--energy", f"ar:{models}/ar")
    assert_refused(done, "an energy corrects a denoiser")


def test_energies_that_are_not_numbers_stop_with_the_step(edlm, models, tmp_path):  # noqa: F811
    network = energy_from_denoiser(tiny_denoiser())
    network.transformer.head.bias.data.fill_(float("nan"))
    network.save_pretrained(tmp_path / "broken")
    done = edlm("sample", "--denoiser", models / "denoiser", "--energy", f"nce:{tmp_path}/broken", "--steps", 1)
    assert_refused(done, "is [nan, nan] at step 1 (t = 1); stopped")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["denoiser", "ar"])
def test_the_training_benchmark_compares_both_loops(edlm, kind, tmp_path):  # noqa: F811
    words = ["--kind", kind, "--batch-size", 2, "--length", 16, "--steps", 1, "--repeats", 2, "--out", tmp_path]
    report = json.loads(edlm("bench", "train", *words, "--json").out)
    assert report["peak memory"].startswith("ours ") and len(report["ratios"]) == 2
    assert (tmp_path / "turns.png").stat().st_size > 5_000 and "overhead" in (tmp_path / "results.md").read_text()
    assert report["ours, tokens/s"] > 0 and report["bare, tokens/s"] > 0 and report["overhead, median"].endswith("%")
