"""The command line as a user meets it: what it prints, what it refuses, and with which exit code."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml

from edlm.cli import main
from edlm.tokenization import train_bpe
from toys import tiny_autoregressive, tiny_denoiser

WORDS = ["the", "of", "and", "one", "in", "a", "to", "zero", "nine", "two", "is", "as", "eight", "for", "s", "five"]
CONFIGS = Path(__file__).parents[1] / "configs"
ENV = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "EDLM_TRACEBACK")}
ENV |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
TINY = ["--model.width", 32, "--model.num-layers", 1, "--model.num-heads", 2, "--data.length", 16]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Models this small lose time with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def edlm(monkeypatch, capsys):
    """Run a command in this process, which already has torch; a traceback would fail the test."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["edlm", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return Done(code, *capsys.readouterr())

    for name in ("RANK", "WORLD_SIZE", "EDLM_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    return run


def assert_refused(done, *phrases):
    """Exit code 2, nothing on standard output, and one line or one box on standard error that holds the phrases."""
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", done.err).split())
    assert done.code == 2 and done.out == "" and "Traceback" not in text, done
    assert text.startswith(("edlm: ", "Error ")) and (done.err.count("\n") == 1 or "╭" in done.err), done.err
    assert all(phrase in text for phrase in phrases), text


def succeed(done):
    assert done.code == 0, done
    return done.out


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with two tiny models and a text."""
    folder = tmp_path_factory.mktemp("home")
    tiny_denoiser().save_pretrained(folder / "denoiser")
    tiny_autoregressive(1).save_pretrained(folder / "ar")
    (folder / "text.txt").write_text(" ".join(random.Random(0).choices(WORDS, k=3000)))
    return folder


@pytest.fixture
def data(home):
    return ["--data", home / "text.txt", "--validation", "5%", "--test", "5%", "--cache", home / "cache"]


@pytest.fixture
def train(home):
    """The command of a tiny training run, up to its last settings."""
    source = ["--data.source", home / "text.txt", "--data.validation", "5%", "--data.cache", home / "cache"]
    return ["train", "denoiser", *source, *TINY]


@pytest.fixture
def damaged(home, tmp_path):
    """A copy of the denoiser that a test may spoil."""
    return Path(shutil.copytree(home / "denoiser", tmp_path / "damaged"))


# --- the process itself


def test_help_is_quick_and_loads_neither_torch_nor_transformers():
    code = """
import sys
from edlm.cli import main
sys.argv = ["edlm", "--help"]
try:
    main()
finally:
    sys.exit(bool({"torch", "transformers", "datasets", "gradio", "PIL"} & sys.modules.keys()))
"""
    seconds = []
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code], env=ENV, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        seconds.append(usage.ru_utime + usage.ru_stime)
    assert min(seconds) < 0.5, seconds


def test_sampling_never_loads_transformers(home):
    code = f"""
import sys
from edlm.cli import main
sys.argv = ["edlm", "sample", "--denoiser", {str(home / "denoiser")!r}, "--steps", "2"]
try:
    main()
finally:
    print(sorted({{"torch", "transformers", "datasets", "accelerate"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV, timeout=60)
    text, loaded = done.stdout.splitlines()
    assert len(text) == 16 and loaded == "['torch']"


@pytest.mark.parametrize(
    "words", [["data", "prepare", "--source", "nowhere"], ["sample", "--nun", "3"], ["sample", "--steps", "0"]]
)
def test_a_mistake_is_exit_code_two_of_a_real_process(words):
    done = subprocess.run([sys.executable, "-m", "edlm", *words], capture_output=True, text=True, env=ENV, timeout=60)
    assert_refused(Done(done.returncode, done.stdout, done.stderr))


def test_version_and_help_of_every_command_print(edlm):
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", succeed(edlm("--version")))
    for words in (["train", "denoiser"], ["train", "ar"], ["sample"], ["evaluate", "likelihood"], ["data", "prepare"]):
        assert "Usage: edlm " + " ".join(words) in succeed(edlm(*words, "--help"))


def test_a_missing_extra_is_named(edlm, monkeypatch):
    monkeypatch.setattr("edlm.extras.find_spec", lambda module: None)
    done = edlm("train", "ar", "--dry-run")
    assert_refused(done, "needs transformers, accelerate", "pip install 'energy-diffusion-lm[train]'")


# --- data


def test_data_prepare_describes_every_split_as_json(edlm, home):
    options = ["--source", home / "text.txt", "--test", "10%", "--length", 32, "--cache", home / "cache"]
    about = json.loads(succeed(edlm("data", "prepare", *options, "--json")))
    assert (about["vocab_size"], about["unit"], about["length"]) == (27, "character", 32)
    assert list(about["splits"]) == ["train", "test"]
    assert about["splits"]["train"]["end_token"] == about["splits"]["test"]["first_token"]
    assert re.search(r"^splits\.test\.num_blocks +\d+$", succeed(edlm("data", "prepare", *options)), re.MULTILINE)


def test_standard_input_is_a_source(tmp_path):
    words = ["data", "prepare", "--source", "-", "--length", "4", "--cache", tmp_path, "--json"]
    command = [sys.executable, "-m", "edlm", *map(str, words)]
    done = subprocess.run(command, input="some text", capture_output=True, text=True, env=ENV, timeout=60)
    assert json.loads(done.stdout)["splits"]["train"]["num_tokens"] == 9


@pytest.mark.parametrize(
    ("text", "options", "phrases"),
    [
        ("", [], ["holds no text", "name one that does"]),
        ("Hello, World", [], ["has 'H' at character 0", "set normalise"]),
        ("abc", ["--length", 5], ["not enough for one block", "at most 3"]),
        ("abc", ["--validation", "5"], ["lacks its unit", "'5M characters'"]),
        ("abc", ["--length", "long"], ["--length", '"long"', "int"]),
        ("abc", ["--length", "2.5"], ["--length must be whole, got 2.5"]),
        ("abc", ["--tokenizer", "charcters"], ["did you mean 'characters'?"]),
        ("abc", ["--tokenizer", "bpe:12"], ["must be at least 257", "got 12"]),
    ],
)
def test_unusable_text_and_settings_of_data_are_refused(edlm, tmp_path, text, options, phrases):
    (tmp_path / "text.txt").write_text(text)
    for source in (tmp_path / "text.txt", f"text8:{tmp_path / 'text.txt'}"):
        done = edlm("data", "prepare", "--source", source, "--cache", tmp_path / "cache", *options)
        assert_refused(done, *(phrases if source == tmp_path / "text.txt" else []))


def test_text8_refuses_other_characters_and_says_where(edlm, tmp_path):
    (tmp_path / "text8").write_text("anarchism originated As")
    done = edlm("data", "prepare", "--source", f"text8:{tmp_path / 'text8'}", "--cache", tmp_path / "cache")
    assert_refused(done, "has 'A' at character 21", "keep to a-z and space")


def test_a_source_that_does_not_exist_is_refused_with_the_choices(edlm, tmp_path):
    assert_refused(edlm("data", "prepare", "--source", "nowhere.txt"), "does not exist; choose text8, text8:PATH")
    assert_refused(edlm("data", "prepare", "--source", "tex8"), "did you mean 'text8'?")
    assert_refused(edlm("data", "prepare", "--sorce", "text8"), "--sorce", "Did you mean --source?")


def test_a_cache_that_cannot_be_written_is_refused(edlm, home):
    done = edlm("data", "prepare", "--source", home / "text.txt", "--cache", home / "text.txt" / "cache")
    assert_refused(done, "cannot write to the cache", "$EDLM_CACHE")


# --- sample


def test_samples_print_as_text_or_as_json_with_their_settings(edlm, home):
    options = ["sample", "--denoiser", home / "denoiser", "--num", 3, "--steps", 4, "--prompt", "the "]
    lines = succeed(edlm(*options)).splitlines()
    report = json.loads(succeed(edlm(*options, "--json")))
    assert [sample["text"] for sample in report["samples"]] == lines and len(lines) == 3
    assert all(len(line) == 16 and line.startswith("the ") for line in lines)
    assert report["settings"].items() >= {"steps": 4, "seed": 0, "kind": "denoiser", "prompt": "the "}.items()
    assert all(0 < sample["denoiser_evaluations"] <= 4 for sample in report["samples"])


@pytest.mark.parametrize("kind", ["denoiser", "ar"])
def test_a_batch_draws_what_its_sequences_draw_alone(edlm, home, kind):
    options = ["sample", f"--{kind}", home / kind, "--steps", 4, "--seed", 7]
    together = succeed(edlm(*options, "--num", 5)).splitlines()
    in_pairs = succeed(edlm(*options, "--num", 5, "--batch-size", 2)).splitlines()
    alone = [succeed(edlm(*options, "--first", i)).strip("\n") for i in range(5)]
    assert together == in_pairs == alone and len(set(alone)) == 5


def test_the_suffix_of_out_decides_the_form(edlm, home, tmp_path):
    options = ["sample", "--ar", home / "ar", "--num", 2]
    lines = succeed(edlm(*options)).splitlines()
    for suffix in ("txt", "json", "jsonl"):
        assert succeed(edlm(*options, "--out", tmp_path / f"a.{suffix}")) == ""
    assert (tmp_path / "a.txt").read_text().splitlines() == lines
    assert [s["text"] for s in json.loads((tmp_path / "a.json").read_text())["samples"]] == lines
    assert [json.loads(line)["text"] for line in (tmp_path / "a.jsonl").read_text().splitlines()] == lines


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--num", 0], ["num must be at least 1, got 0"]),
        (["--steps", 0], ["steps must be at least 1, got 0"]),
        (["--temperature", 0], ["temperature must be positive, got 0.0"]),
        (["--temperature", "hot"], ["--temperature", '"hot"', "float"]),
        (["--batch-size", 0], ["batch-size must be at least 1, got 0"]),
        (["--first", -1], ["first must be at least 0, got -1"]),
        (["--length", 0], ["length must be at least 1, got 0"]),
        (["--prompt", "a" * 16], ["the prompt has 16 tokens, but a sequence only 16", "shorten"]),
        (["--prompt", "the End"], ["--prompt has 'E' at character 4", "the model's vocabulary"]),
        (["--stepz", 3], ["--stepz", "Did you mean --steps?"]),
        (["--device", "gpu"], ["--device", '"gpu"', '"cuda"']),
    ],
)
def test_settings_of_sampling_that_cannot_work_are_refused(edlm, home, options, phrases):
    assert_refused(edlm("sample", "--denoiser", home / "denoiser", *options), *phrases)


def test_out_is_checked_before_anything_is_drawn(edlm, home, tmp_path):
    options = ["sample", "--denoiser", home / "denoiser", "--out"]
    assert_refused(edlm(*options, tmp_path / "missing" / "a.txt"), "there is no folder", "make it first")
    assert_refused(edlm(*options, home / "text.txt" / "a.txt"), "there is no folder")
    assert_refused(edlm(*options, tmp_path), "is a folder; name a file in it")


@pytest.mark.parametrize("command", [["sample"], ["evaluate", "likelihood"]])
def test_exactly_one_model_of_the_right_kind_is_needed(edlm, home, command):
    assert_refused(edlm(*command), "either --denoiser DIR or --ar DIR")
    assert_refused(edlm(*command, "--denoiser", home / "denoiser", "--ar", home / "ar"), "either --denoiser DIR")
    assert_refused(edlm(*command, "--ar", home / "denoiser"), "type edlm-denoiser; --denoiser takes")
    assert_refused(edlm(*command, "--denoiser", home / "ar"), "type edlm-autoregressive; --denoiser takes")
    assert_refused(edlm(*command, "--ar", home / "nowhere"), "no model folder at")


# --- damaged models


def test_a_tokenizer_of_another_size_is_refused(edlm, damaged):
    train_bpe(["some text"], 257).save(damaged)
    phrases = ["the tokenizer has 257 tokens but the model 27", "put the tokenizer the model was trained with"]
    assert_refused(edlm("sample", "--denoiser", damaged), *phrases)


def test_truncated_weights_are_refused(edlm, damaged):
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert_refused(edlm("sample", "--denoiser", damaged), "model.safetensors is damaged or truncated", "copy the model")
    weights.unlink()
    assert_refused(edlm("sample", "--denoiser", damaged), "model.safetensors is missing")


def test_a_damaged_config_is_refused(edlm, damaged):
    (damaged / "config.json").write_text('{"model_type": ')
    assert_refused(edlm("info", damaged), "config.json is not valid JSON", "copy the model again")
    (damaged / "config.json").write_text("[]")
    assert_refused(edlm("info", damaged), "must hold a JSON object, got list")
    (damaged / "config.json").unlink()
    assert_refused(edlm("info", damaged), "has no config.json: it is not a model folder")


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"widht": 32}, "unknown key 'widht'; did you mean 'width'?"),
        ({"width": "32"}, "width must be of type int, got '32'"),
        ({"width": 64}, "config and weights do not belong together"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(edlm, damaged, change, phrase):
    config = json.loads((damaged / "config.json").read_text())
    config["transformer"] |= change
    (damaged / "config.json").write_text(json.dumps(config))
    assert_refused(edlm("sample", "--denoiser", damaged), phrase)


def test_a_model_without_a_tokenizer_can_neither_write_nor_read_text(edlm, damaged, data):
    (damaged / "tokenizer.json").unlink()
    assert_refused(edlm("sample", "--denoiser", damaged), "has no tokenizer.json")
    assert_refused(edlm("evaluate", "likelihood", "--denoiser", damaged, *data), "has no tokenizer.json; put the")


# --- evaluate


@pytest.mark.parametrize(("kind", "quantity"), [("ar", "exact NLL"), ("denoiser", "upper bound (NELBO), continuous")])
def test_a_likelihood_comes_with_its_whole_protocol(edlm, home, data, kind, quantity):
    result = json.loads(succeed(edlm("evaluate", "likelihood", f"--{kind}", home / kind, *data, "--json")))
    assert 4 < result["bits"] < 8 and 0 < result["standard_error"] < 1
    assert result["protocol"] == "certified" and result["quantity"].startswith(quantity)
    assert result["unit"] == "character" and result["precision"] == "float32"
    assert result["num_tokens"] == result["num_blocks"] * result["block_length"] > 0
    assert result["seed"] == (0 if kind == "denoiser" else None) and result["steps"] is None
    about = result["data"]
    assert about["split"] == "test" and about["special_tokens"] == "none" and "not overlapping" in about["blocks"]
    assert about["splits"]["test"]["source"].endswith("text.txt")


@pytest.mark.parametrize("kind", ["denoiser", "ar"])
def test_the_batch_size_does_not_change_a_likelihood(edlm, home, data, kind):
    options = ["evaluate", "likelihood", f"--{kind}", home / kind, *data, "--json"]
    one, many = (json.loads(succeed(edlm(*options, "--batch-size", size))) for size in (1, 32))
    assert one["bits"] == pytest.approx(many["bits"], abs=1e-6) and one["data"] == many["data"]


def test_few_steps_have_another_bound_than_continuous_time(edlm, home, data):
    options = ["evaluate", "likelihood", "--denoiser", home / "denoiser", *data, "--json"]
    four, limit = (json.loads(succeed(edlm(*options, "--steps", steps))) for steps in (4, 0))
    assert (four["steps"], limit["steps"]) == (4, None) and four["bits"] != limit["bits"]
    assert four["quantity"] == "upper bound (NELBO), T = 4"


def test_a_person_reads_the_result_in_the_first_line(edlm, home, data):
    text = succeed(edlm("evaluate", "likelihood", "--ar", home / "ar", *data, "--max-blocks", 8))
    assert re.match(r"\d\.\d{4} ± \d\.\d{4} bits per character  \(\d\.\d{4} nats, perplexity \d+\.\d{3}\)\n", text)
    assert re.search(r"^num_blocks +8$", text, re.MULTILINE) and "{" not in text


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--split", "tset"], ["no split 'tset'; choose train, validation, test"]),
        (["--steps", -1], ["steps must be at least 0, got -1"]),
        (["--batch-size", -1], ["--batch-size must not be negative, got -1"]),
        (["--max-blocks", -1], ["--max-blocks must not be negative, got -1"]),
    ],
)
def test_settings_of_evaluation_that_cannot_work_are_refused(edlm, home, data, options, phrases):
    assert_refused(edlm("evaluate", "likelihood", "--ar", home / "ar", *data, *options), *phrases)


