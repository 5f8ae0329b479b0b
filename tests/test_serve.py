"""The server as clients meet it: a real process on a loopback port, and the real `openai` client."""

import collections
import contextlib
import json
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from edlm.generation import generate
from edlm.sample_config import SampleConfig
from edlm.template import HOLE
from servers import Server, running
from toys import tiny_autoregressive, tiny_denoiser

for extra in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(extra)
openai, httpx2 = pytest.importorskip("openai"), pytest.importorskip("httpx2")

KEY = "a key"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Models this small lose time with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("served")
    tiny_denoiser(length=64).save_pretrained(path / "denoiser")
    tiny_autoregressive(length=64).save_pretrained(path / "ar")
    return path


@pytest.fixture(scope="module")
def servers(folder):
    """One that anybody may use, with tight limits, and one with a key, a short queue and hardly any limit."""
    models = ["--denoiser", folder / "denoiser", "--ar", folder / "ar"]
    tight = ["--energy", f"good=ar:{folder / 'ar'}", "--max-steps", 64, "--steps", 8, "--max-n", 4, "--max-body", 20000]
    loose = ["--queue", 2, "--batch-size", 2, "--max-n", 2, "--max-steps", 10**7, "--round-to", 1]
    first = Server(folder / "open.log", *models, *tight)
    second = Server(folder / "locked.log", *models, *loose, EDLM_API_KEY=KEY)
    with running(first), running(second):
        yield first, second


@pytest.fixture(scope="module")
def server(servers):
    return servers[0]


@pytest.fixture(scope="module")
def locked(servers):
    return servers[1]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def keyed(locked):
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=KEY, max_retries=0, timeout=30) as client:
        yield client


def complete(client, prompt="to be ", model="denoiser", **fields):
    own = {name: fields.pop(name) for name in list(fields) if name in OWN}
    return client.completions.create(model=model, prompt=prompt, extra_body=own, **fields)


OWN = ("steps", "energy", "candidates", "window", "completions", "normalise", "stream_steps")


def post(server, **body):
    headers = {"Authorization": f"Bearer {KEY}"}
    return httpx2.post(f"{server.url}/v1/completions", json={"model": "denoiser"} | body, headers=headers, timeout=30)


def metric(server, name):
    text = httpx2.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} "))


