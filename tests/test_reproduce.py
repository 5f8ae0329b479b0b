"""edlm reproduce: every experiment writes its files, tables say what the numbers say, and what is absent is named."""

import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from edlm.energy_spec import load_energy
from edlm.importance import propose
from edlm.metrics import Estimate
from edlm.models.energy_network import energy_from_denoiser
from edlm.objectives import masked_log_likelihood
from edlm.paper_figures import ABLATION, GENERATION, PERPLEXITY, SPEEDUP, TEXT8
from edlm.reproduce.energy_by_time import QUANTITIES, make_score, quantities
from edlm.reproduce.settings import NAMES, SCALES, Energies
from edlm.reproduce.wall_clock import CurvePoint, speedup
from edlm.vocabulary import Table
from test_cli import ENV, WORDS, assert_refused, edlm, one_thread, succeed  # noqa: F401
from toys import tiny_autoregressive, tiny_denoiser

SMALL = {
    "text8-bpc": ["--max-blocks", 4, "--steps", 4, "--inner", 2, "--partition-samples", 3],
    "zero-shot": ["--max-blocks", 3, "--steps", 4, "--inner", 2, "--partition-samples", 2],
    "gen-ppl": ["--num", 4, "--steps", "2,4"],
    "time": ["--num", 3, "--steps", "2,4,8", "--window", "0.2,1"],
    "ablation": ["--num", 3, "--steps", 3, "--candidates", "2,3", "--window", "0.5,1"],
    "energy": ["--max-blocks", 3],
    "samplers": ["--num", 3, "--passes", "6,12", "--steps", "2,6,8", "--max-blocks", 3, "--inner", 2],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    tiny_denoiser().save_pretrained(folder / "denoiser")
    tiny_autoregressive(1).save_pretrained(folder / "ar")
    tiny_autoregressive(2).save_pretrained(folder / "judge")
    energy_from_denoiser(tiny_denoiser()).save_pretrained(folder / "nce")
    energy_from_denoiser(tiny_denoiser(), target="step").save_pretrained(folder / "step")
    (folder / "text.txt").write_text(" ".join(random.Random(0).choices(WORDS, k=3000)))
    (folder / "sets").mkdir()
    rows = [json.dumps({"text": f"he said number {i} was wrong , and left ."}) for i in range(20)]
    (folder / "sets" / "lambada_test.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def reproduce(edlm, home, tmp_path, monkeypatch):  # noqa: F811
    """Runs an experiment on the tiny models, with a test's settings in the place of these; None leaves one out.

    No model is built in here, so that what is left out is absent.
    """
    monkeypatch.setattr("edlm.models.builtin.FOLDER", tmp_path / "nothing")
    usual = {
        "denoiser": home / "denoiser", "ar": home / "ar", "energy-model": home / "nce", "oracle": f"ar:{home}/judge",
        "data": home / "text.txt", "test": "20%", "cache": home / "cache", "out": tmp_path / "out",
    }  # fmt: skip

    def run(name, *flags, **changes):
        settings = usual | ({"files": home / "sets"} if name == "zero-shot" else {})
        settings |= {"step-energy-model": home / "step"} if name == "samplers" else {}
        settings |= {key.replace("_", "-"): value for key, value in changes.items()}
        words = [word for key, value in settings.items() if value is not None for word in (f"--{key}", value)]
        return edlm("reproduce", name, *words, *flags)

    return run


def table_of(text):
    """The cells of the first Markdown table, as a list of dictionaries."""
    lines = [line for line in text.split("\n\n")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def without_times(results):
    """All that does not depend on the speed of the machine."""
    rows = [{k: v for k, v in row.items() if k not in ("seconds_per_sample", "speedup")} for row in results["rows"]]
    return results | {"rows": rows, "files": None}


def close(shown, value, error=None):
    """Whether a cell such as 4.11 ± 0.03 shows these numbers, rounded."""
    mean, _, after = shown.partition(" ± ")
    decimals = len(mean.partition(".")[2])
    fits = float(mean) == pytest.approx(value, abs=0.51 * 10**-decimals, rel=1e-3)
    return fits and (error is None or float(after) == pytest.approx(error, abs=0.51 * 10**-decimals, rel=1e-3))


# --- every experiment


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_writes_its_table_its_plot_and_its_numbers_and_a_rerun_the_same(reproduce, tmp_path, name):
    first = json.loads(succeed(reproduce(name, *SMALL[name], "--json")))
    out = tmp_path / "out"
    assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "results.json").read_text()) == {k: v for k, v in first.items() if k != "files"}
    assert (first["experiment"], first["scale"], first["left_out"]) == (name, "nano", [])
    text = succeed(reproduce(name, *SMALL[name]))
    assert (out / "results.md").read_text() in text + "\n" and "± standard error over" in text and "seed 0" in text
    again = json.loads((out / "results.json").read_text())
    assert without_times(again) == without_times(first) | {"files": None}


def test_table_1_has_both_protocols_and_the_papers_list(reproduce):
    text = succeed(reproduce("text8-bpc", *SMALL["text8-bpc"]))
    rows = table_of(text)
    ours, paper = rows[: -len(TEXT8)], rows[-len(TEXT8) :]
    energies = ["EDLM-AR", "EDLM-coAR", "EDLM-NCE"]
    assert [row["method"] for row in ours] == ["AR", "MDLM", "MDLM", *energies, *energies]
    assert [row["T"] for row in ours[:3]] == ["–", "–", "4"]
    bounds = ["upper bound"]
    assert [row["which is"] for row in ours] == ["exact", *bounds * 2, *["not a bound"] * 3, *bounds * 3]
    assert [(row["T"], row["k"], row["w"], row["R"]) for row in ours[-3:]] == [("4", "2", "1", "2")] * 3
    assert [row["method"] for row in paper] == [f"paper: {row.method}" for row in TEXT8]
    assert paper[-1]["bits per character"] == "≤ 1.24" and "Protocol paper: not a bound" in text


def test_the_numbers_of_table_1_are_those_of_the_json_and_of_the_single_measurement(reproduce, edlm, home):  # noqa: F811
    results = json.loads(succeed(reproduce("text8-bpc", *SMALL["text8-bpc"], "--json")))
    shown = table_of(succeed(reproduce("text8-bpc", *SMALL["text8-bpc"])))
    for row, cells in zip(results["rows"], shown, strict=False):
        assert close(cells["bits per character"], row["bits"], row["standard_error"])
    words = ["--denoiser", home / "denoiser", "--energy", f"nce:{home}/nce", "--steps", 4, "--inner", 2]
    words += ["--data", home / "text.txt", "--test", "20%", "--cache", home / "cache", "--max-blocks", 4, "--json"]
    alone = json.loads(succeed(edlm("evaluate", "likelihood", *words)))
    assert alone["bits"] == results["rows"][-1]["bits"] and results["rows"][-1]["energy"] == f"nce:{home}/nce"


def test_table_2_has_a_column_for_the_models_own_text_and_for_each_set_at_hand(reproduce):
    text = succeed(reproduce("zero-shot", *SMALL["zero-shot"]))
    rows = table_of(text)
    assert list(rows[0]) == ["perplexity", "text.txt", "LAMBADA"] and "Left out: PTB" in text
    names = [row["perplexity"] for row in rows]
    assert names[:4] == ["AR", "MDLM", "MDLM, T=4", "EDLM-AR, paper"] and "EDLM-NCE, T=4, k=2, w=1" in names
    assert rows[-1] == {"perplexity": "paper: EDLM-coAR", "text.txt": "–", "LAMBADA": "50.04"}
    assert "R = 2, n = 2, seed 0" in text


def test_table_3_has_every_method_and_number_of_steps_and_the_papers_table(reproduce, home):
    results = json.loads(succeed(reproduce("gen-ppl", *SMALL["gen-ppl"], "--json")))
    text = succeed(reproduce("gen-ppl", *SMALL["gen-ppl"]))
    rows, oracle = table_of(text), f"ar:{home}/judge"
    names = [(row["method"], row["T"]) for row in rows]
    steps = [(method, T) for method in ("MDLM", "EDLM-AR", "EDLM-NCE") for T in ("2", "4")]
    assert names == [*steps, ("AR", "–"), ("held-out text", "–")]
    for row, cells in zip(results["rows"], rows, strict=True):
        shown = row["shown_perplexity"][oracle]
        assert close(cells[f"PPL per character, {oracle}"], shown["mean"], shown["standard_error"])
        assert close(cells["entropy, nats"], row["entropy"]["mean"], row["entropy"]["standard_error"])
    assert text.count("paper: EDLM-NCE") == 4 and "842.3" in text and results["protocol"]["num"] == 4


def test_a_second_oracle_is_a_second_column(reproduce, home):
    rows = table_of(succeed(reproduce("ablation", *SMALL["ablation"], "--oracle", f"ar:{home}/ar")))
    assert [name for name in rows[0] if name.startswith("PPL")] == [
        f"PPL per character, ar:{home}/{name}" for name in ("judge", "ar")
    ]
    assert [(row["k"], row["w"]) for row in rows] == [("–", "–"), *((k, w) for k in "23" for w in ("0.5", "1"))]


def test_an_interrupted_experiment_keeps_what_it_drew(reproduce, tmp_path):
    reproduce("ablation", *SMALL["ablation"])
    files = sorted((tmp_path / "out").glob("samples-*.jsonl"))
    whole = [path.read_text() for path in files]
    files[-1].write_text("".join(whole[-1].splitlines(keepends=True)[:2]))
    succeed(reproduce("ablation", *SMALL["ablation"]))
    kept = [path.read_text() for path in files]
    assert kept[:-1] == whole[:-1] and kept[-1].splitlines()[:2] == whole[-1].splitlines()[:2]
    assert len(kept[-1].splitlines()) == len(whole[-1].splitlines())


# --- the speed-up


def at(seconds, perplexity, entropy=4.0):
    return CurvePoint(seconds, Estimate(math.log(perplexity), 0.01), entropy)


def test_a_speedup_is_read_off_the_plain_curve_at_the_same_perplexity():
    curve = [at(1, 64), at(2, 32), at(4, 16)]
    found = speedup(at(1.0, 32 / math.sqrt(2)), curve)  # half way from 32 to 16 in logarithms: sqrt(8) seconds
    assert found.ratio.mean == pytest.approx(math.sqrt(8)) and found.entropy_gap == 0
    assert found.ratio.standard_error == pytest.approx(math.sqrt(8) * math.hypot(0.01, 0.01))
    assert speedup(at(4, 32), curve).ratio.mean == pytest.approx(0.5)  # slower is said as well


@pytest.mark.parametrize(
    ("point", "phrase"),
    [
        (at(1, 10, entropy=3.8), "entropy differs by +0.200 nats"),
        (at(1, 80), "MDLM has perplexities 16 to 64 only"),
        (at(1, 20, entropy=4.2), "entropy differs by -0.200 nats"),
    ],
)
def test_a_speedup_that_cannot_be_said_is_not_said(point, phrase):
    found = speedup(point, [at(1, 64), at(2, 32), at(4, 16)])
    assert found.ratio is None and str(found) == f"not reached: {phrase}"


def test_what_the_plain_curve_never_reaches_takes_it_more_than_its_longest_run():
    found = speedup(at(0.5, 10), [at(1, 64), at(2, 32), at(4, 16)])
    assert found.is_at_least and str(found) == "more than 8×" and found.ratio.mean == 8


def test_the_fastest_place_of_a_curve_that_comes_back_counts():
    assert speedup(at(1, 24), [at(1, 32), at(2, 16), at(4, 32)]).ratio.mean < 2


def test_the_table_of_times_has_seconds_and_says_what_was_not_reached(reproduce):
    text = succeed(reproduce("time", *SMALL["time"]))
    rows = table_of(text)
    assert all(float(row["s/sample"]) > 0 for row in rows)
    corrected = [row["speed-up"] for row in rows if row["method"].startswith("EDLM")]
    assert len(corrected) == 6 and all(cell.endswith("×") or cell.startswith("not reached: ") for cell in corrected)
    assert "at most 0.05 nats" in text and "about 13 s against about 17 s" in text and "1 drawn at once" in text


# --- energies


def test_energies_by_time_are_those_of_a_direct_computation(home):
    denoiser, settings = tiny_denoiser(), Energies(max_blocks=2, negatives=5)
    energy = load_energy(f"ar:{home}/ar", denoiser)
    x0 = torch.randint(0, 27, (3, 16), generator=torch.Generator().manual_seed(0))
    seen = []

    def spy(*arguments):
        seen.append(arguments)
        return energy(*arguments)

    found = make_score(denoiser, spy, 0.6, settings).function(x0, [4, 7, 9])
    every, xt, t, log_proposal = seen[0]
    log_probs = denoiser(xt, t).detach()
    assert torch.equal(every[:, 0], x0) and (xt == denoiser.mask_id).any() and (t == 0.6).all()
    torch.testing.assert_close(log_proposal[:, 0], masked_log_likelihood(Table(log_probs), x0, xt, denoiser.mask_id))
    for b in range(3):
        e = energy(every, xt, t, log_proposal)[b].tolist()
        w = [math.exp(min(e[1:]) - value) for value in e[1:]]
        expected = {
            "energy_true": e[0], "energy_drawn": sum(e[1:]) / 5, "energy_least": min(e[1:]), "energy_most": max(e[1:]),
            "effective_sample_size": sum(w) ** 2 / sum(v * v for v in w),
            "energy_ess": sum(e[1:]) ** 2 / sum(v * v for v in e[1:]), "log_z": math.log(sum(w) / 5) - min(e[1:]),
            "accuracy": ((e[0] < 0) + sum(v > 0 for v in e[1:]) / 5) / 2,
            "pair_accuracy": sum(e[0] < v for v in e[1:]) / 5,
        }  # fmt: skip
        assert found[b].tolist() == pytest.approx([expected[name] for name in QUANTITIES], rel=1e-6)


def test_all_energies_see_the_same_masks_and_the_same_drawn_texts(home):
    denoiser, seen = tiny_denoiser(), []
    x0 = torch.zeros(2, 16, dtype=torch.long)
    for spec in (f"ar:{home}/ar", f"nce:{home}/nce"):
        energy = load_energy(spec, denoiser)
        spy = lambda *a, energy=energy: seen.append(a[0]) or energy(*a)  # noqa: E731
        make_score(denoiser, spy, 0.5, Energies(max_blocks=2)).function(x0, [0, 1])
    assert torch.equal(seen[0], seen[1]) and seen[0].shape == (2, 17, 16)


def test_the_drawn_texts_are_the_denoisers():
    denoiser = tiny_denoiser()
    xt = torch.full((1, 16), denoiser.mask_id)
    uniform = torch.rand(1, 4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn, _ = propose(Table(denoiser(xt)), xt, denoiser.mask_id, uniform)
    assert drawn.shape == (1, 4, 16) and int(drawn.max()) < 27
    assert list(quantities(torch.zeros(2, 5))) == list(QUANTITIES)


def test_the_table_of_energies_is_that_of_the_json(reproduce):
    results = json.loads(succeed(reproduce("energy", *SMALL["energy"], "--json")))
    shown = table_of(succeed(reproduce("energy", *SMALL["energy"])))
    assert [row["method"] for row in shown[::10]] == ["EDLM-NCE", "EDLM-AR", "EDLM-coAR"] and len(shown) == 30
    for row, cells in zip(results["rows"], shown, strict=True):
        for key, title in QUANTITIES.items():
            value = row[key]["mean"]  # the paper's ESS is 0 / 0 for an energy that is still zero
            assert cells[title] == "–" if value is None else close(cells[title], value), (key, row, cells)
    assert results["rows"][0]["energy_ess"]["mean"] is None and results["rows"][10]["energy_ess"]["mean"] > 1


# --- what is not there, and what is wrong


def test_rows_whose_model_is_absent_are_left_out_and_named(reproduce):
    text = succeed(reproduce("text8-bpc", *SMALL["text8-bpc"], energy_model=None))
    assert re.search(r"Left out: EDLM-NCE \(no model .*text8-nano-energy", text)
    assert {row["method"] for row in table_of(text)[:7]} == {"AR", "MDLM", "EDLM-AR", "EDLM-coAR"}
    text = succeed(reproduce("text8-bpc", *SMALL["text8-bpc"], denoiser="none", energy_model="none"))
    assert [row["method"] for row in table_of(text)[:2]] == ["AR", "paper: Transformer AR"]
    assert "Left out: MDLM and EDLM (no --denoiser)" in text


def test_without_its_text_table_3_lacks_that_row_only(reproduce, tmp_path):
    settings = {"data": None, "test": None, "cache": tmp_path / "empty"}
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "text8").write_text("too short to be split")
    text = succeed(reproduce("gen-ppl", *SMALL["gen-ppl"], **settings))
    assert "Left out: held-out text (" in text and [row["method"] for row in table_of(text)][-1] == "AR"


@pytest.mark.parametrize(
    ("name", "flags", "changes", "phrases"),
    [
        ("text8-bpc", [], {"denoiser": "no/such/folder"}, ["no model folder at no/such/folder"]),
        ("text8-bpc", [], {"denoiser": None, "ar": None}, ["text8-bpc needs --denoiser", "text8-nano-denoiser"]),
        ("text8-bpc", ["--dry-run"], {"denoiser": None, "ar": None}, ["text8-bpc needs --denoiser"]),
        ("text8-bpc", ["--steps", "0"], {}, ["--steps must be at least 1, got 0"]),
        ("text8-bpc", ["--num", 3], {}, ["--num means nothing to text8-bpc", "--max-blocks"]),
        ("text8-bpc", ["--window", "2"], {}, ["--window must be between 0 and 1, got 2"]),
        ("text8-bpc", ["--energies", "ar,foo"], {}, ["unknown energy 'foo'"]),
        ("text8-bpc", [], {"data": "nowhere.txt"}, ["source 'nowhere.txt' does not exist"]),
        ("zero-shot", ["--sets", "wiki"], {}, ["unknown set 'wiki'"]),
        ("gen-ppl", [], {"oracle": None}, ["gen-ppl needs --oracle", "text8-nano-oracle"]),
        ("gen-ppl", [], {"oracle": "gpt2"}, ["unknown oracle 'gpt2'"]),
        ("gen-ppl", ["--steps", "4,x"], {}, ["--steps must be whole numbers"]),
        ("gen-ppl", ["--steps", "0"], {}, ["steps must be at least 1, got 0"]),
        ("gen-ppl", ["--num", "0"], {}, ["--num must be at least 1, got 0"]),
        ("gen-ppl", ["--candidates", "ideal"], {}, ["can be scored but not drawn"]),
        ("gen-ppl", ["--completions=-1"], {}, ["--completions must be at least 0, got -1"]),
        ("gen-ppl", ["--max-blocks", "3"], {}, ["--max-blocks means nothing to gen-ppl"]),
        ("time", ["--batch-size", "0"], {}, ["--batch-size must be at least 1"]),
        ("ablation", ["--steps", "4,8"], {}, ["ablation has one number of steps, got --steps 4,8"]),
        ("ablation", [], {"ar": "none", "energy_model": "none"}, ["ablation needs an energy"]),
        ("energy", [], {"ar": "none", "energy_model": "none"}, ["energy needs an energy"]),
        ("energy", [], {"out": "/dev/null/here"}, ["--out /dev/null/here cannot be written"]),
        ("tables", [], {}, ["tables"]),
        ("energy", ["--scale", "huge"], {}, ["huge"]),
        ("energy", ["--scale", "paper"], {"denoiser": None}, ["energy needs --denoiser: name one with --denoiser"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(reproduce, name, flags, changes, phrases):
    assert_refused(reproduce(name, *flags, **changes), *phrases)


def test_samples_are_drawn_by_algorithm_1_and_reveal_first_side_by_side(reproduce):
    text = succeed(reproduce("gen-ppl", "--dry-run", "--steps", 4, "--completions", "0,1", "--energies", "ar"))
    assert "EDLM-AR, k=2, w=1, T=4" in text and "EDLM-AR reveal-first, k=2, w=1, T=4" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_dry_run_counts_passes_and_writes_nothing(reproduce, tmp_path, name):
    text = succeed(reproduce(name, "--dry-run", *SMALL[name]))
    assert text.startswith(f"{name}, scale nano\n") and "passes" in text and not (tmp_path / "out").exists()


def test_the_passes_of_a_dry_run_are_those_of_the_settings(reproduce):
    lines = succeed(reproduce("text8-bpc", "--dry-run", *SMALL["text8-bpc"])).splitlines()
    passes = {line.rsplit("  ", 1)[0].strip(): int(line.split()[-2]) for line in lines if line.endswith("passes")}
    assert passes["AR"] == passes["MDLM"] == passes["MDLM, T=4"] == passes["EDLM-coAR, paper"] == 4
    assert passes["EDLM-AR, paper"] == 4 * (2 + 3) and passes["EDLM-AR, T=4, k=2, w=1"] == 4 * (1 + 2 * 2)
    assert passes["all"] == sum(value for key, value in passes.items() if key != "all")


def test_the_papers_settings_are_there_for_every_experiment():
    assert set(SCALES) == set(NAMES) and all(set(scales) == {"nano", "paper"} for scales in SCALES.values())
    paper = SCALES["gen-ppl"]["paper"]
    assert (paper.num, paper.steps, paper.window) == (2048, (256, 512, 1024, 2048), (1.0,))
    assert SPEEDUP.candidates in SCALES["time"]["paper"].candidates and SPEEDUP.window in SCALES["time"]["paper"].window


def test_the_papers_figures_agree_with_each_other():
    table = {(row.method, row.steps): row for row in GENERATION}
    assert ABLATION[0.0] == table["MDLM", "1024"].gpt2 and SPEEDUP.perplexity == table["AR", "1024"].gpt2
    assert SPEEDUP.mdlm_seconds / SPEEDUP.edlm_seconds == pytest.approx(SPEEDUP.ratio, abs=0.05)
    assert len(TEXT8) == 15 and set(PERPLEXITY) == {"AR", "SEDD", "MDLM", "EDLM-NCE", "EDLM-AR", "EDLM-coAR"}


def test_help_loads_neither_torch_nor_matplotlib():
    code = "import sys; sys.argv = ['edlm', 'reproduce', '--help']\nfrom edlm.cli import main\ntry: main()\n"
    code += "finally: sys.exit(bool({'torch', 'matplotlib'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], env=ENV, stdout=subprocess.DEVNULL).returncode == 0


def test_the_page_of_results_quotes_the_papers_figures_as_they_are():
    page = (Path(__file__).parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    for figure in TEXT8[1:-1]:
        assert f"| {figure.method} | {'≤ ' if figure.is_bound else ''}{figure.bits:.2f} |" in page
    for method, values in PERPLEXITY.items():
        assert f"| {method} | {' | '.join(f'{value:.2f}' for value in values.values())} |" in page
    for method in dict.fromkeys(row.method for row in GENERATION):
        found = [row for row in GENERATION if row.method == method]
        columns = [[row.steps.strip("–") for row in found], [row.gpt2 for row in found], [row.entropy for row in found]]
        line = " | ".join(", ".join(map(str, column)) for column in columns)
        assert f"| {method} | {line} |".replace("|  |", "| |") in page, line
