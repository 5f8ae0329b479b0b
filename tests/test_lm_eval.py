"""Our models in lm-evaluation-harness, on tasks that are files of this test."""

import json
from types import SimpleNamespace

import pytest
import torch
import yaml

import edlm as library
from edlm.errors import UserError
from edlm.harness_config import HarnessConfig
from test_cli import assert_refused, edlm, home, one_thread, succeed  # noqa: F401
from toys import tiny_autoregressive, tiny_denoiser

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
from edlm.greedy import is_greedy
from edlm.harness import HarnessModel, cut_at

DENOISER, AR = tiny_denoiser(), tiny_autoregressive(1)
QUESTIONS = [
    {"question": "the cat", "choices": [" sat", " qqq"], "label": 0, "answer": "x"},
    {"question": "a dog and a", "choices": [" pig", " zzz"], "label": 1, "answer": "y"},
]


def requests(*arguments):
    return [SimpleNamespace(args=each) for each in arguments]


@pytest.fixture
def tasks(tmp_path):
    """A folder with a multiple choice, a perplexity and a generation task over two local lines."""
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    files = {"data_files": {"test": str(tmp_path / "lines.jsonl")}, "cache_dir": str(tmp_path / "cache")}
    common = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test", "target_delimiter": ""}
    forms = {
        "tiny_choice": {
            "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
            "doc_to_target": "label", "metric_list": [{"metric": "acc"}],
        },
        "tiny_perplexity": {
            "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        },
        "tiny_writing": {
            "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": ["e"], "max_gen_toks": 6}, "metric_list": [{"metric": "exact_match"}],
        },
    }  # fmt: skip
    for name, form in forms.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"task": name} | common | form))
    return tmp_path


# --- the model as the harness sees it


@pytest.mark.parametrize("energy", [None, "ar"])
def test_a_likelihood_is_the_score_of_the_continuation(energy, home, monkeypatch):  # noqa: F811
    monkeypatch.setattr("edlm.harness.key_of", lambda ids: 0)
    energy = f"ar:{home / 'ar'}" if energy else None
    settings = {"steps": 4, "num_draws": 4, "inner": 2, "seed": 1}
    model = HarnessModel(DENOISER, energy=energy, **settings)
    found = model.loglikelihood(requests(("the cat", " sat"), ("", "dog")))
    scores = library.score(DENOISER, [" sat", "dog"], given=["the cat", ""], energy=energy, **settings)
    assert [value for value, _ in found] == pytest.approx([s.log_likelihood for s in scores])
    assert all(type(greedy) is bool for _, greedy in found)


def test_continuations_of_one_context_share_their_masks_and_contexts_do_not(monkeypatch):
    seen = []
    draw = lambda *args, keys, **_: seen.append(list(keys)) or [(0.0, 0.0)] * len(keys)  # noqa: E731
    monkeypatch.setattr("edlm.harness.score_ids", draw)
    model = HarnessModel(DENOISER)
    model.loglikelihood(requests(("the cat", " sat"), ("the cat", " ran"), ("a dog", " sat")))
    model.loglikelihood_rolling(requests(("the cat",), ("a dog",)))
    (one, two, three), (four, five) = seen
    assert one == two and three != one and four != five


def test_a_space_before_the_continuation_counts_to_it():
    model = HarnessModel(AR)
    spaced, moved = model.loglikelihood(requests(("the cat ", "sat"), ("the cat", " sat")))
    assert spaced == moved


def test_a_whole_text_is_scored_in_windows():
    text = "the people of the united states"
    (value,) = HarnessModel(AR).loglikelihood_rolling(requests((text,)))
    assert value == pytest.approx(library.score(AR, text, overlap=8)[0].log_likelihood)
    (value,) = HarnessModel(AR, overlap=4).loglikelihood_rolling(requests((text,)))
    assert value == pytest.approx(library.score(AR, text, overlap=4)[0].log_likelihood)


@pytest.mark.parametrize("model", [AR, DENOISER])
def test_texts_are_drawn_after_the_prompt_up_to_the_stop_string(model):
    harness = HarnessModel(model, steps=4, seed=3)
    wishes = {"until": [], "max_gen_toks": 5}
    first, second = harness.generate_until(requests(("the cat ", wishes), ("the cat ", wishes)))
    assert len(first) == len(second) == 5 and first != second
    (drawn,) = library.sample(model, prompt="the cat ", length=13, steps=4, seed=3)
    assert drawn.text == "the cat " + first
    (cut,) = harness.generate_until(requests(("the cat ", wishes | {"until": first[2]})))
    assert cut == first[: first.index(first[2])]
    (long,) = harness.generate_until(requests(("the cat and the dog", wishes)))  # longer than the model
    assert len(long) == 5


def test_the_first_stop_string_counts():
    assert cut_at("one two three", {"until": ["three", " two", "zzz", ""]}) == "one"
    assert cut_at("one", {"until": ["x"]}) == "one" and cut_at("one", {}) == "one"