def eventually(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


# --- what is drawn


def test_a_choice_is_what_the_library_draws_with_that_seed_and_index(client):
    done = complete(client, n=3, max_tokens=26, seed=5, steps=8)
    config = SampleConfig(steps=8, seed=5, length=32)
    wanted = [sample.text[6:] for sample in generate(tiny_denoiser(length=64), 3, config, prompt="to be ")]
    assert [choice.text for choice in done.choices] == wanted
    assert [choice.finish_reason for choice in done.choices] == ["length"] * 3
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (6, 78)
    assert done.edlm["seed"] == 5 and done.edlm["length"] == 32


def test_an_autoregressive_model_is_served_beside_it(client):
    done = complete(client, model="ar", n=2, max_tokens=9, seed=3)
    config = SampleConfig(seed=3, length=15)
    wanted = [sample.text[6:] for sample in generate(tiny_autoregressive(length=64), 2, config, prompt="to be ")]
    assert [choice.text for choice in done.choices] == wanted


def test_a_suffix_makes_it_fill_the_gap(client):
    one = complete(client, suffix=" or not", max_tokens=5, seed=1)
    other = complete(client, suffix=" no way", max_tokens=5, seed=1)
    assert len(one.choices[0].text) == 5 and one.choices[0].text != other.choices[0].text


def test_an_energy_chooses_among_candidates(client):
    plain, chosen = (complete(client, max_tokens=20, seed=1, energy=name, candidates=4) for name in ("none", "good"))
    assert plain.choices[0].text != chosen.choices[0].text
    assert chosen.edlm["energy"] == "good" and chosen.edlm["candidates"] == 4 and plain.edlm["energy"] is None


def test_several_prompts_and_echo(client):
    done = complete(client, prompt=["a ", "bc "], n=2, max_tokens=3, echo=True, seed=0)
    texts = [choice.text for choice in done.choices]
    assert [text[:-3] for text in texts] == ["a ", "a ", "bc ", "bc "] and [c.index for c in done.choices] == [
        0,
        1,
        2,
        3,
    ]


def test_a_stop_sequence_ends_the_text(client):
    whole = complete(client, max_tokens=26, seed=5).choices[0].text
    stop = whole[10:12]
    cut = complete(client, max_tokens=26, seed=5, stop=[stop, "never seen"])
    assert cut.choices[0].text == whole[: whole.index(stop)] and cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens == whole.index(stop)


def test_a_seed_is_chosen_and_reported_if_none_is_given(client):
    first = complete(client, max_tokens=20)
    again = complete(client, max_tokens=20, seed=first.edlm["seed"])
    assert first.choices[0].text == again.choices[0].text


def test_text_outside_the_vocabulary_is_normalised_if_asked(client):
    done = complete(client, prompt="Café, in 7 ", max_tokens=3, echo=True, normalise=True)
    assert done.choices[0].text[:-3] == "cafe in seven "


# --- streaming


@pytest.mark.parametrize("model", ["denoiser", "ar"])
def test_chunks_join_to_the_text_of_the_whole_response(client, model):
    settings = {"model": model, "n": 3, "max_tokens": 26, "seed": 5, "stop": "ab", "echo": True}
    whole = complete(client, **settings)
    texts, finish = [""] * 3, [None] * 3
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}, **settings))
    for chunk in chunks[:-1]:
        for choice in chunk.choices:
            assert finish[choice.index] is None  # nothing comes after the end
            texts[choice.index] += choice.text
            finish[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert finish == [choice.finish_reason for choice in whole.choices]
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices


def test_step_events_show_the_masks_and_agree_with_the_text(client):
    steps, text = [], ""
    for chunk in complete(client, max_tokens=26, seed=5, steps=8, stream=True, stream_steps=True):
        (choice,) = chunk.choices
        text += choice.text
        steps.append(choice.step)
        assert choice.masked_text.startswith(text)  # what is final is final
        holes = sum(int(hole[1] or 1) for hole in HOLE.finditer(choice.masked_text))
        assert holes + len(HOLE.sub("", choice.masked_text)) == 26
    assert steps == list(range(1, 9)) and choice.masked_text == text and choice.finish_reason == "length"


def test_the_python_of_the_documentation_runs(server, capsys):
    page = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    exec(code.replace("http://127.0.0.1:8000", server.url).replace("text8-nano-denoiser", "denoiser"), {})
    whole, *steps = capsys.readouterr().out.splitlines()
    assert len(whole) == 48 and [line.split()[0] for line in steps] == list("12345678")


# --- batches


def test_a_text_does_not_depend_on_what_it_was_batched_with(server, client):
    kinds = [
        {"max_tokens": 20}, {"max_tokens": 20, "steps": 3}, {"max_tokens": 26, "temperature": 0.7},
        {"max_tokens": 20, "energy": "good", "candidates": 3, "steps": 5},
        {"max_tokens": 20, "energy": "good", "completions": 2}, {"max_tokens": 9, "model": "ar"},
        {"max_tokens": 20, "suffix": " end", "n": 2}, {"max_tokens": 20, "stop": "e"},
    ]  # fmt: skip
    asked = [kind | {"seed": seed} for seed in range(4) for kind in kinds]
    alone = [[c.text for c in complete(client, **settings).choices] for settings in asked]
    before = metric(server, "edlm_batch_rows_sum") / metric(server, "edlm_batch_rows_count")
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda settings: [c.text for c in complete(client, **settings).choices], asked))
    assert together == alone
    assert metric(server, "edlm_batch_rows_sum") / metric(server, "edlm_batch_rows_count") > before


