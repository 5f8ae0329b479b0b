"""Draw text with the built-in models, without and with energies, and show what each way of drawing gives and costs.

Every step is an `edlm` command, printed before it runs. A second call finds its samples and only shows them.
"""

import argparse
import json
import time
from pathlib import Path

from command import edlm

from edlm.models.builtin import builtin_names
from edlm.study import readable

DENOISER, AR, ENERGY, ORACLE = (f"text8-nano-{kind}" for kind in ("denoiser", "ar", "energy", "oracle"))
LOOKAHEAD = 1.5


def main() -> None:
    """Run the command and show its results side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart/samples"), help="folder of samples and plot")
    parser.add_argument("--num", type=int, default=12, help="samples per setting")
    parser.add_argument("--steps", default="4,16", help="denoising steps, as a list")
    parser.add_argument("--candidates", default="4", help="candidates per step, as a list")
    arguments = parser.parse_args()
    start = time.monotonic()
    energies = [f"ar:{AR}", f"coar:{AR}"] + ([f"nce:{ENERGY}"] if ENERGY in builtin_names() else [])
    named = [word for energy in energies for word in ("--energy", energy)]
    compared = ["evaluate", "generation", "--denoiser", DENOISER, "--oracle", f"ar:{ORACLE}",
                "--num", arguments.num, "--candidates", arguments.candidates]  # fmt: skip
    few, ahead = arguments.steps.split(",")[0], arguments.out / "lookahead"
    edlm(*compared, *named, "--steps", arguments.steps, "--out", arguments.out)
    edlm(*compared, *named[:2], "--steps", few, "--smc", 1, "--lookahead", LOOKAHEAD, "--out", ahead)
    print("\nOne sample each, and what was measured on all of them:")
    show(arguments.out)
    show(ahead, leave_out="MDLM")
    print(f"\nplots of perplexity and entropy: {arguments.out / 'frontier.png'}, {ahead / 'frontier.png'}")
    print(f"took {time.monotonic() - start:.0f} s; all samples are in {arguments.out}")


def show(out: Path, *, leave_out: str = "") -> None:
    """The first text of every setting but those of one method, below what was measured on all of them."""
    for row in json.loads((out / "results.json").read_text(encoding="utf-8"))["rows"]:
        if row["method"] == leave_out:
            continue
        scored = next(iter(row["perplexity"].values()))["perplexity"]
        entropy, seconds = row["entropy"], row["seconds_per_sample"]
        print(f"\n{row['curve']}, {row['steps']} steps: perplexity {shown(scored)}, entropy {shown(entropy)} nats, "
              f"{seconds:.2f} s per sample")  # fmt: skip
        print(f"  {first_text(row, out)}")


def first_text(row: dict, out: Path) -> str:
    """Sample 0 of a setting, from the file that holds its samples."""
    label = f"{row['curve']}, T={row['steps']}"
    lines = (out / f"samples-{readable(label)}.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads(lines[1])["text"]


def shown(value: dict) -> str:
    error = value["standard_error"]
    return f"{value['mean']:.2f}" + ("" if error is None else f" ± {error:.2f}")


if __name__ == "__main__":
    main()
