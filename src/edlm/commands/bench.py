"""edlm bench train, edlm bench likelihood, edlm bench sample, edlm bench speculative, edlm bench serve"""

import sys
from pathlib import Path

from cyclopts import App

from edlm.errors import UserError
from edlm.sweep_config import parse_counts

app = App(help="Measure speed.")


@app.command
def train(
    *, kind: str = "denoiser", preset: str = "nano", batch_size: int = 16, length: int = 256, steps: int = 2,
    repeats: int = 12, out: Path = Path("runs/bench-train"), json: bool = False,
) -> None:  # fmt: skip
    """Tokens per second and memory of our training step against a bare PyTorch loop, taking turns.

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
    out
        Folder for table, numbers and plot.
    json
        Print JSON.
    """
    from edlm.benchmarks.training import bench_training, draw_turns
    from edlm.commands.output import print_json
    from edlm.extras import require_extra
    from edlm.reports import markdown_table, write_report

    require_extra("train", "transformers", "accelerate")
    require_extra("eval", "matplotlib")
    results = bench_training(kind, preset=preset, batch_size=batch_size, length=length, steps=steps, repeats=repeats)
    shown = [[name, str(value)] for name, value in results.items() if name != "ratios"]
    plots = {"turns.png": lambda path: draw_turns(results["ratios"], path)}
    written = write_report(out, markdown_table([["what", "result"], *shown]), results, plots)
    print_json(written.as_dict()) if json else print(written.as_text())


@app.command
def likelihood(
    *, draws: str = "1,16,256", energy: str = "ar", preset: str = "nano", vocab_size: int = 27, length: int = 256,
    batch_size: int = 2, steps: int = 16, candidates: int = 2, repeats: int = 2,
    out: Path = Path("runs/bench-likelihood"), json: bool = False,
) -> None:  # fmt: skip
    """Tokens per second and peak memory of the paper's formula with n draws and of the certified bound with R.

    Parameters
    ----------
    draws
        n of the paper's formula and R of the certified bound, as a list.
    energy
        ar, coar or nce; random weights. coar costs nothing in the paper's formula, which then needs no draw.
    preset
        Size of the networks.
    vocab_size
        Tokens of the vocabulary.
    length
        Tokens per sequence.
    batch_size
        Sequences scored at once.
    steps
        T of the sampler.
    candidates
        k of the sampler.
    repeats
        Batches that are timed, after one to warm up.
    out
        Folder for table, numbers and plot.
    json
        Print JSON.
    """
    from edlm.benchmarks.likelihood import bench_likelihood, draw_effort, table
    from edlm.commands.output import print_json
    from edlm.extras import require_extra
    from edlm.reports import write_report

    require_extra("eval", "matplotlib")
    rows = []
    for row in bench_likelihood(
        parse_counts(draws, "--draws"), energy=energy, preset=preset, vocab_size=vocab_size, length=length,
        batch_size=batch_size, steps=steps, candidates=candidates, repeats=repeats,
    ):  # fmt: skip
        print(f"{row['protocol']}, {row['draws']}: done", file=sys.stderr)
        rows.append(row)
    written = write_report(out, table(rows), {"rows": rows}, {"effort.png": lambda path: draw_effort(rows, path)})
    print_json(written.as_dict()) if json else print(written.as_text())


