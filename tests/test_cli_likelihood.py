"""Likelihoods with an energy from the command line: protocols, resuming, several processes, sweeps."""

import json
import math
import signal
import subprocess
import sys
import time

import pytest
import torch

from edlm.errors import UserError
from edlm.journal import Journal
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.energy_network import energy_from_denoiser
from edlm.sweep_config import parse_candidates, parse_counts, parse_sweep
from test_cli import ENV, assert_refused, data, edlm, home, one_thread, succeed  # noqa: F401
from toys import tiny_denoiser


@pytest.fixture(scope="module")
def models(home):  # noqa: F811
    energy_from_denoiser(tiny_denoiser()).save_pretrained(home / "nce")
    return home


@pytest.fixture
def likelihood(edlm, models, data):  # noqa: F811
    """Runs `edlm evaluate likelihood` on eight blocks; {} stands for the folder of the models."""

    def run(*words):
        words = [str(word).format(models) for word in words]
        return edlm("evaluate", "likelihood", "--denoiser", models / "denoiser", *data, "--max-blocks", 8, *words)

    return run


def result_of(done):
    return json.loads(succeed(done))


def causal(edlm, models, data):  # noqa: F811
    return result_of(edlm("evaluate", "likelihood", "--ar", models / "ar", *data, "--max-blocks", 8, "--json"))


@pytest.mark.parametrize("energy", ["ar:{}/ar", "coar:{}/ar", "nce:{}/nce", "0.5*ar:{0}/ar + nce:{0}/nce"])
def test_a_bound_with_an_energy_names_the_sampler_it_belongs_to(likelihood, models, energy):
    options = ["--steps", 4, "--candidates", 3, "--window", 0.5, "--inner", 2, "--json"]
    result = result_of(likelihood("--energy", energy, *options))
    assert result["quantity"] == "upper bound of the sampler, T = 4, k = 3, w = 0.5" and result["remark"] == ""
    assert [result[name] for name in ("steps", "candidates", "window", "inner", "seed")] == [4, 3, 0.5, 2, 0]
    assert result["energy"] == energy.format(models) and result["partition_samples"] is None
    plain = result_of(likelihood("--steps", 4, "--json"))
    assert result["gain"] == pytest.approx(plain["bits"] - result["bits"]) and plain["gain"] is None
    assert result["nats"] == pytest.approx(result["bits"] * math.log(2)) and result["num_tokens"] == 8 * 16


def test_without_a_number_of_steps_the_bound_is_of_the_sampler_with_its_default_steps(likelihood):
    assert result_of(likelihood("--energy", "coar:{}/ar", "--inner", 1, "--json"))["steps"] == 64
    limit = result_of(likelihood("--energy", "coar:{}/ar", "--inner", 1, "--steps", 0, "--json"))
    assert limit["steps"] is None and "limit of many steps" in limit["quantity"]


@pytest.mark.parametrize("kind", ["ar", "coar"])
def test_one_ideal_step_with_a_causal_energy_is_the_causal_model(likelihood, edlm, models, data, kind):  # noqa: F811
    ideal = result_of(likelihood("--energy", f"{kind}:{{}}/ar", "--steps", 1, "--candidates", "ideal", "--json"))
    assert ideal["bits"] == pytest.approx(causal(edlm, models, data)["bits"], abs=1e-5)
    assert "ideal sampler" in ideal["quantity"] and ideal["candidates"] is None


def test_the_papers_protocol_says_that_it_is_no_bound(likelihood, edlm, models, data):  # noqa: F811
    result = result_of(likelihood("--energy", "nce:{}/nce", "--protocol", "paper", "--json"))
    assert result["protocol"] == "paper" and result["remark"].startswith("not a bound")
    assert result["bits_lower"] <= result["bits"] + 1e-6 and result["partition_samples"] == 16
    assert "not a bound" in succeed(likelihood("--energy", "ar:{}/ar", "--protocol", "paper", "--steps", 8))
    carry_over = result_of(likelihood("--energy", "coar:{}/ar", "--protocol", "paper", "--json"))
    assert carry_over["bits"] == pytest.approx(causal(edlm, models, data)["bits"], abs=1e-9)


