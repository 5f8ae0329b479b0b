"""Training as a user meets it: real processes, real crashes, real bits."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from edlm.models.denoiser import Denoiser
from edlm.models.load import load_model
from edlm.training.record import read_record
from runs import ENV, TINY, assert_same_metrics, assert_same_run, command, metrics, torchrun, train, weights


def test_training_learns_and_leaves_a_model_that_samples(finished):
    out, _ = finished
    losses = [line["bits"] for line in metrics(out) if "bits" in line]
    assert len(losses) == 40 and np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    assert (out / "previews.jsonl").read_text().count("\n") == 4
    model = load_model(out)  # a run's folder stands for its model
    assert isinstance(model, Denoiser) and model.config.transformer.length == 32
    assert (out / "model" / "run.yaml").read_text().startswith("edlm_version: 0")


def test_validation_uses_the_averaged_weights_and_states_its_error(finished):
    out, _ = finished
    evaluations = [line for line in metrics(out) if "eval_bits" in line]
    assert [line["step"] for line in evaluations] == [10, 20, 30, 40]
    assert all(0 < line["eval_standard_error"] < 1 for line in evaluations)
    averaged = load_file(out / "checkpoint-40" / "model.safetensors")
    trained = load_file(out / "checkpoint-40" / "training.safetensors")
    assert any(not torch.equal(v, trained[f"model.{k}"]) for k, v in averaged.items())


def test_the_last_two_checkpoints_and_the_best_are_kept(finished):
    out, _ = finished
    best = json.loads((out / "checkpoint-40" / "trainer_state.json").read_text())["best_global_step"]
    kept = {int(p.name[11:]) for p in out.glob("checkpoint-*")}
    assert kept == {35, 40, best}


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_bit_equal_to_one_never_stopped(finished, tmp_path):
    whole, settings = finished
    out, rng, kills = tmp_path / "killed", random.Random(3), 0
    times = [(whole / f"checkpoint-{step}").stat().st_mtime for step in (35, 40)]
    between = times[1] - times[0]  # seconds from one checkpoint to the next, on this machine
    for _ in range(12):
        process = subprocess.Popen(
            command("denoiser", out, settings), env=ENV, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        before = checkpoint_names(out)
        while process.poll() is None and (checkpoint_names(out) == before or kills >= 4):
            time.sleep(0.01)
        if process.poll() is None:
            time.sleep(rng.uniform(0, between))  # anywhere: in a step, in a write, in a validation
            process.send_signal(signal.SIGKILL)
            kills += 1
        if process.wait() == 0:
            break
    assert kills >= 3 and (out / "model").exists()
    assert_same_run(whole, out)


def checkpoint_names(out):
    return {p.name for p in out.glob("checkpoint-*")}


@pytest.mark.slow
def test_sigterm_saves_and_exits_cleanly_and_the_run_goes_on(corpus, tmp_path):
    settings = TINY | corpus | {"run.steps": 5000, "run.save-every": 5000, "run.eval-every": 0}
    process = subprocess.Popen(command("ar", tmp_path / "a", settings), env=ENV, stdout=subprocess.PIPE, text=True)
    while not (tmp_path / "a" / "metrics.jsonl").exists() or len(metrics(tmp_path / "a")) < 5:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    printed = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "run the same command again to go on" in printed
    (checkpoint,) = checkpoint_names(tmp_path / "a")
    step = int(checkpoint[11:])
    settings["run.steps"] = step + 10  # a constant learning rate may go on for longer or shorter
    train("ar", tmp_path / "a", settings)
    train("ar", tmp_path / "b", settings)
    assert all(torch.equal(v, weights(tmp_path / "b")[k]) for k, v in weights(tmp_path / "a").items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["denoiser", "ar"])
def test_two_processes_compute_the_losses_of_one(corpus, tmp_path, kind):
    settings = TINY | corpus | {"model.dropout": 0.0, "run.steps": 12}
    train(kind, tmp_path / "one", settings)
    torchrun(kind, tmp_path / "two", settings)
    assert_same_metrics(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["denoiser", "ar"])
def test_a_run_sharded_over_two_processes_is_continued_by_one_as_if_never_sharded(corpus, tmp_path, kind):
    settings = TINY | corpus | {"model.dropout": 0.0, "run.steps": 12}
    train(kind, tmp_path / "whole", settings)
    torchrun(kind, tmp_path / "sharded", settings | {"run.steps": 10}, "--run.shard")
    (tmp_path / "sharded" / "model").rename(tmp_path / "elsewhere")
    train(kind, tmp_path / "sharded", settings)
    assert_same_metrics(tmp_path / "whole", tmp_path / "sharded")
    torch.testing.assert_close(weights(tmp_path / "sharded"), weights(tmp_path / "whole"), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_network_trains_like_a_plain_one(corpus, tmp_path):
    settings = TINY | corpus | {"model.dropout": 0.0, "run.steps": 3, "run.eval-every": 0}
    train("ar", tmp_path / "plain", settings)
    train("ar", tmp_path / "compiled", settings, "--run.compile")
    assert_same_metrics(tmp_path / "plain", tmp_path / "compiled", tolerance=1e-4)


def test_tensorboard_files_are_written_if_asked_for(corpus, tmp_path):
    settings = TINY | corpus | {"run.steps": 3, "run.eval-every": 2}
    train("ar", tmp_path / "run", settings, "--run.tensorboard")
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))


def test_sharding_needs_several_processes(corpus, tmp_path):
    done = train("ar", tmp_path / "run", TINY | corpus, "--run.shard", check=False)
    assert done.returncode == 2 and "start it with torchrun" in done.stderr


def test_a_full_disk_gives_a_clear_error_and_leaves_the_last_checkpoint(corpus, tmp_path):
    settings = TINY | corpus | {"run.steps": 30, "run.eval-every": 0, "run.save-every": 10}
    train("ar", tmp_path / "run", settings | {"run.steps": 10})
    limit = (tmp_path / "run" / "checkpoint-10" / "training.safetensors").stat().st_size // 2
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes beyond the limit fail as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from edlm.cli import main
sys.argv = {command("ar", tmp_path / "run", settings)[2:]!r}
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV, timeout=120)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "could not write" in done.stderr and "earlier checkpoints are intact" in done.stderr
    assert checkpoint_names(tmp_path / "run") == {"checkpoint-10"} and not list((tmp_path / "run").glob(".*partial"))
    train("ar", tmp_path / "run", settings)
    assert checkpoint_names(tmp_path / "run") == {"checkpoint-20", "checkpoint-30"}


def test_a_non_finite_loss_stops_before_the_optimizer_step_and_names_it(corpus, tmp_path):
    settings = TINY | corpus | {"optim.learning-rate": 1e30, "optim.clip": 0, "run.eval-every": 0}
    done = train("ar", tmp_path / "run", settings, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert (
        "the loss is" in done.stderr and "at step" in done.stderr and "stopped before the optimizer step" in done.stderr
    )


def test_other_settings_do_not_continue_a_run(finished):
    out, settings = finished
    done = train("denoiser", out, settings | {"optim.learning-rate": 0.1}, check=False)
    assert done.returncode == 2 and "holds a run with optim.learning_rate = 0.003, not 0.1" in done.stderr
    done = train("denoiser", out, settings, "--run.resume", "never", check=False)
    assert done.returncode == 2 and "already holds checkpoints" in done.stderr


def test_a_denoiser_can_start_from_a_causal_model(finished, corpus, tmp_path):
    out, _ = finished
    start = {
        "model.init": out,
        "run.steps": 1,
        "run.eval-every": 0,
        "run.save-every": 1,
        "optim.learning-rate": 1e-9,
        "optim.ema": 0,
    }
    train("ar", tmp_path / "ar", TINY | corpus | start)
    torch.testing.assert_close(weights(tmp_path / "ar"), weights(out), atol=1e-6, rtol=1e-6)
    (before,) = yaml.safe_load((tmp_path / "ar" / "model" / "run.yaml").read_text())["history"]
    assert (before["name"], before["steps"], before["tokens_seen"]) == (out.name, 40, 40 * 8 * 32)
    train("ar", tmp_path / "next", TINY | corpus | start | {"model.init": tmp_path / "ar"})
    record = read_record(tmp_path / "next" / "model", 32)
    assert [(run["name"], run["steps"]) for run in record.history] == [(out.name, 40), ("ar", 1)]
    done = train("ar", tmp_path / "wide", TINY | corpus | start | {"model.width": 64}, check=False)
    assert done.returncode == 2 and "has another shape" in done.stderr
