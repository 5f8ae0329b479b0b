"""Replace the built-in weights by those of trained runs, and write the table of docs/weights.md from their records.

Every step is an `edlm` command, printed before it runs. A run that is not there is left out.
"""

import argparse
from pathlib import Path

from command import edlm

from edlm.models.builtin import builtin_names
from edlm.reports import markdown_table
from edlm.training.card import SUMMARY, summary

ROOT = Path(__file__).parents[1]
WEIGHTS, PAGE = ROOT / "src" / "edlm" / "weights", ROOT / "docs" / "weights.md"
BEGIN, END = "<!-- table: examples/export_weights.py -->\n", "<!-- end of table -->\n"
RUNS = {"text8-nano-ar": "ar-0", "text8-nano-oracle": "ar-1", "text8-nano-denoiser": "denoiser",
        "text8-nano-energy": "energy", "text8-nano-step-energy": "step-energy"}  # fmt: skip


def main() -> None:
    """Export what is there, the denoiser before the energies that correct it, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trained", type=Path, nargs="?", help="folder that holds the runs; without it only the table")
    parser.add_argument("--data", help="source of the text, such as text8:PATH")
    parser.add_argument("--cache", help="folder of the tokenised text")
    parser.add_argument("--max-blocks", type=int, default=0, help="blocks measured; 0 means all of the test split")
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=list(RUNS), help="names to export")
    arguments = parser.parse_args()
    for name in RUNS if arguments.trained else ():
        run = arguments.trained / RUNS[name]
        if name in arguments.only and run.is_dir():
            edlm("export", run, WEIGHTS / name, *options(name, arguments))
    write_table()


def options(name: str, arguments: argparse.Namespace) -> list[object]:
    """Flags of one export. Energies are measured with the denoiser as it was stored."""
    flags = {"--data": arguments.data, "--cache": arguments.cache, "--max-blocks": arguments.max_blocks}
    flags |= {"--denoiser": "text8-nano-denoiser"} if name.endswith("energy") else {}
    return [word for flag, value in flags.items() if value for word in (flag, value)]


def table() -> str:
    """The built-in models and their figures."""
    return markdown_table([SUMMARY, *(summary(WEIGHTS / name) for name in builtin_names())])


def write_table() -> None:
    """Put the table between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
