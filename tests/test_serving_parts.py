"""What the server is made of, piece by piece and in this process."""

import queue
from dataclasses import replace

import pytest
import torch

from edlm.benchmarks.serving import Load, bench_serving
from edlm.commands.serve import serve
from edlm.energy import StepEnergy, ZeroEnergy
from edlm.errors import UserError
from edlm.generation import generate
from edlm.listening import is_loopback
from edlm.models.energy_network import energy_from_denoiser
from edlm.sample_config import SampleConfig
from edlm.serving.config import ServeConfig
from edlm.serving.transcript import Transcript, with_holes
from edlm.tokenization import CharacterTokenizer, train_bpe
from toys import tiny_autoregressive, tiny_denoiser

for extra in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(extra)
from edlm.serving.batcher import Batcher, Ticket  # noqa: E402
from edlm.serving.batches import importance_of  # noqa: E402
from edlm.serving.catalogue import ServedModel, load_catalogue  # noqa: E402
from edlm.serving.metrics import Metrics  # noqa: E402
from edlm.serving.orders import make_order  # noqa: E402
from edlm.serving.problems import BusyError, RequestError, StoppingError  # noqa: E402
from edlm.serving.protocol import CompletionRequest  # noqa: E402

LETTERS = CharacterTokenizer()


def stream(tokenizer, text, *, sizes, prompt="", stops=()):
    """What is sent while a text becomes final token by token, and the transcript."""
    transcript = Transcript(tokenizer, tokenizer.encode(prompt).tolist(), stops)
    tokens = tokenizer.encode(text).tolist()
    parts = []
    for size in [*sizes, len(tokens)]:
        if transcript.finish is None:
            parts.append(transcript.extend(tokens[:size], is_all=size == len(tokens)))
    return parts, transcript


# --- transcripts


def test_text_is_sent_as_it_becomes_final():
    parts, transcript = stream(LETTERS, "abcdef", sizes=[0, 2, 2, 5], prompt="xy")
    assert parts == ["", "ab", "", "cde", "f"] and transcript.finish == "length" and transcript.num_tokens == 6


def test_what_may_become_a_stop_sequence_is_kept_back():
    parts, transcript = stream(LETTERS, "one two too", sizes=range(12), stops=["too", "twice"])
    assert "".join(parts) == "one two " and transcript.finish == "stop" and transcript.num_tokens == 8
    assert all(not "".join(parts[:n]).endswith("t") for n in range(5))  # "one t" could go on as "one too"
    parts, _ = stream(LETTERS, "a to", sizes=range(4), stops=["too"])
    assert "".join(parts) == "a to"  # nothing is lost if it does not


def test_half_a_character_is_kept_back_until_it_is_whole():
    tokenizer = train_bpe(["plain text"], 257)  # single bytes
    text = "a€𝄞é"
    parts, transcript = stream(tokenizer, text, sizes=range(10), prompt="né")
    assert "".join(parts) == text and "\ufffd" not in "".join(parts) and transcript.num_tokens == 10


def test_the_end_of_a_document_ends_the_text():
    tokenizer = train_bpe(["plain text"], 257)
    transcript = Transcript(tokenizer, [])
    tokens = [*tokenizer.encode("ab").tolist(), tokenizer.eos_id, *tokenizer.encode("cd").tolist()]
    assert transcript.extend(tokens, is_all=False) == "ab" and transcript.finish == "stop"
    assert transcript.num_tokens == 2


def test_a_partly_masked_text_is_written_with_holes():
    assert with_holes(LETTERS, [27, 1, 2, 27, 27, 27, 3], 27) == "[MASK]ab[MASK:3]c"


# --- orders and batches


def served(energies=None):
    return {"m": ServedModel("m", tiny_denoiser(length=64), energies or {}, "edlm-0")}


def order(catalogue, config=ServeConfig(), **fields):
    return make_order(CompletionRequest(model="m", **fields), catalogue, config)


def draw(batcher, tasks):
    """The texts of all tasks, or the problem of the first that failed."""
    news, texts, left = queue.Queue(), [""] * len(tasks), len(tasks)
    batcher.submit(tasks, Ticket(news.put))
    while left:
        progress = news.get(timeout=20)
        if progress.problem is not None:
            return progress.problem
        texts[progress.index] += progress.text
        left -= progress.finish is not None
    return texts


def test_lengths_are_rounded_up_but_not_beyond_the_model():
    catalogue = served()
    lengths = [len(order(catalogue, prompt="a", max_tokens=n).tasks[0].fixed) for n in (1, 31, 32, 63)]
    assert lengths == [32, 32, 64, 64]
    exact = order(catalogue, ServeConfig(round_to=1), prompt="a", suffix="b", max_tokens=5).tasks[0]
    assert exact.fixed.tolist() == [1, 27, 27, 27, 27, 27, 2] and (exact.start, exact.stop) == (1, 6)


def test_tasks_share_a_batch_unless_their_laws_differ():
    catalogue = served({"e": ZeroEnergy()})
    key = order(catalogue).tasks[0].key
    same = [{"steps": 3}, {"seed": 1}, {"stop": "a"}, {"prompt": "abc"}, {"candidates": 3}, {"energy": "none"}]
    other = [{"temperature": 0.5}, {"max_tokens": 40}, {"energy": "e"}]
    assert all(order(catalogue, **fields).tasks[0].key == key for fields in same)
    assert all(order(catalogue, **fields).tasks[0].key != key for fields in other)


