"""The page's callbacks, without a browser: what they draw, show, refuse and measure."""

import re
from itertools import islice
from pathlib import Path

import pytest

from edlm.errors import UserError
from edlm.generation import generate
from edlm.models.energy_network import energy_from_denoiser
from edlm.sample_config import SampleConfig
from edlm.show.film import Film
from test_show import lines_of, write
from toys import tiny_autoregressive, tiny_denoiser

gr = pytest.importorskip("gradio")
from edlm.demo.config import DemoConfig  # noqa: E402
from edlm.demo.drawing import Drawing, Order  # noqa: E402
from edlm.demo.page import FIRST, WHOLE, compare, look, open_trace, save_gif, save_page, stop_drawings, watch  # noqa: E402
from edlm.demo.shelf import NONE, Shelf  # noqa: E402
from edlm.demo.views import now_and_then  # noqa: E402


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_denoiser(length=32).save_pretrained(folder / "denoiser")
    tiny_autoregressive(length=32).save_pretrained(folder / "ar")
    return str(folder / "denoiser"), f"ar:{folder / 'ar'}"


@pytest.fixture(scope="module")
def shelf(names):
    denoiser, energy = names
    return Shelf([denoiser], [energy], [energy])


@pytest.fixture
def controls(names):
    """The values of all controls of the first tab, in their order; a test changes some."""
    values = {"denoiser": names[0], "energy": names[1], "candidates": 3, "window": 1.0, "weighed": FIRST}
    values |= {"steps": 6, "length": 24, "seed": 5, "text": "in the "}
    return lambda **changes: list((values | changes).values())


def plain(html):
    """The text in the box, without tags."""
    return re.sub("<[^>]+>", "", re.search(r'<div class="edlm-text">(.*?)</div>', html)[1])


def refusal(callback, *values):
    """The message that the page shows."""
    with pytest.raises(gr.Error) as caught:
        for _ in callback(*values):
            pass
    assert caught.value.print_exception is False
    return caught.value.message


# --- one text


@pytest.mark.parametrize(("weighed", "completions"), [(FIRST, 1), (WHOLE, 0)])
def test_the_page_draws_what_the_library_draws(shelf, names, controls, weighed, completions):
    *_, last = watch(shelf, *controls(weighed=weighed))
    config = SampleConfig(steps=6, candidates=3, completions=completions, length=24, seed=5)
    energy = shelf.energy(names[1], names[0])
    (sample,) = generate(shelf.denoiser(names[0]), 1, config, energy=energy, prompt="in the ")
    assert plain(last[3]) == sample.text and isinstance(last[1], Film) and last[1].is_finished
    assert "step 6/6" in last[4] and last[6].count("<svg") == 3


def test_without_an_energy_nothing_is_weighed(shelf, controls):
    *_, last = watch(shelf, *controls(energy=NONE))
    assert "nothing was weighed" in last[5] and last[6].count("<svg") == 1


def test_an_energy_of_single_steps_weighs_revealed_tokens_without_being_told(names, controls, tmp_path):
    energy_from_denoiser(tiny_denoiser(length=32), target="step").save_pretrained(tmp_path / "energy")
    spec = f"step:{tmp_path / 'energy'}"
    *_, last = watch(Shelf([names[0]], [spec]), *controls(energy=spec, weighed=FIRST))
    assert last[1].is_finished and last[1].settings["completions"] == 0 and "◆" in last[5]


def test_a_text_with_holes_is_filled(shelf, controls):
    *_, last = watch(shelf, *controls(text="the [MASK:4] of [MASK] states"))
    assert re.fullmatch("the .{4} of . states", plain(last[3]))


def test_a_frame_that_was_passed_can_be_looked_at_again(shelf, controls):
    frames = list(watch(shelf, *controls()))
    film = frames[-1][1]
    text, status, candidates, curves = look(film, 2)
    assert "step 2/6" in status and text.count('class="mask"') == film.steps[1].num_masked + 1  # one is in the legend
    assert candidates.count('class="candidate') == 3 and candidates.count("◆") == 1 and "translate(" in curves
    assert "step 6/6" in look(film, 99)[1]


def test_a_drawing_computes_nothing_that_was_not_asked_for(shelf, names):
    drawing = Drawing(Order(*names, "", SampleConfig(steps=6, length=24)), shelf)
    assert len(list(islice(drawing.steps(), 2))) == 2 and drawing.state.step == 2 and len(drawing.film.steps) == 2


def test_a_drawing_that_is_stopped_says_where(shelf, names, controls):
    frames = watch(shelf, *controls(steps=9))
    next(frames)
    stop_drawings(next(frames)[0])
    assert "stopped after step 1 of 9" in list(frames)[-1][4]
    race = compare(shelf, names[0], names[1], 2, 9, 24, 0, "", *([NONE, 2, 1.0, FIRST] * 2))
    stop_drawings(next(race)[0])
    assert "nothing was measured" in list(race)[-1][3]
    stop_drawings(None)


