"""The page in a real browser: Debian's Chromium, headless, without a way out of this machine.

Screenshots are left in the folder that EDLM_SCREENSHOTS names, if it does.
"""

import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from edlm.generation import generate
from edlm.models.load import load_model
from edlm.sample_config import SampleConfig
from servers import Server, running
from test_show import HOSTILE, film_of, hostile_film, lines_of, write
from toys import tiny_autoregressive, tiny_denoiser

pytest.importorskip("gradio")
playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
]
PATIENCE = 60_000  # milliseconds; a machine that is busy elsewhere is slow


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tools:
        started = tools.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_denoiser(length=64).save_pretrained(folder / "denoiser")
    tiny_autoregressive(length=64).save_pretrained(folder / "ar")
    return folder


@pytest.fixture(scope="module")
def demo(models, tmp_path_factory):
    energy = f"ar:{models / 'ar'}"
    words = ["--denoiser", models / "denoiser", "--energy", energy, "--oracle", energy, "--max-steps", 4000]
    log = tmp_path_factory.mktemp("demo") / "errors"
    with running(Server(log, *words, "--no-browser", command="demo")) as server:
        yield server
        assert server.stop() == 0 and "Traceback" not in log.read_text()


class Visit:
    """A page that is open, and what it asked for on the way."""

    def __init__(self, browser, **window):
        self.page = browser.new_page(**window)
        self.page.set_default_timeout(PATIENCE)
        self.asked, self.problems = [], []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))

    def says(self, place, text):
        """Wait until a place holds a text."""
        playwright.expect(self.page.locator(place)).to_contain_text(text, timeout=PATIENCE)

    def set(self, label, value):
        box = self.page.get_by_label(f"number input for {label}")
        box.locator("visible=true").first.fill(str(value))
        box.locator("visible=true").first.press("Tab")

    def text(self, place):
        return self.page.locator(f"{place} .edlm-text").text_content()

    def screenshot(self, name):
        if folder := os.environ.get("EDLM_SCREENSHOTS"):
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    def leave(self):
        """Nothing went wrong, and nothing was asked of another machine."""
        self.page.close()
        assert not self.problems
        assert {urlsplit(url).hostname for url in self.asked if not url.startswith(("data:", "blob:"))} == {"127.0.0.1"}


@pytest.fixture
def visit(browser, demo):
    visit = Visit(browser, viewport={"width": 1280, "height": 900})
    visit.page.goto(demo.url)
    visit.page.locator("#run").wait_for()
    yield visit
    visit.leave()


def test_a_text_is_drawn_and_its_steps_can_be_gone_through(visit, models):
    visit.set("Steps T", 8)
    visit.set("Length", 64)
    visit.page.locator("#run").click()
    visit.says("#where", "step 8/8")
    config = SampleConfig(steps=8, candidates=4, completions=1, length=64)
    energy = load_energy_of(models)
    (sample,) = generate(load_model(models / "denoiser"), 1, config, energy=energy, prompt="in the year ")
    assert visit.text("#words") == sample.text
    visit.screenshot("watch")

    visit.set("Step", 3)
    visit.says("#where", "step 3/8")
    revealed = visit.page.locator("#words .edlm-text .token")
    assert {int(token.get_attribute("data-step")) for token in revealed.all()} <= {1, 2, 3}
    assert visit.text("#words").count("·") == 64 - 12 - revealed.count()
    assert visit.page.locator("#candidates .candidate").count() == 4
    playwright.expect(visit.page.locator("#candidates .candidate.chosen")).to_have_count(1)
    assert visit.page.locator("#curves svg").count() == 3

    visit.page.locator("#save-html").click()
    visit.says("#saved", "denoising")


def load_energy_of(models):
    from edlm.energy_spec import load_energy

    return load_energy(f"ar:{models / 'ar'}", load_model(models / "denoiser"))


def test_a_long_drawing_is_stopped(visit):
    visit.set("Steps T", 4000)
    visit.page.locator("#run").click()
    visit.says("#where", "/4000")
    visit.page.locator("#stop").click()
    visit.says("#where", "stopped after step")
    before = visit.text("#words")
    visit.page.wait_for_timeout(700)
    assert visit.text("#words") == before and "·" in before
    visit.set("Steps T", 2)
    visit.page.locator("#run").click()  # it has made room for the next
    visit.says("#where", "step 2/2")


def test_bad_input_is_a_message(visit):
    prompt = visit.page.get_by_label("Prompt").locator("visible=true").first
    prompt.fill("Hello <b>you</b>")
    visit.page.locator("#run").click()
    toast = visit.page.get_by_test_id("toast-body")
    playwright.expect(toast).to_contain_text("'H'", timeout=PATIENCE)
    assert "Traceback" not in toast.text_content()
    visit.screenshot("message")


def test_a_trace_is_opened_and_a_bad_one_is_a_message(visit, tmp_path):
    lines, (sample,) = lines_of()
    visit.page.get_by_text("Open a trace").click()
    visit.page.locator("#trace input[type=file]").set_input_files(write(tmp_path / "t.jsonl", lines))
    visit.says("#where", "step 5/5")
    assert visit.text("#words") == sample.text
    (tmp_path / "bad.jsonl").write_text(HOSTILE)
    visit.page.locator("#trace [aria-label='Clear']").click()
    visit.page.locator("#trace input[type=file]").set_input_files(tmp_path / "bad.jsonl")
    toast = visit.page.get_by_test_id("toast-body")
    playwright.expect(toast).to_contain_text("bad.jsonl, line 1: it is not JSON", timeout=PATIENCE)


def test_two_settings_are_compared_also_in_a_narrow_dark_window(browser, demo):
    visit = Visit(browser, viewport={"width": 420, "height": 900}, color_scheme="dark")
    visit.page.goto(demo.url)
    visit.page.get_by_role("tab", name="Compare").click()
    visit.set("Steps T", 8)
    visit.page.locator("#run-both").click()
    for word in ("oracle perplexity", "entropy", "seconds", "MDLM", "EDLM-AR"):
        visit.says("#table", word)
    assert "·" not in visit.text("#left") + visit.text("#right")
    for tab in ("Compare", "Watch"):
        visit.page.get_by_role("tab", name=tab).click()
        visit.screenshot(f"narrow-{tab.lower()}")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 420
    visit.leave()


def test_a_page_from_a_file_plays_and_runs_nothing_that_a_trace_brings(browser, tmp_path):
    from edlm.show.page import page_html

    for name, film in (("film", film_of(lines_of()[0])), ("hostile", hostile_film())):
        (tmp_path / f"{name}.html").write_text(page_html(film), encoding="utf-8")
        visit = Visit(browser, viewport={"width": 900, "height": 800})
        visit.page.goto(f"file://{tmp_path / name}.html")
        visit.page.locator("#slider").fill("2")
        visit.says("#status", "step 2/5")
        masked = visit.page.locator(".edlm-text .mask").count()
        assert masked == film.steps[1].num_masked
        visit.page.locator("#play").click()
        visit.says("#status", "step 5/5")
        assert visit.page.locator(".edlm-text .mask").count() == 0
        visit.screenshot(f"page-{name}")
        visit.page.close()
        assert not visit.problems and len(visit.asked) == 1
