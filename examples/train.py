"""Train a small autoregressive model and a small denoiser from scratch, score both, and show what they write.

Every step is an `edlm` command, printed before it runs. A second call finds the trained models and only shows them.
"""

import argparse
import json
import time
from pathlib import Path

from command import edlm

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.yaml"


def main() -> None:
    """Run the commands and sum up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="folder of the two runs")
    parser.add_argument("--steps", type=int, help="steps of each training, instead of the recipe's")
    arguments = parser.parse_args()
    ar, denoiser = arguments.out / "ar", arguments.out / "denoiser"
    steps = ["--run.steps", str(arguments.steps)] if arguments.steps else []
    start = time.monotonic()
    edlm("train", "ar", "--config", CONFIG, "--run.out", ar, *steps)
    edlm("train", "denoiser", "--config", CONFIG, "--run.out", denoiser, "--model.init", ar, *steps)
    seconds = time.monotonic() - start
    results = [score("--ar", ar), score("--denoiser", denoiser)]
    for flag, folder, options in (("--ar", ar, []), ("--denoiser", denoiser, ["--steps", "64"])):
        edlm("sample", flag, folder, "--num", "3", "--seed", "1", *options)
    print(f"\ntraining took {seconds:.0f} s\nheld-out text (test split of the State of the Union addresses):")
    for name, result in zip(("autoregressive", "denoiser"), results, strict=True):
        error = f"± {result['standard_error']:.3f}"
        print(f"  {name:<15} {result['bits']:.3f} {error} bits per character, {result['quantity']}")


def score(flag: str, folder: Path) -> dict[str, float]:
    """Bits per character on the test split."""
    return json.loads(edlm("evaluate", "likelihood", flag, folder, "--max-blocks", "1024", "--json", capture=True))


if __name__ == "__main__":
    main()