def test_a_page_is_not_told_every_step_but_always_the_last():
    assert list(now_and_then(iter(range(100)), seconds=60)) == [0, 99]
    assert list(now_and_then(iter(range(3)), seconds=0)) == [0, 1, 2, 2] and not list(now_and_then(iter([])))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": "<b>Hello"}, "&#x27;&lt;&#x27;"),
        ({"text": "x" * 30}, "the prompt has 30 tokens, but a sequence only 24"),
        ({"text": "[MASK:99]"}, "longer than the model"),
        ({"text": "[MASK:0]"}, "must be at least 1"),
        ({"length": 33}, "length must be at most the model"),
        ({"length": None}, "length is empty; enter a number"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 2.5}, "steps must be a whole number, got 2.5"),
        ({"seed": None}, "seed is empty"),
        ({"window": 2}, "window must be between 0 and 1"),
        ({"denoiser": "/etc"}, "&#x27;/etc&#x27; is not offered"),
        ({"energy": "ar:gpt2"}, "is not offered"),
    ],
)
def test_what_cannot_be_drawn_is_a_message_and_no_trace(shelf, controls, changes, message):
    assert message in refusal(watch, shelf, *controls(**changes))


# --- traces and files


def test_a_trace_is_opened_and_a_bad_one_refused_without_its_folder(tmp_path):
    film, *_ = open_trace(str(write(tmp_path / "t.jsonl", lines_of(num=2)[0])), 1)
    assert film.is_finished and len(film.steps) == 5
    (tmp_path / "bad.jsonl").write_text("{}\n")
    message = refusal(open_trace, str(tmp_path / "bad.jsonl"), 0)
    assert message.startswith("bad.jsonl, line 1:") and str(tmp_path) not in message
    assert "has no sequence 7" in refusal(open_trace, str(tmp_path / "t.jsonl"), 7)


def test_a_film_is_saved_as_page_and_as_gif(shelf, controls, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    *_, last = watch(shelf, *controls())
    page, gif = (Path(save(last[1]).value["path"]) for save in (save_page, save_gif))
    assert page.name == "denoising.html" and gif.read_bytes().startswith(b"GIF89a") and tmp_path in gif.parents
    assert "nothing to show yet" in refusal(save_gif, None)


# --- two settings


def test_two_settings_are_drawn_with_one_seed_and_measured(shelf, names):
    sides = [NONE, 2, 1.0, FIRST, names[1], 2, 1.0, FIRST]
    *_, (_, left, right, table) = compare(shelf, names[0], names[1], 2, 4, 24, 5, "in the ", *sides)
    config = SampleConfig(steps=4, length=24, seed=5, candidates=2, completions=1)
    for html, energy in ((left, None), (right, shelf.energy(names[1], names[0]))):
        first, _ = generate(shelf.denoiser(names[0]), 2, config, energy=energy, prompt="in the ")
        assert plain(html) == first.text
    assert "MDLM" in table and "EDLM-AR" in table and table.count("±") == 5  # four values and the note
    assert re.search(r"energy passes</th><td>0</td><td>[1-9]\d*</td>", table)


def test_a_comparison_without_an_oracle_says_so_and_one_sample_has_no_error(shelf, names):
    *_, (*_, table) = compare(shelf, names[0], NONE, 1, 2, 24, 0, "", *([NONE, 2, 1.0, FIRST] * 2))
    assert table.count("no oracle") == 2 and "±" not in table and "1 sample each" in table


# --- what is offered, and to whom


def test_built_in_models_are_offered_where_none_are_named():
    shelf = Shelf()
    assert "text8-nano-denoiser" in shelf.denoisers and "ar:text8-nano-oracle" in shelf.oracles
    assert {"ar:text8-nano-ar", "coar:text8-nano-ar"} <= set(shelf.energies)


def test_only_this_machine_is_answered_and_nothing_is_fetched_from_elsewhere(shelf):
    from fastapi.testclient import TestClient

    from edlm.demo.server import make_app

    client = TestClient(make_app(shelf, DemoConfig()), base_url="http://127.0.0.1")
    page = client.get("/")
    assert page.status_code == 200 and page.headers["content-security-policy"].startswith("default-src 'self'")
    assert not re.search(r"""<(script|link|img|iframe)[^>]+(src|href)=["'](https?:)?//(?!127\.0\.0\.1)""", page.text)
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("change", [{"port": 70000}, {"max_steps": 1}, {"max_candidates": 0}])
def test_settings_of_the_page_that_make_no_sense_are_refused(change):
    with pytest.raises(UserError, match="must be"):
        DemoConfig(**change)