@pytest.mark.parametrize("model", [AR, DENOISER])
def test_what_is_drawn_greedily_is_greedy(model):
    tokenizer = model.tokenizer
    given = tokenizer.encode("the cat")
    tokens = list(given)
    for i in range(3):  # from left to right, masks behind
        if model is AR:
            every = torch.tensor([[*tokens, v] for v in range(27)])
            tokens.append(int(model(every)[:, -1].argmax()))
        else:
            xt = torch.tensor([[*tokens, *[model.mask_id] * (3 - i)]])
            tokens.append(int(model(xt)[0].argmax()))
    text = tokenizer.encode(tokenizer.decode(tokens[len(given) :]))
    assert is_greedy(model, (given, text), 8)
    other = text.copy()
    other[2] = (other[2] + 1) % 27
    assert not is_greedy(model, (given, other), 8)


def test_text_outside_the_vocabulary_is_refused_or_normalised():
    with pytest.raises(UserError, match=r"a task's text has 'T'.*set normalise"):
        HarnessModel(AR).loglikelihood(requests(("The cat", " sat")))
    harness = HarnessModel(AR, normalise=True)
    plain = HarnessModel(AR).loglikelihood(requests(("the cat", " sat")))
    assert harness.loglikelihood(requests(("The cat:", " Sat!"))) == plain
    with pytest.raises(UserError, match="finds nothing"):
        harness.loglikelihood(requests(("The cat", "!")))
    assert len(harness.generate_until(requests(("The cat: ", {"max_gen_toks": 3})))[0]) == 3


def test_settings_are_checked_before_anything_is_loaded():
    for settings in ({"num_draws": 0}, {"steps": -1}, {"window": 2.0}, {"temperature": 0.0}, {"overlap": -1}):
        with pytest.raises(UserError, match=r"must be"):
            HarnessConfig(**settings)
    with pytest.raises(UserError, match="unknown option 'step'"):
        HarnessModel(AR, step=3)


def test_the_harness_knows_the_model_by_name(home, tasks):  # noqa: F811
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    arguments = f"model={home / 'ar'},seed=1"
    found = simple_evaluate("edlm", arguments, tasks=["tiny_choice"], task_manager=manager, bootstrap_iters=0)
    assert 0 <= found["results"]["tiny_choice"]["acc,none"] <= 1


# --- the command


def test_the_command_runs_tasks_of_every_form(edlm, home, tasks):  # noqa: F811
    words = ["--tasks", "tiny_choice,tiny_perplexity,tiny_writing", "--include-path", tasks, "--num-draws", 4]
    words += ["--steps", 1, "--inner", 2, "--json", "--out", tasks / "results.json"]
    energy = f"ar:{home / 'ar'}"
    done = edlm("lm-eval", "--denoiser", home / "denoiser", "--energy", energy, *words)
    found = json.loads(succeed(done))
    assert found["results"].keys() == {"tiny_choice", "tiny_perplexity", "tiny_writing"}
    scores = library.score(
        home / "denoiser", [q["question"] for q in QUESTIONS], energy=energy, num_draws=4, steps=1, inner=2
    )
    bits = sum(s.bits_per_token * s.num_tokens for s in scores) / sum(s.num_tokens for s in scores)
    # One byte a token here; one step, so that masks are no longer random and only candidates are.
    assert found["results"]["tiny_perplexity"]["bits_per_byte,none"] == pytest.approx(bits, rel=0.1)
    assert found["settings"]["num_draws"] == 4 and found["n-samples"]["tiny_choice"]["effective"] == 2
    assert len(json.loads((tasks / "results.json").read_text())["samples"]["tiny_writing"]) == 2


def test_the_command_prints_a_table(edlm, home, tasks):  # noqa: F811
    done = edlm("lm-eval", "--ar", home / "ar", "--tasks", "tiny_choice", "--include-path", tasks, "--limit", 1)
    assert "|tiny_choice|" in succeed(done) and "|acc" in done.out


def test_the_command_refuses_with_a_remedy(edlm, home, tasks, monkeypatch):  # noqa: F811
    run = lambda *words: edlm("lm-eval", "--ar", home / "ar", *words)  # noqa: E731
    assert_refused(edlm("lm-eval", "--tasks", "x"), "name one model")
    assert_refused(run("--tasks", "x", "--energy", "ar:x"), "an energy corrects a denoiser")
    assert_refused(run("--tasks", "x", "--include-path", tasks / "none"), "there is no such folder")
    assert_refused(run("--tasks", "tiny_choice", "--include-path", tasks, "--num-draws", 0), "must be at least 1")
    monkeypatch.setattr("lm_eval.tasks.TaskManager", small_manager())
    assert_refused(run("--tasks", "no_such_task", "--include-path", tasks), "no task called no_such_task", "lm-eval ls")
    monkeypatch.setattr("edlm.extras.find_spec", lambda name: None)
    assert_refused(run("--tasks", "x"), "pip install 'energy-diffusion-lm[lm-eval]'")


def small_manager():
    """The harness's own tasks are thousands of files; reading them takes longer than all of this."""
    from lm_eval.tasks import TaskManager

    return lambda include_path, include_defaults=False: TaskManager(include_path=include_path, include_defaults=False)
