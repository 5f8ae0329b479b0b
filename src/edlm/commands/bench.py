"""edlm bench train"""

from cyclopts import App

app = App(help="Measure speed.")


@app.command
def train(
    *, kind: str = "denoiser", preset: str = "nano", batch_size: int = 16, length: int = 256, steps: int = 2,
    repeats: int = 12, json: bool = False,
) -> None:  # fmt: skip
    """Tokens per second of our training step against a bare PyTorch loop around the same network, taking turns.

    Parameters
    ----------
    kind
        denoiser or ar.
    preset
        Size of the network.
    batch_size
        Sequences per step.
    length
        Tokens per sequence.
    steps
        Steps per turn.
    repeats
        Turns of each.
    json
        Print JSON.
    """
    from edlm.benchmarks import bench_training
    from edlm.commands.output import print_json, print_table
    from edlm.commands.require import require_extra

    require_extra("train", "transformers", "accelerate")
    report = bench_training(kind, preset=preset, batch_size=batch_size, length=length, steps=steps, repeats=repeats)
    print_json(report) if json else print_table(report)
