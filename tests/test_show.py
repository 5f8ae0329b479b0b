"""Traces as films, and films in the terminal, as pages and as GIFs."""

import io
import json
import re
from html.parser import HTMLParser

import pytest

from edlm.energy import AutoregressiveEnergy, StepEnergy
from edlm.errors import UserError
from edlm.generation import count_steps, generate, known_tokens
from edlm.models.energy_network import energy_from_denoiser
from edlm.sample_config import SampleConfig
from edlm.show.film import Reel, printable, title
from edlm.show.fragments import candidates_html
from edlm.show.palette import ink, luminance, step_colour
from edlm.show.terminal import Screen, frame_lines
from edlm.show.trace_file import read_film, read_trace
from edlm.tokenization import CharacterTokenizer, train_bpe
from edlm.trace import Tracer, piece
from test_cli import assert_refused, edlm, succeed  # noqa: F401
from toys import tiny_autoregressive, tiny_denoiser

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


def lines_of(model=None, num=1, prompt="", infill="", energy=None, **settings):
    """Header and steps of a real trajectory, as they stand in a file, and its samples."""
    model, config = model or tiny_denoiser(), SampleConfig(**({"steps": 5, "candidates": 3} | settings))
    fixed = known_tokens(model, model.tokenizer, config, prompt, infill)
    tracer = Tracer(model.tokenizer, model.mask_id)
    about = {"model": "toy", "kind": "denoiser", "energy": "ar:toy", "seed": 0, "steps": config.steps}
    lines = [tracer.header(about, fixed, count_steps(model, config, fixed))]
    energy = energy or AutoregressiveEnergy(tiny_autoregressive())
    samples = list(
        generate(
            model, num, config, energy=energy, prompt=prompt, infill=infill,
            watch=lambda *step: lines.append(tracer.line(*step)),
        )
    )  # fmt: skip
    return json.loads(json.dumps(lines)), samples


def film_of(lines, index=0):
    reel = Reel(lines[0])
    for line in lines[1:]:
        reel.add(line)
    return reel.film(index)


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


# --- films


@pytest.mark.parametrize("settings", [{}, {"first_hitting": True}, {"completions": 1}, {"window": 0.5}])
def test_the_last_frame_of_a_film_is_the_text_and_the_first_shows_only_what_is_given(settings):
    lines, samples = lines_of(num=2, prompt="ab", **settings)
    for sample in samples:
        film = film_of(lines, sample.index)
        first, *_, last = film.frames()
        assert "".join(cell.text for cell in last.cells) == sample.text and film.is_finished
        assert [cell.step for cell in first.cells] == [0, 0] + [None] * 14
        assert len(film.steps) == film.num_steps == len(lines) - 1


def test_a_frame_shows_what_was_revealed_when_and_from_what_it_was_chosen():
    lines, _ = lines_of()
    film = film_of(lines)
    for number, line in enumerate(lines[1:], start=1):
        frame, revealed = film.frame(number), dict(line["revealed"][0])
        assert {i for i, cell in enumerate(frame.cells) if cell.step == number} == set(revealed)
        assert frame.masked_fraction == frame.step.num_masked / 16
        if "choice" in line:
            chosen = next(candidate for candidate in frame.candidates if candidate.is_chosen)
            for position in revealed:
                assert chosen.cells[position] == frame.cells[position]
            assert [c.weight for c in frame.candidates] == line["choice"]["weights"][0]
            assert frame.step.ess == line["choice"]["effective_sample_size"][0]


def test_candidates_of_a_single_step_keep_their_masks(tmp_path):
    energy = StepEnergy(energy_from_denoiser(tiny_denoiser(), target="step"))
    lines, (sample,) = lines_of(energy=energy)
    film = read_film(write(tmp_path / "t.jsonl", lines))
    for frame in list(film.frames())[1:]:
        for candidate in frame.candidates:
            assert [cell.text == "" for cell in candidate.cells] == [cell.step is None for cell in frame.cells]
    assert "".join(cell.text for cell in film.frame(5).cells) == sample.text
    assert "·" in candidates_html(film, film.frame(1))


