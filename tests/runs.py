"""Tiny training runs in real processes."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

WORDS = ["the", "of", "and", "one", "in", "a", "to", "zero", "nine", "two", "is", "as", "eight", "for", "s", "five"]
ENV = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "EDLM_TRACEBACK")} | {
    "OMP_NUM_THREADS": "1"
}
TINY = {
    "model.width": 32, "model.num-layers": 2, "model.num-heads": 2, "data.length": 32, "run.batch-size": 8,
    "run.eval-every": 10, "run.eval-blocks": 16, "run.log-every": 1, "run.save-every": 5, "run.steps": 20,
    "optim.warmup-steps": 5, "optim.learning-rate": 0.003,
}  # fmt: skip


def command(kind, out, settings, *flags):
    options = itertools.chain.from_iterable((f"--{key}", str(value)) for key, value in settings.items())
    return [sys.executable, "-m", "edlm", "train", kind, *options, "--run.out", str(out), *flags]


def train(kind, out, settings, *flags, check=True, prefix=(), env=ENV):
    done = subprocess.run(
        [*prefix, *command(kind, out, settings, *flags)], capture_output=True, text=True, env=env, timeout=600
    )
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


def metrics(out):
    lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


def weights(out):
    return load_file(Path(out) / "model" / "model.safetensors")


def assert_same_run(a, b):
    assert metrics(a) == metrics(b)  # floats compare bit for bit
    assert all(torch.equal(v, weights(b)[k]) for k, v in weights(a).items())
    last = [
        load_file(sorted(Path(out).glob("checkpoint-*"), key=lambda p: int(p.name[11:]))[-1] / "training.safetensors")
        for out in (a, b)
    ]
    assert all(torch.equal(v, last[1][k]) for k, v in last[0].items())


def torchrun(kind, out, settings, *flags, processes=2):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [*launcher, "-m", "edlm", *command(kind, out, settings, *flags)[3:]]
    done = subprocess.run(words, capture_output=True, text=True, env=ENV, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def assert_same_metrics(a, b, tolerance=1e-5):
    """Losses and validations of two runs agree, step by step."""
    one, two = metrics(a), metrics(b)
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for ours, theirs in zip(one, two, strict=True):
        for key in ("bits", "loss", "eval_bits", "eval_loss", "eval_standard_error"):
            assert abs(ours.get(key, 0) - theirs.get(key, 0)) < tolerance, (ours, theirs)