def test_trajectories_are_named_in_the_result(likelihood):
    result = result_of(likelihood("--steps", 2, "--trajectories", 4, "--json"))
    assert result["quantity"].endswith("T = 2, 4 trajectories") and result["trajectories"] == 4
    assert result["tightening"] > 0 and result["gain"] is None


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        (["--energy", "ar:{}/ar", "--candidates", "0"], "--candidates must be whole numbers"),
        (["--energy", "ar:{}/ar", "--candidates", "2,4"], "several numbers of candidates need --sweep"),
        (["--energy", "ar:{}/ar", "--window", "2"], "window must be between 0 and 1, got 2.0"),
        (["--energy", "ar:{}/ar", "--inner", "0"], "inner must be at least 1, got 0"),
        (["--energy", "ar:{}/ar", "--energy", "nce:{}/nce"], "several need --sweep"),
        (["--energy", "ar:{}/ar", "--steps", "2", "--trajectories", "2", "--candidates", "ideal"], "Z is 1"),
        (["--energy", "gpt:{}/ar"], "unknown energy"),
        (["--trajectories", "2"], "need a number of steps"),
        (["--trajectories", "2", "--steps", "2", "--protocol", "paper"], "knows no trajectories"),
        (["--sweep", "steps"], "must look like steps=1,2,4"),
        (["--sweep", "steps=1,2", "--steps", "4"], "leave out --steps 4"),
        (["--sweep", "steps=1,2", "--protocol", "paper"], "leave out --protocol paper"),
    ],
)
def test_what_cannot_be_measured_is_refused(likelihood, words, phrase):
    assert_refused(likelihood(*words), phrase)


def test_an_energy_for_a_causal_model_is_refused(edlm, models, data):  # noqa: F811
    words = ["evaluate", "likelihood", "--ar", models / "ar", *data, "--energy", f"ar:{models}/ar"]
    assert_refused(edlm(*words), "an energy corrects a denoiser")


@pytest.mark.parametrize("words", [[], ["--energy", "ar:{}/ar"], ["--energy", "ar:{}/ar", "--protocol", "paper"]])
def test_weights_that_are_not_numbers_are_refused(edlm, models, data, tmp_path, words):  # noqa: F811
    spoilt = tiny_denoiser()
    torch.nn.init.constant_(spoilt.transformer.head.bias, torch.nan)
    spoilt.save_pretrained(tmp_path / "spoilt")
    words = [word.format(models) for word in words]
    done = edlm("evaluate", "likelihood", "--denoiser", tmp_path / "spoilt", *data, "--max-blocks", 4, *words)
    assert_refused(done, "not usable")
    assert_refused(edlm("sample", "--denoiser", tmp_path / "spoilt"), "not usable")


# --- going on, and sharing out


def command(models, data, *words):  # noqa: F811
    slow = ["--energy", f"ar:{models}/ar", "--inner", "40", "--steps", "4", "--batch-size", "2", "--json"]
    return ["evaluate", "likelihood", "--denoiser", models / "denoiser", *data, *slow, *words]


def start(words, launcher=()):
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "edlm", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=ENV, text=True,
    )  # fmt: skip


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out)


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_and_gives_the_same_number(models, data, tmp_path):  # noqa: F811
    whole = finish(start(command(models, data)))
    journals = models / "cache" / "evaluations"
    assert not list(journals.glob("*.jsonl"))  # finished ones leave nothing, and refused ones neither
    process = start(command(models, data))
    while not any(len(path.read_text().splitlines()) >= 3 for path in journals.glob("*.jsonl")):
        assert process.poll() is None, "it was done before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (journal,) = journals.glob("*.jsonl")
    before = journal.read_text()
    # A value that could not have been measured shows that it is taken from the journal, not measured again.
    journal.write_text(before + '{"blocks": [1')
    assert finish(start(command(models, data))) == whole
    first, *rest = before.splitlines()
    spoilt = json.loads(first) | {"nats": [[1e6, 1e6], [1e6, 1e6]]}
    journal.write_text("\n".join([json.dumps(spoilt), *rest]) + "\n")
    assert finish(start(command(models, data)))["bits"] > 1000


@pytest.mark.slow
def test_two_processes_give_the_number_of_one(models, data):  # noqa: F811
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    two = subprocess.run(
        [sys.executable, *launcher, "-m", "edlm", *map(str, command(models, data))], capture_output=True, text=True,
        env=ENV, timeout=300,
    )  # fmt: skip
    assert two.returncode == 0, two.stderr[-3000:]
    assert json.loads(two.stdout) == finish(start(command(models, data)))


def test_a_journal_survives_a_torn_line_and_other_processes(tmp_path):
    one, two = Journal(tmp_path, {"a": 1}, rank=0), Journal(tmp_path, {"a": 1}, rank=1)
    other = Journal(tmp_path, {"a": 2})
    one.append([0, 2], [[1.5], [0.1 + 0.2]])
    two.append([1], [[2.5]])
    other.append([0], [[9.0]])
    with (tmp_path / next(p.name for p in tmp_path.iterdir() if p.name.endswith(".1.jsonl"))).open("a") as file:
        file.write('{"blocks": [3], "na')
    assert one.read() == {0: [1.5], 2: [0.1 + 0.2], 1: [2.5]}
    two.append([3], [[4.0]])  # not onto what is left of the torn line
    assert one.read() == {0: [1.5], 2: [0.1 + 0.2], 1: [2.5], 3: [4.0]}
    one.remove()
    assert one.read() == {} and other.read() == {0: [9.0]}