def test_a_text_made_in_windows_is_one_film():
    lines, (sample,) = lines_of(length=30, overlap=2)
    film = film_of(lines)
    assert "".join(cell.text for cell in film.frame(len(film.steps)).cells) == sample.text
    assert len(film.steps) == film.num_steps == 10 and film.frame(5).masked_fraction == 14 / 30
    assert film.frame(10).step.start == 14


def test_the_film_of_an_autoregressive_model_reveals_one_token_after_another():
    model = tiny_autoregressive()
    config = SampleConfig()
    tracer, fixed = Tracer(model.tokenizer, model.mask_id), known_tokens(model, model.tokenizer, config, "ab", "")
    lines = [tracer.header({}, fixed, count_steps(model, config, fixed))]
    list(generate(model, 1, config, prompt="ab", watch=lambda *step: lines.append(tracer.line(*step))))
    film = film_of(lines)
    assert film.revealed_at == [0, 0, *range(1, 15)] and film.num_steps == 14


def test_the_text_of_a_token_is_what_it_adds_behind_another():
    tokenizer = train_bpe(["the cat sat on the mat " * 50], 300)
    for text in ("the cat sat", "mat é the"):
        tokens = tokenizer.encode(text).tolist()
        assert "".join(piece(tokenizer, token) for token in tokens).count("�") == 2 * text.count("é")
        if text.isascii():
            assert "".join(piece(tokenizer, token) for token in tokens) == text
    assert [piece(CharacterTokenizer(), token) for token in (0, 1, 26)] == [" ", "a", "z"]


def test_what_could_steer_a_terminal_or_turn_a_line_around_is_replaced():
    assert printable("a\x1b[2J\u202eb\n\tc\u2028é 字") == "a�[2J�b⏎⇥c�é 字"


def test_the_settings_of_a_trace_become_a_title():
    settings = {"model": "m", "energy": "ar:a", "candidates": 4, "window": 0.2, "completions": 1, "steps": 8, "seed": 3}
    assert title(settings) == "m · energy ar:a, k = 4, w = 0.2 · reveal-first, R = 1 · 8 steps · seed 3"
    assert title({"model": "m", "kind": "ar", "seed": 0}) == "m · seed 0"
    assert title({"model": "\x1b" + "m" * 10**6, "seed": "\n"}) == "�" + "m" * 299


def test_colours_grow_lighter_and_text_on_them_stands_out():
    colours = [step_colour(step, 64) for step in range(1, 65)]
    light = [luminance(colour) for colour in colours]
    assert light == sorted(light) and light[-1] > light[0] + 0.5
    for colour in colours:
        bright, dark = sorted((luminance(colour), luminance(ink(colour))), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) >= 4.5
    assert step_colour(1, 1) == step_colour(1, 64)


# --- files


def test_a_trace_file_gives_the_films_of_its_sequences(tmp_path):
    lines, _ = lines_of(num=3)
    path = write(tmp_path / "t.jsonl", lines)
    assert read_trace(path).films[2] == film_of(lines, 2) and read_film(path) == film_of(lines, 0)
    with pytest.raises(UserError, match="has no sequence 3; it has 0, 1, 2"):
        read_film(path, 3)


def test_infinite_energies_are_numbers_too(tmp_path):
    lines, _ = lines_of()
    lines[1]["choice"]["energies"][0][0] = float("inf")
    film = read_film(write(tmp_path / "t.jsonl", lines))
    assert film.frame(1).candidates[0].energy == float("inf")


