"""The documentation is true: its Python runs, its commands are understood, its links and file names exist."""

import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from edlm.cli import app
from toys import tiny_autoregressive, tiny_denoiser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WORDS = ["the", "of", "and", "one", "in", "a", "to", "zero", "nine", "two", "is", "as", "eight", "for", "s", "five"]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page):
    """Every edlm command in a page's shell blocks, also behind torchrun; comments are left out."""
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "edlm" in words:
            yield words[words.index("edlm") + 1 :]


def identifier(value):
    return value.name if isinstance(value, Path) else " ".join(value)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of someone who has trained the small models (`make train`) and has a text of their own."""
    folder = tmp_path_factory.mktemp("reader")
    tiny_denoiser(length=64).save_pretrained(folder / "runs" / "quickstart" / "denoiser" / "model")
    tiny_autoregressive(length=64).save_pretrained(folder / "runs" / "quickstart" / "ar" / "model")
    (folder / "my.txt").write_text(" ".join(random.Random(0).choices(WORDS, k=8000)))
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=identifier)
def test_the_python_of_a_page_runs_from_top_to_bottom(reader, page):
    env = os.environ | {"EDLM_CACHE": str(reader / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "\n".join(blocks(page, "python"))]
    done = subprocess.run(command, cwd=reader, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("words", [words for page in PAGES for words in commands(page)], ids=identifier)
def test_every_command_of_the_documentation_is_understood(words, monkeypatch):
    monkeypatch.chdir(ROOT)  # recipes are named from here
    command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    assert command.__module__.startswith("edlm.commands.") or words == ["--help"]
    assert bound is not None


def test_the_documentation_shows_all_commands():
    shown = [" ".join(words) for page in PAGES for words in commands(page)]
    for name in (
        "train denoiser",
        "train ar",
        "sample",
        "evaluate likelihood",
        "data prepare",
        "info",
        "bench train",
        "bench sample",
        "bench predict",
        "bench likelihood",
        "export",
        "convert",
        "evaluate generation",
        "evaluate zeroshot",
        "train energy",
        "infill",
        "reproduce",
        "serve",
        "demo",
        "show",
        "bench serve",
        "score",
        "push",
        "lm-eval",
    ):
        assert any(command.startswith(name) for command in shown), name


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=identifier)
def test_links_and_named_files_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:src|tests|configs|examples|docs)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "notation.md"], ids=identifier)
def test_every_module_named_in_a_table_exists(page):
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for name in re.findall(r"`([\w/]+\.py)`", "".join(rows)):
        assert (ROOT / "src" / "edlm" / name).is_file(), name