def test_a_damaged_journal_is_refused_with_its_name(tmp_path):
    journal = Journal(tmp_path, {"a": 1})
    journal.append([0], [[1.0]])
    (path,) = tmp_path.iterdir()
    path.write_text("no journal\n")
    with pytest.raises(UserError, match=r"is damaged .*; remove it"):
        journal.read()


def test_another_model_or_setting_has_another_journal(tmp_path):
    Journal(tmp_path, {"models": ["x"], "seed": 0}).append([0], [[1.0]])
    assert Journal(tmp_path, {"models": ["y"], "seed": 0}).read() == {}
    assert Journal(tmp_path, {"models": ["x"], "seed": 1}).read() == {}


# --- sweeps


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4", [4]), ("1,2,4,...,32", [1, 2, 4, 8, 16, 32]), ("2, 5, ..., 14", [2, 5, 8, 11, 14]), ("8,1,8", [1, 8])],
)
def test_lists_of_numbers_may_be_cut_short(text, numbers):
    assert parse_counts(text, "--sweep") == numbers


@pytest.mark.parametrize("text", ["", "0", "1,x", "1.5", "...", "1,...,4", "1,2,...", "3,6,...,20", "4,2,...,1", "-1"])
def test_lists_that_say_nothing_clear_are_refused(text):
    with pytest.raises(UserError, match="--sweep"):
        parse_counts(text, "--sweep")


def test_the_ideal_sampler_is_a_number_of_candidates_too():
    assert parse_candidates("2,ideal,8") == [2, 8, None] and parse_candidates("ideal") == [None]
    grid = parse_sweep("steps=1,2", "2,4", LikelihoodConfig(window=0.5))
    assert (grid.steps, grid.candidates, grid.settings.window) == ([1, 2], [2, 4], 0.5)


def test_a_sweep_writes_a_table_a_plot_and_the_numbers_behind_them(likelihood, models, tmp_path):
    energies = ["--energy", "coar:{}/ar", "--energy", "nce:{}/nce"]
    words = ["--sweep", "steps=1,2,4", "--candidates", "1,2,ideal", "--inner", 2, "--ar", "{}/ar", "--out", tmp_path]
    report = result_of(likelihood(*energies, *words, "--json"))
    names = [line["name"] for line in report["series"]]
    assert names == ["MDLM", "EDLM-coAR, k = 2", "EDLM-coAR, k = ideal", "EDLM-NCE, k = 2", "EDLM-NCE, k = ideal"]
    assert all([point["steps"] for point in line["points"]] == [1, 2, 4] for line in report["series"])
    ideal = report["series"][2]["points"][0]["bits"]
    assert ideal == pytest.approx(report["reference"]["bits"], abs=1e-5)  # one ideal step of coAR is the causal model
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["series"] == report["series"]
    assert (tmp_path / "bits-against-steps.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "results.md").read_text()
    assert "gained over MDLM" in table and table.count("| 4     |") == 2
    assert table.startswith("| steps |") and "Autoregressive model" in table and "R = 2, n = 16" in table
    point = result_of(likelihood("--energy", "coar:{}/ar", "--steps", 2, "--inner", 2, "--json"))
    assert point["bits"] == report["series"][1]["points"][1]["bits"]  # a sweep's points are the single measurements


def test_a_sweep_needs_a_denoiser(edlm, models, data):  # noqa: F811
    words = ["evaluate", "likelihood", "--ar", models / "ar", *data, "--sweep", "steps=1,2"]
    assert_refused(edlm(*words), "--sweep needs a denoiser")


# --- cost


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_draws(edlm, tmp_path):  # noqa: F811
    """96 draws of 8 sequences held at once would need 180 MB more than 8 draws do."""
    words = ["--draws", "8,96", "--length", 64, "--batch-size", 8, "--repeats", 1, "--out", tmp_path, "--json"]
    rows = result_of(edlm("bench", "likelihood", *words))["rows"]
    assert (tmp_path / "effort.png").stat().st_size > 10_000 and "n = 96" in (tmp_path / "results.md").read_text()
    assert [(row["protocol"], row["draws"]) for row in rows] == [
        ("paper", "n = 8"), ("paper", "n = 96"), ("certified", "R = 8"), ("certified", "R = 96")
    ]  # fmt: skip
    for few, many in (rows[:2], rows[2:]):
        assert many["peak_megabytes"] < few["peak_megabytes"] + 50


def test_a_benchmark_that_cannot_run_is_refused(edlm):  # noqa: F811
    assert_refused(edlm("bench", "likelihood", "--energy", "gpt"), "--energy must be one of ar, coar, nce")
    assert_refused(edlm("bench", "likelihood", "--draws", "0"), "--draws must be whole numbers")