SPOILED = [
    (lambda h, s: h.pop("edlm_trace"), "line 1: not the header of a trace"),
    (lambda h, s: h.update(tokens=[]), "line 1: there are no tokens"),
    (lambda h, s: h.update(tokens=[99]), "line 1: token 99 has no text"),
    (lambda h, s: h.update(num_steps=True), "line 1: num_steps must be a whole number"),
    (lambda h, s: h.update(settings=[]), "line 1: settings must be an object"),
    (lambda h, s: h.update(pieces={"1": 2}), "line 1: pieces must map"),
    (lambda h, s: s.pop("pieces"), "line 2: pieces must map"),
    (lambda h, s: s.update(pieces=s["pieces"] | {"-1": "a"}), "line 2: pieces must map"),
    (lambda h, s: s.update(start=99), "line 2: start must be a whole number from 0 to 15"),
    (lambda h, s: s.update(t=[2.0]), "line 2: t must be numbers from 0 to 1"),
    (lambda h, s: s.update(t=["1"]), "line 2: t must be numbers"),
    (lambda h, s: s.update(t=[float("nan")]), "line 2: t must be numbers"),
    (lambda h, s: s.update(s=[]), "line 2: s must be a list of 1"),
    (lambda h, s: s.update(indices=[0, 0]), "line 2: indices must be different"),
    (lambda h, s: s.update(indices=[[]]), "line 2: indices must be different whole numbers"),
    (lambda h, s: s.update(revealed=[[[16, 1]]]), "line 2: a position is not among the 16"),
    (lambda h, s: s.update(revealed=[[[0, 1], [0, 1]]]), "line 2: a token is revealed twice"),
    (lambda h, s: s.update(revealed=[[[0, 99]]]), "line 2: token 99 has no text"),
    (lambda h, s: s.update(revealed=[["ab"]]), "line 2: revealed must hold pairs"),
    (lambda h, s: s.update(choice=7), "line 2: choice must be an object"),
    (lambda h, s: s["choice"].update(indices=[5]), "line 2: choice: indices must be"),
    (lambda h, s: s["choice"].update(chosen=[3]), "line 2: choice: chosen must be one of the candidates"),
    (lambda h, s: s["choice"].update(weights=[[1.0]]), "line 2: choice: weights must have one number per candidate"),
    (lambda h, s: s["choice"].update(weights=[[2, 0, 0]]), "line 2: weights must be numbers from 0 to 1"),
    (lambda h, s: s["choice"].update(energies=[[10**400, 0, 0]]), "line 2: energies must be numbers"),
    (lambda h, s: s["choice"].update(candidates=[[[1] * 17] * 3]), "line 2: choice: a candidate must be a list of at"),
    (lambda h, s: s["choice"].update(candidates=[[[{}]] * 3]), "line 2: token {} has no text"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_a_trace_that_makes_no_sense_is_refused_with_its_line(tmp_path, spoil, message):
    lines, _ = lines_of(steps=1)
    spoil(*lines)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_film(write(tmp_path / "t.jsonl", lines))
    assert str(caught.value).endswith("make a new one with `edlm sample --trace FILE`")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "it is not text"),
        (b"GIF89a", "line 1: it is not JSON"),
        (b"[1]\n", "line 1: expected an object, got [1]"),
        (b"[" * 100_000, "line 1: it is not JSON"),
        (
            b'{"edlm_trace": 1, "settings": {}, "num_steps": 1, "tokens": [null], "pieces": {}}\n',
            "before its first step",
        ),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, content, message):
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)):
        read_film(tmp_path / "t.jsonl")


def test_a_trace_that_was_cut_off_says_so_and_one_that_was_stopped_is_shown(tmp_path):
    path = write(tmp_path / "t.jsonl", lines_of()[0])
    whole = path.read_text()
    path.write_text(whole[:-20])
    with pytest.raises(UserError, match=r"line 6: it is not JSON and the file ends in it: cut off\?"):
        read_film(path)
    path.write_text("".join(whole.splitlines(keepends=True)[:4]))
    film = read_film(path)
    assert len(film.steps) == 3 and film.num_steps == 5 and not film.is_finished


# --- the terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_draws_each_frame_over_the_one_before(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "40")
    film, stream = film_of(lines_of()[0]), Terminal()
    screen = Screen(stream, least_seconds=0)
    for number in range(6):
        screen.show(film, number)
    height = len(list(frame_lines(film, film.frame(4), 60, colour=False)))
    assert stream.getvalue().count("\x1b[J") == 5 and f"\x1b[{height}F\x1b[J" in stream.getvalue()
    assert "\x1b[38;5;" in stream.getvalue() and "step 5/5" in stream.getvalue()


def test_without_a_terminal_frames_are_plain_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    lines, (sample,) = lines_of()
    stream = io.StringIO()
    Screen(stream).show(film_of(lines))
    shown = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue() and all(len(line) <= 10 for line in shown)
    assert shown[1] + shown[2] == sample.text


