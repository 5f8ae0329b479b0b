"""The sampling benchmark: both samplers have one law, the cost model counts right, and memory is flat in k."""

import json
import math
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch

import oracle
from edlm.benchmarks import plain
from edlm.benchmarks.cost import Setting, Speed, Work, network_work, projection_work, step_work, work
from edlm.benchmarks.isolated import Measured, isolated
from edlm.benchmarks.sampling import PROCESS, QUICK, SCALES, bench_sampling
from edlm.benchmarks.sampling_process import OTHERS, measure_speed, run
from edlm.benchmarks.sampling_report import agreement_of, exponent, report
from edlm.errors import UserError
from edlm.memory import PASS_TOKENS
from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
from edlm.models.denoiser import Denoiser, DenoiserConfig
from edlm.models.transformer import TransformerConfig
from edlm.randomness import make_generator
from test_cli import assert_refused, edlm, succeed  # noqa: F401

V, L = 2, 3


@torch.no_grad()
def enumerated(carry_over):
    """Two tiny networks, and the same as tables."""
    torch.manual_seed(0)
    size = TransformerConfig(vocab_size=V, length=L, num_layers=1, num_heads=1, width=8, dropout=0.0)
    denoiser, causal = Denoiser(DenoiserConfig(size)).eval(), Autoregressive(AutoregressiveConfig(size)).eval()
    for model in (denoiser, causal):
        torch.nn.init.normal_(model.transformer.head.weight, std=1.0)
    tables = {
        xt: torch.softmax(denoiser.transformer.head(denoiser.transformer(torch.tensor([xt])))[0].double(), -1).numpy()
        for xt in oracle.states(V, L)
    }
    prefixes = [x[:n] for x in oracle.sequences(V, L) for n in range(L)]
    rules = {}
    for prefix in prefixes:
        inputs = torch.tensor([[causal.start_id, *prefix]])
        rules[prefix] = torch.softmax(causal.transformer.head(causal.transformer(inputs))[0, -1].double(), -1).numpy()
    weight = (oracle.carry_over_weight if carry_over else oracle.ar_weight)(rules, tables, V)
    return denoiser, causal, tables, weight