@app.command
def sample(
    *, scale: str = "quick", parts: str = "compared,causal,steps,memory,curves", repeats: int = 2,
    compile: bool = False, out: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Seconds and peak memory of EDLM-coAR sampling: against the plain algorithm, and as the work grows.

    Every measurement is kept in the folder: the same command goes on after an interruption, and parts that were made
    one by one are put together by a command that names them all.

    Parameters
    ----------
    scale
        Size of the networks: quick, text8, or small (the paper's: long, and the plain algorithm needs much memory).
    parts
        What to measure: compared (with the plain algorithm), causal (with transformers' generate), steps (one by
        one), memory (in k) and curves (over steps, candidates, length, vocabulary and batch).
    repeats
        Turns of each sampler, after a short one to warm up.
    compile
        Let our sampler also take its turns with compiled networks; compiling itself takes a minute and is not counted.
    out
        Folder for table, numbers, plots and measurements; by default runs/bench-sample-SCALE.
    json
        Print JSON.
    """
    from edlm.benchmarks.isolated import Measured
    from edlm.benchmarks.sampling import bench_sampling
    from edlm.benchmarks.sampling_report import plots_of, report
    from edlm.commands.output import print_json
    from edlm.extras import require_extra
    from edlm.reports import write_report

    require_extra("eval", "matplotlib")
    folder = out or Path(f"runs/bench-sample-{scale}")
    rows = []
    for section, row in bench_sampling(
        scale, Measured(folder / "measured.jsonl"), parts=[part.strip() for part in parts.split(",")], repeats=repeats,
        compiled=compile,
    ):  # fmt: skip
        print(f"{section}: {row.get('setting', 'speed')} done", file=sys.stderr)
        rows.append((section, row))
    text, results = report(rows)
    written = write_report(folder, text, results, plots_of(results))
    print_json(written.as_dict()) if json else print(written.as_text())


@app.command
def predict(
    *, num_layers: int = 12, width: int = 768, vocab_size: int = 50_257, length: int = 1024, batch_size: int = 1,
    steps: str = "64,256,1024", candidates: str = "1,2,8", window: float = 1.0, energy: str = "coar",
    speed: float = 100e12, bandwidth: float = 2e12, json: bool = False,
) -> None:  # fmt: skip
    """What sampling would cost on a GPU, on paper: arithmetic and seconds of one batch, for a grid of settings.

    Parameters
    ----------
    num_layers
        Layers of denoiser and energy, which are of one size.
    width
        Their width.
    vocab_size
        Tokens of the vocabulary.
    length
        Tokens per sequence.
    batch_size
        Sequences drawn at once.
    steps
        T, as a list.
    candidates
        k, as a list; 1 is the denoiser alone.
    window
        w.
    energy
        ar, coar or nce.
    speed
        Operations per second that the GPU reaches in large products, about half of what its maker states.
    bandwidth
        Bytes per second from its memory.
    json
        Print JSON.
    """
    from edlm.benchmarks.cost import Setting
    from edlm.benchmarks.sampling_report import predicted
    from edlm.commands.output import print_json

    if energy not in ("ar", "coar", "nce"):
        raise UserError(f"--energy must be one of ar, coar, nce, got {energy!r}")
    settings = [
        Setting(num_layers, width, vocab_size, length, batch_size, T, k, window, energy)
        for T in parse_counts(steps, "--steps")
        for k in parse_counts(candidates, "--candidates")
    ]
    text, rows = predicted(settings, speed=speed, bandwidth=bandwidth)
    print_json(rows) if json else print(text, end="")


@app.command
def speculative(
    *, ar: str = "text8-nano-ar", draft: str = "text8-nano-denoiser", drafted: str = "1,2,4,8", num: int = 8,
    length: int | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Tokens per causal pass and seconds of autoregressive sampling with diffusion drafts, against without, in turns.

    Parameters
    ----------
    ar
        The autoregressive model.
    draft
        The denoiser that drafts.
    drafted
        Tokens drafted in a round, as a list.
    num
        Sequences that are timed, one at a time, after one to warm up.
    length
        Tokens per sequence; by default the model's length.
    json
        Print JSON.
    """
    from edlm.benchmarks.speculative import bench_speculative
    from edlm.commands.output import print_json
    from edlm.generation import require_drafter
    from edlm.models.autoregressive import Autoregressive
    from edlm.models.load import load_named
    from edlm.reports import markdown_table

    if num < 1:
        raise UserError(f"--num must be at least 1, got {num}")
    numbers = parse_counts(drafted, "--drafted")
    model = load_named("", ar)
    assert isinstance(model, Autoregressive)
    denoiser = require_drafter(load_named(draft, ""), model, draft)
    report = bench_speculative(model, denoiser, numbers, num=num, length=length)
    if json:
        print_json(report)
        return
    lines = [["drafted", "tokens/causal pass", "drafter passes/token", "s/sequence", "speed-up", "range"]]
    for row in report["rows"]:
        tokens = f"{row['tokens_per_causal_pass']:.2f} ± {row['tokens_per_causal_pass_standard_error']:.2f}"
        low, high = row["speed_up_range"]
        speed = [f"{row['seconds']:.3g}", f"{row['speed_up']:.2f}", f"{low:.2f} to {high:.2f}"]
        lines.append([str(row["drafted"]), tokens, f"{row['drafter_passes_per_token']:.2f}", *speed])
    print(markdown_table(lines), end="")
    size = f"{report['sequences']} sequences of {report['length']} tokens, one at a time, {report['threads']} threads"
    print(f"- plain autoregressive sampling: {report['seconds_plain']:.3g} s per sequence; {size}")


@app.command
def serve(
    *, clients: int = 32, seconds: float = 60.0, max_requests: int = 100_000, steps: int = 8, max_tokens: int = 20,
    json: bool = False,
) -> None:  # fmt: skip
    """Requests per second, latency, errors and memory of a server under load, against one request at a time.

    The server is started for the purpose, with the built-in denoiser, on the loopback address.

    Parameters
    ----------
    clients
        Clients at the same time.
    seconds
        How long they ask, one request after another; one alone asks a quarter as long.
    max_requests
        Stop after so many requests, whatever the time.
    steps
        Denoising steps of a request.
    max_tokens
        Tokens of a completion.
    json
        Print JSON.
    """
    from edlm.benchmarks.serving import Load, bench_serving
    from edlm.commands.output import print_json, print_table
    from edlm.extras import require_extra

    require_extra("serve", "fastapi", "uvicorn", "prometheus_client")
    load = Load(clients=clients, seconds=seconds, max_requests=max_requests, steps=steps, max_tokens=max_tokens)
    report = bench_serving(load)
    print_json(report) if json else print_table(report)