class BrokenEnergy:
    num_passes = 1

    def __call__(self, x0, xt, t, log_proposal):
        return torch.full_like(log_proposal, torch.nan)


def test_a_batch_that_fails_takes_no_other_with_it():
    catalogue, batcher = served({"broken": BrokenEnergy()}), Batcher(8, 8, Metrics())
    problem = draw(batcher, order(catalogue, energy="broken").tasks)
    assert problem.status == 500 and "UserError" in str(problem)
    assert len(draw(batcher, order(catalogue, steps=2).tasks)[0]) == 16
    batcher.close(timeout=20)


def test_a_batcher_that_stops_finishes_what_it_accepted_and_refuses_the_rest():
    catalogue, batcher, news = served(), Batcher(1, 4, Metrics()), queue.Queue()
    tasks = order(catalogue, n=3, steps=4).tasks
    batcher.submit(tasks, Ticket(news.put))
    with pytest.raises(BusyError, match="waiting already; try again in 1 s"):
        batcher.submit([*tasks, *tasks], Ticket(news.put))
    batcher.refuse_new()
    with pytest.raises(StoppingError, match="the server is stopping"):
        batcher.submit(tasks, Ticket(news.put))
    batcher.close(timeout=20)
    finished = {progress.index for progress in list(news.queue) if progress.finish}
    assert finished == {0, 1, 2} and batcher.num_active == batcher.num_waiting == 0


# --- what is served, and where


def test_models_and_energies_are_called_by_names_that_show_no_folder(tmp_path):
    tiny_denoiser().save_pretrained(tmp_path / "mine")
    tiny_autoregressive().save_pretrained(tmp_path / "causal")
    spec = f"coar:{tmp_path / 'causal'}"
    catalogue = load_catalogue(str(tmp_path / "mine"), "text8-nano-ar", [f"good={spec}", spec])
    assert list(catalogue) == ["mine", "text8-nano-ar"] and list(catalogue["mine"].energies) == ["good", spec]
    assert catalogue["mine"].fingerprint != catalogue["text8-nano-ar"].fingerprint


def test_a_masked_model_from_elsewhere_is_served_too(tmp_path):
    pytest.importorskip("transformers")
    from foreign import WORDS, save_masked

    catalogue = load_catalogue(str(save_masked(tmp_path / "m")), "", [])
    batcher, config = Batcher(8, 8, Metrics()), ServeConfig(round_to=1)
    tasks = order(catalogue, config, prompt=WORDS[0], max_tokens=8, n=3, seed=1, steps=8).tasks
    samples = generate(catalogue["m"].model, 3, SampleConfig(steps=8, seed=1, length=9), prompt=WORDS[0])
    assert draw(batcher, tasks) == [sample.text.removeprefix(WORDS[0]) for sample in samples]
    batcher.close(timeout=20)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("", "", []), "nothing to serve"),
        (("", "text8-nano-ar", ["ar:text8-nano-ar"]), "--energy corrects a denoiser"),
        (("text8-nano-ar", "", []), "--denoiser takes edlm-denoiser"),
        (("text8-nano-denoiser", "", ["none=ar:text8-nano-ar"]), "this name is taken"),
    ],
)
def test_a_catalogue_that_makes_no_sense_is_refused(names, message):
    with pytest.raises(UserError, match=message):
        load_catalogue(*names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"port": 70000}, "port must be at most 65535, got 70000"),
        ({"batch_size": 0}, "batch-size must be at least 1, got 0"),
        ({"steps": 300}, r"steps must be at most max-steps \(256\), got 300"),
        ({"max_n": 300}, r"max-n must be at most queue \(256\), got 300"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(UserError, match=message):
        replace(ServeConfig(), **change)


def test_listening_beyond_this_machine_without_a_key_is_warned_of(monkeypatch, capsys):
    def no_listening(host, port):
        raise UserError("not in a test")

    monkeypatch.setattr("edlm.listening.listen", no_listening)
    for settings, key, is_warned in (("0.0.0.0", "", True), ("0.0.0.0", "key", False), ("127.0.0.1", "", False)):
        with pytest.raises(UserError, match="not in a test"):
            serve(settings=ServeConfig(host=settings), api_key=key)
        assert ("lets other machines in, and there is no key" in capsys.readouterr().err) == is_warned
    assert is_loopback("localhost") and is_loopback("::1") and not is_loopback("example.org")


@pytest.mark.slow
def test_a_server_under_load_makes_no_error_and_every_seed_one_text():
    report = bench_serving(Load(clients=6, seconds=4, steps=2, seeds=3))
    assert report["errors"] == 0 and report["seeds_with_more_than_one_text"] == 0, report
    assert report["requests"] >= 6 and report["sequences_per_step"] > 1
    assert report["server_megabytes"]["late"] < 1.1 * report["server_megabytes"]["early"]


def test_completions_for_a_step_energy_are_refused_before_anything_is_queued():
    energy = StepEnergy(energy_from_denoiser(tiny_denoiser(length=64), target="step").eval())
    catalogue, asked = served({"steps": energy}), {"prompt": "a", "max_tokens": 8, "energy": "steps"}
    (task,) = order(catalogue, **asked).tasks
    assert importance_of(task).energy is energy
    with pytest.raises(RequestError, match="judges single steps and reads no completions"):
        order(catalogue, **asked, completions=2)