def test_evaluation_needs_to_know_its_text(edlm, home):
    options = ["evaluate", "likelihood", "--ar", home / "ar"]
    assert_refused(edlm(*options), "does not say what it was trained on", "--data SOURCE")
    text = ["--data", home / "text.txt", "--cache", home / "cache"]
    assert_refused(edlm(*options, *text), "no split 'test'; set test to a source or an amount such as 5%")


# --- info


def test_info_lists_the_presets_or_a_model(edlm, home):
    presets = json.loads(succeed(edlm("info", "--json")))
    assert presets["preset small"].startswith("85,061,403 parameters (12 layers, 12 heads, width 768")
    assert re.search(r"^preset nano +4,747,035 parameters", succeed(edlm("info")), re.MULTILINE)
    model = json.loads(succeed(edlm("info", home / "denoiser", "--json")))
    assert (model["type"], model["length"], model["schedule"]) == ("edlm-denoiser", 16, "log-linear")
    assert_refused(edlm("info", home / "nowhere"), "no model folder at")
    assert_refused(edlm("info", "--vocab-size", 0), "vocab_size must be at least 1, got 0")


# --- train


@pytest.mark.parametrize("recipe", sorted(path.name for path in CONFIGS.glob("*.yaml")))
@pytest.mark.slow
def test_every_recipe_can_be_rehearsed(edlm, request, recipe):
    options = ["--data.length", 32] if "paper" in recipe else []  # the paper's size, on short sequences
    if recipe.startswith(("openwebtext", "smollm2")):  # whose tokenizers are not on every machine
        options += ["--data.tokenizer", request.getfixturevalue("shared") / "data" / "gpt2_bpe"]
    report = json.loads(
        succeed(edlm("train", "denoiser", "--config", CONFIGS / recipe, *options, "--dry-run", "--json"))
    )
    recorded = yaml.safe_load((CONFIGS / recipe).read_text())
    assert report["run"].startswith(f"{recorded['run']['steps']:,} steps")
    assert report["batch"].startswith(f"{recorded['run']['batch_size']} x ") and "hours" in report["time here"]