# --- refusals


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"model": "gpt"}, 404, "model", "no model 'gpt' here; choose denoiser or ar"),
        ({"prompt": "Hi"}, 400, "prompt", "'H' at character 0, which the tokenizer lacks; keep to a-z and space, or"),
        ({"prompt": "a", "suffix": "é"}, 400, "suffix", "the suffix has 'é' at character 0"),
        ({"prompt": []}, 400, "prompt", "the list is empty"),
        ({"prompt": "a" * 60}, 400, "max_tokens", "have 60 tokens and max_tokens is 16, but denoiser reads 64"),
        ({"prompt": "a" * 65}, 400, "prompt", "tokens of prompt and suffix must be at most 64, got 65"),
        ({"max_tokens": 65}, 400, "max_tokens", "max_tokens must be at most 64, got 65"),
        ({"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ({"n": 5}, 400, "n", "prompts times n must be at most 4, got 5"),
        ({"prompt": ["a", "b", "c"], "n": 2}, 400, "n", "must be at most 4, got 6"),
        ({"steps": 65}, 400, "steps", "steps must be at most 64, got 65"),
        ({"energy": "good", "candidates": 17}, 400, "candidates", "candidates must be at most 16, got 17"),
        ({"candidates": 6, "completions": 3}, 400, "candidates", "candidates times completions must be at most 16"),
        ({"energy": "ar:/etc"}, 400, "energy", "no energy 'ar:/etc' here; choose from none, good"),
        ({"model": "ar", "suffix": "a"}, 400, "suffix", "suffix needs a denoiser"),
        ({"model": "ar", "window": 0.0}, 400, "window", "window needs a denoiser"),
        ({"temperature": 0}, 400, "temperature", "0.01 is close to always taking the likeliest token"),
        ({"stop": ["a", ""]}, 400, "stop", "an empty text would stop before anything"),
        ({"stop": ["a"] * 5}, 400, "stop", "the number of stop sequences must be at most 4, got 5"),
        ({"top_p": 0.5}, 400, None, "top_p is not supported; leave it out"),
        ({"best_of": 3}, 400, None, "best_of is not supported"),
        ({"n": "3"}, 400, "n", "valid integer"),
        ({"colour": 1}, 400, "colour", "unknown field; leave it out"),
        ({"stream_steps": True}, 400, None, "need stream to be true"),
        ({"prompt": "a" * 20000}, 413, None, "at most 20000 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_a_remedy(server, body, status, param, message):
    response = post(server, **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param) and message in error["message"], error


def test_nulls_and_values_that_mean_off_are_accepted(server):
    off = dict.fromkeys(("suffix", "n", "stop", "seed", "logprobs", "best_of", "stream", "user", "steps", "echo"))
    off |= {"top_p": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "temperature": 1}
    assert post(server, **off).status_code == 200


def test_models_are_listed_and_found(client):
    cards = {card.id: card for card in client.models.list()}
    assert set(cards) == {"denoiser", "ar"} and cards["denoiser"].energies == ["good"] and cards["ar"].kind == "ar"
    assert client.models.retrieve("denoiser") == cards["denoiser"]
    with pytest.raises(openai.NotFoundError, match="no model 'other' here"):
        client.models.retrieve("other")


def test_without_a_key_only_local_names_are_answered(server):
    ask = lambda host: httpx2.get(f"{server.url}/v1/models", headers={"Host": host}).status_code  # noqa: E731
    assert [ask(host) for host in ("localhost:1", "127.0.0.1", "[::1]:80", "evil.example", "evil.example:80")] == [
        200, 200, 200, 403, 403,
    ]  # fmt: skip


def test_the_key_guards_everything_but_health(locked, keyed):
    assert httpx2.get(f"{locked.url}/health").json()["status"] == "ok"
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}):
            refused = httpx2.get(f"{locked.url}{path}", headers=headers)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    assert len(list(keyed.models.list())) == 2


# --- load


LONG = {"steps": 10**7, "max_tokens": 40}


def begin_long(keyed, num):
    """Requests that never end by themselves, one after the other as they are accepted."""
    streams = []
    for _ in range(num):
        streams.append(complete(keyed, stream=True, stream_steps=True, **LONG))
        next(streams[-1])
    return streams


def test_a_full_queue_refuses_and_a_client_that_leaves_makes_room(locked, keyed):
    cancelled = metric(locked, 'edlm_sequences_total{outcome="cancelled"}')
    streams = begin_long(keyed, 2)  # all that are worked on at a time
    waiting = threading.Thread(target=give_up_after, args=(locked, 3.0))
    waiting.start()
    eventually(lambda: metric(locked, "edlm_waiting_sequences") == 2)
    with pytest.raises(openai.RateLimitError, match="2 sequences are waiting already") as full:
        complete(keyed)
    assert 1 <= int(full.value.response.headers["Retry-After"]) <= 60
    waiting.join()
    eventually(lambda: metric(locked, "edlm_waiting_sequences") == 0)  # that client gave up before its turn came
    for stream in streams:
        stream.close()
    eventually(lambda: metric(locked, "edlm_active_sequences") == 0)
    assert metric(locked, 'edlm_sequences_total{outcome="cancelled"}') == cancelled + 4
    assert len(complete(keyed, max_tokens=5, steps=4).choices[0].text) == 5


def give_up_after(server, seconds):
    """Ask for two texts that would take days, and hang up."""
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(
            f"{server.url}/v1/completions",
            json={"model": "denoiser", "n": 2} | LONG,
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=seconds,
        )


def test_a_client_that_leaves_without_a_stream_is_noticed_too(locked):
    give_up_after(locked, 0.5)
    eventually(lambda: metric(locked, "edlm_active_sequences") == 0)


# --- hostile requests


HOSTILE = [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 10000, b'{"model": NaN}', b"1" * 6000,
    b'{"model": "denoiser", "temperature": NaN}', b'{"model": "denoiser", "temperature": Infinity}',
    b'{"model": "denoiser", "window": -Infinity}', b'{"model": "denoiser", "temperature": 1e999}',
    b'{"model": "denoiser", "prompt": "\\ud800"}', b'{"model": "\\udfff"}', b'{"model": "denoiser", "\\ud800": 1}',
    b'{"model": "denoiser", "energy": "\\ud800"}', b'{"model": "denoiser", "prompt": "\\u0000"}',
    b'{"model": "denoiser", "max_tokens": 99999999999999999999999}', b'{"model": "denoiser", "seed": 1e400}',
    b'{"model": "denoiser", "seed": 9223372036854775808}', b'{"model": "denoiser", "n": -1}',
    b'{"model": "denoiser", "n": 1.5}', b'{"model": "denoiser", "n": true}', b'{"model": {"$ref": "#"}}',
    b'{"model": "denoiser", "prompt": [["a"]]}', b'{"model": "denoiser", "prompt": [1, 2]}',
    b'{"model": "denoiser", "stream_options": []}', b'{"model": "denoiser", "logit_bias": {"1": 100}}',
    b'{"model": "../../etc/passwd"}', b'{"model": "denoiser", "energy": "nce:../../x"}',
]  # fmt: skip


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "", "multipart/form-data; boundary=x"])
def test_hostile_bodies_are_the_clients_mistake(server, kind):
    with httpx2.Client() as http:
        for body in HOSTILE:
            headers = {"Content-Type": kind} if kind else {}
            response = http.post(f"{server.url}/v1/completions", content=body, headers=headers)
            assert 400 <= response.status_code < 500 and response.json()["error"]["message"], (body, response)