def test_no_colour_is_respected_and_a_frame_taller_than_the_terminal_is_cut(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "4")
    stream = Terminal()
    Screen(stream, least_seconds=0).show(film_of(lines_of()[0]))
    assert "\x1b" not in stream.getvalue() and stream.getvalue().splitlines()[-1] == "…"
    assert len(stream.getvalue().splitlines()) == 3


# --- pages


class Reader(HTMLParser):
    """Collects tags, attributes and the text of scripts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.names, self.links = [], set(), []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.names |= {name for name, _ in attributes}
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]


def hostile_film():
    lines, _ = lines_of(prompt="ab")
    lines[0]["settings"] |= {"model": HOSTILE, "energy": HOSTILE, "candidates": HOSTILE, "seed": [HOSTILE]}
    lines[0]["pieces"]["1"] = HOSTILE
    for line in lines[1:]:
        line["pieces"] = dict.fromkeys(line["pieces"], HOSTILE)
    return film_of(lines)


def test_nothing_in_a_trace_becomes_part_of_the_page():
    from edlm.show.page import film_json, page_html

    assert not {"<", ">", "&"} & set(film_json(hostile_film()))  # nothing that could end the script
    page = Reader(page_html(hostile_film()))
    assert page.tags.count("script") == 2 and "img" not in page.tags and "onerror" not in page.names
    assert not page.links  # nothing is fetched
    assert "alert(1)</script>" not in page_html(hostile_film())


def test_a_page_holds_every_frame_and_its_policy_lets_only_the_player_run():
    from edlm.show.page import FOLDER, page_html

    film = film_of(lines_of()[0])
    html = page_html(film)
    data = json.loads(re.search(r'id="film">(.*?)</script>', html, re.DOTALL)[1])
    assert len(data["summaries"]) == len(data["candidates"]) == 6 and data["summaries"][5].startswith("step 5/5")
    assert data["candidates"][1].count('class="candidate') == 3 and data["candidates"][1].count("◆") == 1
    assert "default-src 'none'" in html and "script-src 'sha256-" in html
    assert (FOLDER / "player.js").read_text() in html


def test_a_gif_has_a_picture_for_every_frame():
    image = pytest.importorskip("PIL.Image")
    from edlm.show.gif import gif_bytes

    for film in (film_of(lines_of(prompt="ab")[0]), hostile_film()):
        with image.open(io.BytesIO(gif_bytes(film, columns=40))) as picture:
            assert picture.n_frames == 6 and picture.info["loop"] == 0
            picture.seek(5)
            assert picture.info["duration"] == 2500


# --- commands


def test_show_makes_pages_and_gifs_and_plays_in_the_terminal(edlm, tmp_path):  # noqa: F811
    lines, (sample,) = lines_of(num=1)
    path = write(tmp_path / "t.jsonl", lines)
    assert succeed(edlm("show", path, "--out", tmp_path / "t.html")) == ""
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")
    succeed(edlm("show", path, "--out", tmp_path / "t.gif"))
    assert (tmp_path / "t.gif").read_bytes().startswith(b"GIF89a")
    shown = succeed(edlm("show", path))
    assert sample.text in shown and shown.count("masked") == 6
    assert_refused(edlm("show", path, "--out", tmp_path / "t.png"), "--out", "must end in .html or .gif")
    assert_refused(edlm("show", path, "--index", 4), "has no sequence 4; it has 0")
    assert_refused(edlm("show", tmp_path / "none"), "No such file")


def test_sampling_can_be_watched_and_its_trace_shown(edlm, tmp_path):  # noqa: F811
    tiny_denoiser().save_pretrained(tmp_path / "denoiser")
    words = ["sample", "--denoiser", tmp_path / "denoiser", "--steps", 4, "--num", 3, "--batch-size", 2]
    plain = edlm(*words)
    watched = edlm(*words, "--watch", "--trace", tmp_path / "t.jsonl")
    first, _, third = succeed(plain).splitlines()
    assert watched.out == plain.out and watched.err.count("step 4/4") == 2
    assert first in watched.err and third in watched.err
    film = read_film(tmp_path / "t.jsonl", 2)
    assert "".join(cell.text for cell in film.frame(4).cells) == third
    assert "step 4/4" in edlm("infill", "the [MASK:3] cat", *words[1:], "--watch").err