@pytest.mark.parametrize("noise_type", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("carry_over", [False, True], ids=["ar", "coar"])
def test_the_plain_algorithm_has_the_enumerated_law(carry_over, noise_type):
    denoiser, causal, tables, weight = enumerated(carry_over)
    x = plain.sample(
        denoiser, causal, batch_size=8000, length=L, steps=2, candidates=2, window=1.0, carry_over=carry_over,
        generator=make_generator(0), noise_type=noise_type,
    )  # fmt: skip
    law = oracle.importance_chain_law(tables, weight, [0, 0.5, 1], [2, 2], V, L)
    oracle.assert_law([tuple(row) for row in x.tolist()], law, 8000)


def test_the_arithmetic_of_one_pass_is_that_of_its_matrices():
    setting = Setting(num_layers=1, width=8, vocab_size=11, length=5, batch_size=1, steps=1)
    matrices = 2 * 5 * 8 * (3 * 8 + 8 + 32 + 32)  # qkv, out, mlp in and out, two operations each
    attention = 2 * 2 * 5 * 5 * 8  # queries by keys, weights by values
    assert network_work(setting, 5) == matrices + attention
    behind = 2 * 3 * 8 * (8 + 32 + 32)  # three positions in the last block: out, mlp in and out
    assert network_work(setting, 5, needed=2) == matrices + attention - behind
    assert projection_work(setting, 5) == 2 * 5 * 8 * 11


def test_a_plain_step_projects_what_it_reveals_and_a_resampling_one_all_that_is_masked():
    base = Setting(num_layers=1, width=8, vocab_size=1000, length=64, batch_size=2, steps=4)
    assert step_work(base, 1.0, 0.75).drawn == pytest.approx(2 * projection_work(base, 16), rel=1e-6)
    resampling = step_work(Setting(1, 8, 1000, 64, 2, 4, candidates=3), 1.0, 0.75)
    assert resampling.drawn == pytest.approx(2 * projection_work(base, 64), rel=1e-6)
    assert resampling.scored == pytest.approx(2 * 3 * projection_work(base, 64), rel=1e-6)
    outside = Setting(1, 8, 1000, 64, 2, 4, candidates=3, window=0.2)
    assert step_work(outside, 0.5, 0.25).total == step_work(base, 0.5, 0.25).total
    assert work(Setting(1, 8, 1000, 64, 2, 4, candidates=3)).total > work(outside).total > work(base).total


def test_a_fine_grid_needs_no_more_calls_than_there_are_tokens():
    setting = Setting(num_layers=1, width=8, vocab_size=100, length=16, batch_size=1, steps=4096)
    assert work(setting).calls == pytest.approx(16, rel=0.01)
    together = work(replace(setting, steps=1, batch_size=8))
    assert together.calls == together.steps == 1  # one call for the whole batch
    scored = work(replace(setting, steps=1, batch_size=8, candidates=1000))
    assert scored.calls == 1 + math.ceil(8 * 1000 * 16 / PASS_TOKENS["cpu"])


def test_seconds_are_work_over_speed():
    assert Speed(10.0, 5.0, 2.0, 0.5, 0.1).seconds(Work(20.0, 5.0, 4.0, 2.0, 10.0)) == 7.0
    assert exponent([(1, 3.0), (2, 12.0), (4, 48.0)]) == pytest.approx(2.0)


def test_all_samplers_are_timed_in_turns():
    row = run(QUICK, "turns", 1)
    assert row["ours"] > 0
    for name in OTHERS:
        assert row[f"{name}_ratio"] == pytest.approx(row[name] / row["ours"])
        assert row[f"{name}_ratio_range"][0] <= row[f"{name}_ratio"] <= row[f"{name}_ratio_range"][1]
    assert "compiled" not in row


@pytest.mark.slow
def test_compiled_networks_take_turns_too_if_that_is_asked_for():
    row = run(replace(QUICK, candidates=2), "turns-compiled", 1)
    assert row["plain_compiled_ratio"] == pytest.approx(row["plain"] / row["compiled"])
    about = {"predicted": 1.0, "share_of_peak": 0.5, "ours_megabytes": 1.0, "plain_megabytes": 1.0}
    machine = {"threads": 1} | dict.fromkeys(("peak", "network", "drawn", "scored", "call", "step"), 1.0)
    text, _ = report([("machine", machine), ("compared", row | about)])
    assert f"{row['plain_compiled_ratio']:.2f}" in text and "plain / compiled" in text


def test_memory_is_flat_in_the_number_of_candidates():
    few, _, many = SCALES["quick"].lean
    sizes = [isolated(PROCESS, s.label, asdict(s), "ours-memory", 0)["peak_megabytes"] for s in (few, many)]
    assert sizes[1] < sizes[0] + 150


def test_the_constants_of_a_machine_are_positive_and_predict_something():
    speed = measure_speed(QUICK, 1)
    assert all(speed[name] > 0 for name in ("peak", "network", "drawn", "scored"))
    assert speed["call"] >= 0 and speed["step"] >= 0
    rows = [{"predicted": 1.2, "ours": 1.0}, {"predicted": 2.0, "ours": 1.0}, {"predicted": 0.9, "ours": 1.0}]
    assert agreement_of(rows) == {"median": 1.2, "low": 0.9, "high": 2.0, "close": 2, "num": 3}


def test_a_benchmark_goes_on_where_it_was(tmp_path):
    asked = []

    def ask(module, label, *arguments):
        asked.append(arguments[1])
        return {"asked": arguments[1], "n": len(asked)}

    first = Measured(tmp_path / "measured.jsonl")
    first.store.append([{"asked": [PROCESS, {"steps": 1}, "ours", 2], "answer": {"ours": 3.0}}])
    again = Measured(tmp_path / "measured.jsonl")
    assert again(PROCESS, "T=1", {"steps": 1}, "ours", 2) == {"ours": 3.0}  # no process is started
    rows = list(bench_sampling("quick", ask, parts=["causal", "memory"], repeats=1))
    assert [section for section, _ in rows] == ["machine", "causal", "memory", "memory", "memory"]
    assert asked == ["speed", "causal", *3 * ["ours-memory"]]
    with pytest.raises(UserError, match="--parts must be some of compared,causal,steps,memory,curves, got 'all'"):
        list(bench_sampling("quick", ask, parts=["all"], repeats=1))


@pytest.mark.slow
def test_the_quick_benchmark_runs_and_leaves_table_numbers_and_plot(tmp_path):
    command = [sys.executable, "-m", "edlm", "bench", "sample", "--repeats", "1", "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    assert {row["setting"] for row in results["compared"]} == {"T=4", "T=4, k=4, w=1"}
    assert set(results["exponents"]) == {"steps", "candidates"} and results["agreement"]["num"] == 8
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("curves.png", "compared.png"))
    assert "plain / ours" in (tmp_path / "results.md").read_text()


def test_an_unknown_scale_is_refused(edlm, tmp_path):  # noqa: F811
    done = edlm("bench", "sample", "--scale", "huge", "--out", tmp_path)
    assert_refused(done, "--scale must be one of quick, text8, small, got 'huge'")


def test_costs_are_predicted_for_machines_that_are_not_here(edlm):  # noqa: F811
    size = ["--steps", "16,64", "--candidates", "1,8", "--window", 0.2]
    rows = json.loads(succeed(edlm("bench", "predict", *size, "--json")))
    assert [row["setting"] for row in rows] == ["T=16", "T=16, k=8, w=0.2", "T=64", "T=64, k=8, w=0.2"]
    plain, corrected = (work(Setting(12, 768, 50_257, 1024, 1, 64, k, 0.2), device="cuda") for k in (1, 8))
    assert rows[2]["operations"] == plain.total and rows[3]["operations"] == corrected.total
    assert rows[2]["seconds"] > plain.total / 100e12
    faster = json.loads(succeed(edlm("bench", "predict", *size, "--speed", 2e14, "--bandwidth", 4e12, "--json")))
    assert all(2 * new["seconds"] > old["seconds"] > new["seconds"] for new, old in zip(faster, rows, strict=True))
    assert "| T=64, k=8, w=0.2 |" in succeed(edlm("bench", "predict", *size))


@torch.no_grad()
def test_the_gpt_neox_twin_computes_the_same_log_probabilities():
    from edlm.benchmarks.generate import as_gpt_neox
    from toys import tiny_autoregressive

    model = tiny_autoregressive().eval()
    x0 = torch.randint(27, (3, 16), generator=make_generator(0))
    logits = as_gpt_neox(model)(input_ids=model.shift(x0)).logits[..., :27]
    twin = torch.log_softmax(logits.double(), dim=-1).gather(-1, x0.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(model(x0).double(), twin, atol=1e-5, rtol=0)


def test_both_ways_to_sample_a_causal_model_are_timed():
    from edlm.benchmarks.generate import bench_generate
    from toys import tiny_autoregressive

    row = bench_generate(tiny_autoregressive().eval(), batch_size=2, repeats=1)
    assert row["ours"] > 0 and row["transformers"] > 0 and row["ratio"] > 0
