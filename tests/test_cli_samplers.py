"""Orders, sequential Monte Carlo, adaptive effort and drafts, as they are named on the command line."""

import json

import pytest

from test_cli import ENV, assert_refused, edlm, one_thread, succeed  # noqa: F401
from toys import tiny_autoregressive, tiny_denoiser


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_denoiser().save_pretrained(folder / "denoiser")
    tiny_autoregressive(1).save_pretrained(folder / "ar")
    return folder


@pytest.mark.parametrize(
    "flags",
    [
        ("--order", "confidence"),
        ("--order", "entropy:1"),
        ("--order", "remask-cap:0.2", "--completions", "1"),
        ("--smc", "4", "--candidates", "4"),
        ("--ess", "1.5", "--candidates", "8", "--budget", "20", "--order", "confidence"),
    ],
    ids=" ".join,
)
def test_every_sampler_writes_text_and_keeps_the_prompt(edlm, home, flags, tmp_path):  # noqa: F811
    words = ["--denoiser", home / "denoiser", "--energy", f"ar:{home}/ar", "--steps", "4", "--prompt", "the "]
    done = json.loads(succeed(edlm("sample", *words, *flags, "--json", "--trace", tmp_path / "trace.jsonl")))
    (sample,) = done["samples"]
    assert sample["text"].startswith("the ") and len(sample["text"]) == 16 and sample["energy_evaluations"] > 0
    assert done["settings"][flags[0].removeprefix("--")] in (flags[1], float(flags[1]) if flags[1][0].isdigit() else "")
    assert all(json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines())


def test_drafts_are_named_beside_the_autoregressive_model(edlm, home):  # noqa: F811
    words = ["--ar", home / "ar", "--draft", home / "denoiser", "--drafted", "3", "--num", "2", "--json"]
    done = json.loads(succeed(edlm("sample", *words)))
    assert done["settings"]["drafted"] == 3
    assert all(0 < s["energy_evaluations"] <= 16 and len(s["text"]) == 16 for s in done["samples"])


def test_the_benchmark_prints_a_table(edlm, home):  # noqa: F811
    words = ["--ar", home / "ar", "--draft", home / "denoiser", "--drafted", "2,4", "--num", "1"]
    text = succeed(edlm("bench", "speculative", *words))
    assert "tokens/causal pass" in text and "plain autoregressive sampling" in text and len(text.splitlines()) == 5


def test_a_grid_of_kinds_is_one_table(edlm, home):  # noqa: F811
    words = ["--denoiser", home / "denoiser", "--energy", f"ar:{home}/ar", "--oracle", f"ar:{home}/ar", "--num", "2"]
    words += ["--steps", "2", "--candidates", "4", "--ess", "0,1.5", "--budget", "12", "--smc", "0,4"]
    report = json.loads(succeed(edlm("evaluate", "generation", *words, "--order", "uniform,confidence", "--json")))
    passes = {row["method"]: row["energy_passes"]["mean"] for row in report["rows"]}
    kinds = ["MDLM", "EDLM-AR", "EDLM-AR ess=1.5 budget=12", "EDLM-AR smc=4"]
    assert set(passes) == {*kinds, *(f"{kind} confidence" for kind in kinds)}
    assert passes["EDLM-AR ess=1.5 budget=12"] <= 12 and passes["EDLM-AR smc=4"] <= 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--order", "best"), "unknown order 'best'"),
        (("--budget", "5"), "name the ess that is enough"),
        (("--smc", "4", "--completions", "1"), "leave out completions and ess, or smc"),
        (("--draft", "{home}/denoiser"), "drafts are a denoiser's, for an autoregressive model"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(edlm, home, flags, message):  # noqa: F811
    words = ["--denoiser", home / "denoiser", *(flag.format(home=home) for flag in flags)]
    assert_refused(edlm("sample", *words), message)


def test_the_likelihood_of_an_order_is_measured_by_name(edlm, home):  # noqa: F811
    words = ["the cat sat on", "--denoiser", home / "denoiser", "--order", "confidence", "--steps", "4", "--json"]
    (row,) = json.loads(succeed(edlm("score", *words)))["scores"]
    assert row["quantity"] == "exact NLL of the sampler, order confidence, T = 4" and row["standard_error"] == 0