def test_a_flag_wins_over_the_recipe(edlm, tmp_path):
    options = ["--config", CONFIGS / "quickstart.yaml", *TINY, "--run.steps", 7, "--dry-run", "--json"]
    report = json.loads(succeed(edlm("train", "ar", *options)))
    assert report["run"].startswith("7 steps") and report["batch"].startswith("32 x 16 tokens")


def test_the_saved_run_can_be_given_back_as_a_recipe(edlm, train, home, tmp_path):
    options = ["--run.steps", 1, "--run.batch-size", 2, "--run.eval-every", 0, "--run.save-every", 1]
    first = json.loads(succeed(edlm(*train, *options, "--run.out", tmp_path / "run", "--json")))
    again = succeed(edlm("train", "denoiser", "--config", tmp_path / "run" / "model" / "run.yaml", "--json"))
    assert json.loads(again) == first and first["is_finished"] and first["step"] == 1
    result = succeed(edlm("evaluate", "likelihood", "--denoiser", tmp_path / "run", "--split", "validation", "--json"))
    assert json.loads(result)["data"]["splits"]["validation"]["source"] == str(home / "text.txt")


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("data: {sorce: text8}", ["[data][sorce]", "recipe.yaml", "Did you mean --data.source?"]),
        ("dta: {source: text8}", ["[dta][source]", "Did you mean --data.source?"]),
        ("- data\n- model", ["must hold sections of settings, got list"]),
        ("data", ["must hold sections of settings, got str"]),
        ("run: 5", ["run must be a section of settings, got 5"]),
        ("steps: 5", ["steps must be a section of settings, got 5"]),
        ("run: [", ["is not valid YAML"]),
        ("run: {steps: many}", ["[run][steps]", '"many"', "int"]),
        ("run: {steps: 2.5}", ["[run][steps]", "must be whole, got 2.5"]),
        ("run: {steps: [1, 2]}", ["[run][steps]", "int"]),
        ("run: {compile: 7}", ["[run][compile]", "bool"]),
        ("run: {steps: 0}", ["run.steps must be at least 1, got 0"]),
        ("optim: {learning_rate: fast}", ["[optim][learning_rate]", "float"]),
        ("optim: {schedule: cosin}", ["[optim][schedule]", 'Did you mean "cosine"?']),
    ],
)
def test_a_recipe_with_a_mistake_is_refused(edlm, tmp_path, text, phrases):
    (tmp_path / "recipe.yaml").write_text(text)
    assert_refused(edlm("train", "denoiser", "--config", tmp_path / "recipe.yaml", "--dry-run"), *phrases)