def test_a_body_without_end_is_cut_off(server):
    def endless():
        for _ in range(1000):
            yield b" " * 1000

    with contextlib.suppress(httpx2.NetworkError):  # the server may hang up while the client is still sending
        assert httpx2.post(f"{server.url}/v1/completions", content=endless()).status_code == 413


def test_strange_texts_that_do_no_harm_are_served(server):
    strange = [{"prompt": "\x00\ud800 a", "normalise": True, "echo": True}, {"stop": "\ud800", "stream": True}]
    for body in strange:
        content = json.dumps({"model": "denoiser"} | body)
        headers = {"Content-Type": "application/json"}
        assert httpx2.post(f"{server.url}/v1/completions", content=content, headers=headers).status_code == 200


def test_seeds_at_the_ends_of_their_range_work(server):
    texts = {post(server, seed=seed, steps=2).json()["choices"][0]["text"] for seed in (-(2**63), 2**63 - 1, 0)}
    assert len(texts) == 3


def test_requests_made_up_from_the_schema_never_break_the_server(server):
    """EDLM_FUZZ=1000 makes it a long one."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    num = int(os.environ.get("EDLM_FUZZ", "12"))
    quick = settings(
        max_examples=num, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    schema = schemathesis.openapi.from_dict(httpx2.get(f"{server.url}/openapi.json").json())
    statuses = collections.Counter()

    def attack(case):
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = "denoiser"  # else all would end there
        response = case.call(base_url=server.url, timeout=30)
        assert response.status_code < 500, (case.as_curl_command(), response.text)
        statuses[response.status_code] += 1

    for mode in schemathesis.GenerationMode:
        quick(given(schema["/v1/completions"]["POST"].as_strategy(generation_mode=mode))(attack))()
    assert statuses[400] and statuses.total() >= num, statuses
    assert "Traceback" not in server.log.read_text()


# --- the end; nothing after this can use the second server


def test_told_to_stop_it_finishes_what_runs_and_refuses_what_is_new(locked, keyed):
    stream = complete(keyed, stream=True, stream_steps=True, steps=1000, max_tokens=26, seed=1)
    chunks = [next(stream)]
    locked.process.terminate()
    eventually(lambda: refuses(locked.url))
    chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert sum(len(chunk.choices[0].text) for chunk in chunks) == 26
    assert locked.process.wait(timeout=30) == 0
    assert "Traceback" not in locked.log.read_text()


def refuses(url):
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return True
    return False
