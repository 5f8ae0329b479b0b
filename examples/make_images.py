"""Make the README's screenshot and GIF from the built-in weights, each by the commands that it prints."""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DENOISER, ENERGY = "text8-nano-denoiser", "ar:text8-nano-ar"
SETTINGS = ["--steps", "32", "--candidates", "4", "--completions", "1", "--length", "128", "--prompt", "in the year "]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    """Make both pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "images", help="folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        edlm("sample", "--denoiser", DENOISER, "--energy", ENERGY, *SETTINGS, "--trace", trace)
        edlm("show", trace, "--out", arguments.out / "denoising.gif")
    screenshot(arguments.out / "demo.png")


def edlm(*words: object) -> None:
    """Show a command, run it, and stop if it fails."""
    line = [str(word) for word in words]
    print(f"$ edlm {shlex.join(line)}", flush=True)
    subprocess.run([sys.executable, "-m", "edlm", *line], check=True)


def screenshot(path: Path) -> None:
    """The page of `edlm demo` at step 20 of its first drawing."""
    line = [sys.executable, "-m", "edlm", "demo", "--no-browser", "--port", "0"]
    print("$ edlm demo", flush=True)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        if address is None:
            sys.exit("edlm demo did not say where it listens")
        photograph(address[0], path)
    finally:
        process.terminate()
        process.wait()


def photograph(address: str, path: Path) -> None:
    """Press Run, go back to step 20, and keep what is seen."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1040})
        page.goto(address)
        page.locator("#run").click(timeout=120_000)
        expect(page.locator("#where")).to_contain_text("step 32/32", timeout=300_000)
        box = page.get_by_label("number input for Step", exact=True)
        box.fill("20")
        box.press("Enter")
        expect(page.locator("#where")).to_contain_text("step 20/32", timeout=60_000)
        page.locator("h1").click()  # away from the field, which would keep its frame
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main()