def test_a_recipe_that_is_no_file_is_refused(edlm, tmp_path):
    assert_refused(edlm("train", "ar", "--config", tmp_path / "none.yaml"), "none.yaml: No such file or directory")
    assert_refused(edlm("train", "ar", "--config", tmp_path), "Is a directory")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert_refused(edlm("train", "ar", "--config", tmp_path / "binary.yaml"), "is not valid YAML")


def test_an_empty_section_of_a_recipe_changes_nothing(edlm, tmp_path):
    (tmp_path / "recipe.yaml").write_text("data:\nrun: {steps: 3}\n")
    report = succeed(edlm("train", "ar", "--config", tmp_path / "recipe.yaml", *TINY, "--dry-run", "--json"))
    assert json.loads(report)["run"].startswith("3 steps")


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--run.batch-size", 10, "--run.micro-batch-size", 4], ["multiple of run.micro_batch_size", "got 10 and 4"]),
        (["--run.stepz", 3], ["--run.stepz", "Did you mean --run.steps?"]),
        (["--run.steps", "1.5"], ["--run.steps must be whole, got 1.5"]),
        (["--model.preset", "huge"], ["unknown preset 'huge'; choose from nano, tiny, small, medium"]),
        (["--model.dropout", 1], ["dropout must be in [0, 1), got 1.0"]),
        (["--diffusion.schedule", "cos"], ["unknown schedule 'cos'; choose log-linear, linear, cosine or polynomial"]),
        (["--model.init", "./nowhere"], ["no model folder at ./nowhere"]),
    ],
)
def test_settings_of_training_that_cannot_work_are_refused(edlm, train, tmp_path, options, phrases):
    assert_refused(edlm(*train, "--run.out", tmp_path / "run", *options), *phrases)
    assert not (tmp_path / "run" / "model").exists()


def test_a_run_that_cannot_be_written_is_refused_at_once(edlm, train, home):
    assert_refused(edlm(*train, "--run.out", home / "text.txt" / "run"), "cannot be written", "choose another folder")
    assert_refused(edlm(*train, "--run.out", home / "text.txt"), "is a file; choose a folder")
