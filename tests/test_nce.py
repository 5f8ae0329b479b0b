"""Noise-contrastive estimation: its losses, its batches, and that it finds the true log-ratio where that is known."""

import json
import math
import subprocess

import numpy as np
import pytest
import torch

import oracle
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, LearnedEnergy
from edlm.errors import UserError
from edlm.masking import corrupt
from edlm.models.denoiser import Denoiser, DenoiserConfig
from edlm.models.energy_network import EnergyNetwork, energy_from_denoiser
from edlm.models.load import load_model
from edlm.nce import binary_loss, diagnostics, ranking_loss
from edlm.objectives import Times
from edlm.randomness import draw, make_generator, make_streams, rand
from edlm.schedule import LogLinear
from edlm.training.batches import NoisyBatches, TextBatches
from edlm.training.build import loss_form
from edlm.training.config import ContrastConfig, EnergyTrainConfig
from edlm.training.tasks import EnergyTask
from runs import ENV, TINY, assert_same_metrics, assert_same_run, command, metrics, torchrun, train
from toys import TableDenoiser, tiny_autoregressive, tiny_config, tiny_denoiser

# --- losses


def test_the_binary_loss_is_two_log_losses_with_the_mean_of_the_negatives():
    energies = torch.tensor([[-1.0, 2.0, 0.5]])
    by_hand = math.log1p(math.exp(-1)) + (math.log1p(math.exp(-2)) + math.log1p(math.exp(-0.5))) / 2
    torch.testing.assert_close(binary_loss(energies), torch.tensor([by_hand]))
    assert torch.isfinite(binary_loss(torch.tensor([[1e4, -1e4], [-1e4, 1e4]]))).all()


def test_the_ranking_loss_is_blind_to_what_all_completions_share():
    energies = torch.randn(4, 5, generator=make_generator(0))
    torch.testing.assert_close(ranking_loss(energies), ranking_loss(energies + torch.randn(4, 1)))
    torch.testing.assert_close(ranking_loss(torch.zeros(1, 8)), torch.tensor([math.log(8)]))


def test_diagnostics_say_what_they_say():
    told = diagnostics(torch.tensor([[-2.0, 1.0, 3.0], [1.0, -1.0, 0.5]]))
    assert told["accuracy"].tolist() == [1.0, 0.25] and told["pair_accuracy"].tolist() == [1.0, 0.0]
    assert told["energy_true"].tolist() == [-2, 1] and told["energy_drawn"].tolist() == [2, -0.25]
    torch.testing.assert_close(told["log_z"][0], torch.tensor((math.exp(-1) + math.exp(-3)) / 2).log().double())


# --- the network


def test_an_energy_starts_at_zero_with_the_denoisers_transformer():
    denoiser = tiny_denoiser()
    for inputs in ("marked", "joined"):
        for pooling in ("mean", "sum"):
            network = energy_from_denoiser(denoiser, inputs=inputs, pooling=pooling)
            x0, xt = torch.randint(27, (2, 3, 16)), torch.full((3, 16), 27)
            assert network(x0[0], xt, torch.rand(3)).tolist() == [0, 0, 0]
            block, source = network.transformer.blocks[1].mlp_in, denoiser.transformer.blocks[1].mlp_in
            assert torch.equal(block.weight, source.weight)


@pytest.mark.parametrize("inputs", ["marked", "joined"])
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_an_energy_sees_the_text_what_was_masked_and_the_time_and_survives_a_save(inputs, pooling, tmp_path):
    network = energy_from_denoiser(tiny_denoiser(), inputs=inputs, pooling=pooling).eval()
    torch.manual_seed(0)
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.3)
    x0 = torch.randint(27, (1, 16), generator=make_generator(0))
    xt = x0.masked_fill(torch.arange(16) % 2 == 0, 27)
    t, other = torch.tensor([0.4]), x0.clone()
    other[0, 4] = (other[0, 4] + 1) % 27
    base = network(x0, xt, t)
    changed = [network(other, xt, t), network(x0, x0.masked_fill(torch.arange(16) < 3, 27), t), network(x0, xt, 2 * t)]
    assert all((value - base).abs() > 1e-5 for value in changed)
    network.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(again, EnergyNetwork) and torch.equal(again(x0, xt, t), base)


# --- enumerable data


class TableEnergyModel(torch.nn.Module):
    """One free number for every completion of every state: nothing but the loss decides what it becomes."""

    num_passes = 1

    def __init__(self, V, L):
        super().__init__()
        self.V, self.L = V, L
        self.energies = torch.nn.Parameter(torch.zeros((V + 1) ** L, V**L, dtype=torch.float64))

    def forward(self, x0, xt, t, log_proposal):
        place = torch.arange(self.L).flip(0)
        state, text = (xt * (self.V + 1) ** place).sum(-1), (x0 * self.V**place).sum(-1)
        return self.energies[state.unsqueeze(-1), text]


@pytest.mark.parametrize("form", ["binary", "ranking"])
def test_nce_recovers_the_true_log_ratio_and_log_z_goes_to_zero(form):
    V, L, B, steps = 2, 3, 1024, 1500
    data = oracle.chain_data(L, coupling=0.7)
    table = oracle.posterior_denoiser(data, V, L)
    model = TableEnergyModel(V, L)
    task = EnergyTask(model, model, TableDenoiser(table, V), None, None, form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    texts, law, generator = torch.tensor(list(data)), torch.tensor(list(data.values())).log(), make_generator(0)
    for _ in range(steps):
        x0 = texts[draw(law.expand(B, -1), rand((B,), generator))]
        t = rand((B,), generator)
        xt = corrupt(x0, t, LogLinear(), V, generator=generator)
        loss = task.loss({"x0": x0, "xt": xt, "t": t, "uniform": rand((B, 4, L), generator)}).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    assert_energy_is_the_log_ratio(model, data, table, V, L, is_normalised=form == "binary")


@torch.no_grad()
def assert_energy_is_the_log_ratio(model, data, table, V, L, *, is_normalised):
    learned, true, log_z = [], [], []
    for xt in oracle.states(V, L):
        items = list(oracle.completions(xt, V))
        if len(items) < 4:
            continue  # with one masked position the denoiser is exact and the ratio is one
        p = np.array([oracle.proposal(x0, xt, table, V) for x0 in items])
        q = np.array([data[x0] for x0 in items])
        ratio = np.log(q / q.sum()) - np.log(p)
        energies = model(torch.tensor([items]), torch.tensor([xt]), None, None)[0].numpy()
        centre = 0.0 if is_normalised else np.average(ratio + energies)
        learned += list(-energies + centre)
        true += list(ratio)
        log_z.append(np.log(np.sum(p * np.exp(-energies))))
    assert np.corrcoef(learned, true)[0, 1] > 0.99
    if is_normalised:
        assert np.abs(log_z).max() < 0.05 and np.abs(np.array(learned) - true).mean() < 0.06


def test_the_energy_network_learns_the_log_ratio_from_the_exact_expectation_of_the_loss():
    """Every pair of a true and a drawn completion, weighted by its probability: no noise but the network's own."""
    V, L = 2, 3
    data = oracle.chain_data(L, coupling=0.7)
    table = oracle.posterior_denoiser(data, V, L)
    rows = [(s, xt, x0) for s, xt in enumerate(oracle.states(V, L)) for x0 in oracle.completions(xt, V)]
    rows = [(s, xt, x0) for s, xt, x0 in rows if len(oracle.masked(xt, V)) > 1]
    state, xt, x0 = (torch.tensor(column) for column in zip(*rows, strict=True))
    t = (xt == V).sum(-1) / L
    q = torch.tensor([data[x0] for _, _, x0 in rows], dtype=torch.float64)  # q(x0), of which q(x0 | xt) is a share
    p = torch.tensor([oracle.proposal(x0, xt, table, V) for _, xt, x0 in rows], dtype=torch.float64)
    mass = torch.zeros(len(oracle.states(V, L)), dtype=torch.float64).index_add(0, state, q)
    true, drawn = torch.where(state.unsqueeze(1) == state)
    torch.manual_seed(0)
    config = tiny_config(vocab_size=V, length=L, width=64, num_layers=2)
    network = energy_from_denoiser(Denoiser(DenoiserConfig(config)))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for _ in range(1000):
        energies = network(x0, xt, t)
        (q[true] * p[drawn] * binary_loss(torch.stack([energies[true], energies[drawn]], dim=1))).sum().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.1)  # one large step too many ends at E = 0
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    energies = network(x0, xt, t).detach().double()
    ratio = (q / mass[state] / p).log()
    log_z = torch.zeros_like(mass).index_add(0, state, p * torch.exp(-energies))[state.unique()].log()
    assert np.corrcoef(-energies, ratio)[0, 1] > 0.99 and log_z.abs().max() < 0.05


# --- the task


class Words:
    """Blocks of random tokens."""

    length = 16

    def __init__(self, num=64):
        self.tokens = np.random.default_rng(0).integers(0, 27, (num, 16))

    def __len__(self):
        return len(self.tokens)

    def get(self, index):
        return self.tokens[index]


def batches(**settings):
    return NoisyBatches(TextBatches(Words(), 0), LogLinear(), 27, 8, **settings)


def test_one_denoiser_pass_serves_all_negatives_and_the_denoiser_stays_frozen():
    denoiser = tiny_denoiser(dropout=0.5).train()
    passes = []
    denoiser.transformer.register_forward_hook(lambda *_: passes.append(1))
    network = energy_from_denoiser(denoiser)
    task = EnergyTask(network, LearnedEnergy(network), denoiser, batches(negatives=5), None, "binary")
    task.loss(task.collate(list(range(8)))).mean().backward()
    assert len(passes) == 1 and not denoiser.training and all(p.grad is None for p in denoiser.parameters())
    assert network.transformer.head.weight.grad.abs().sum() > 0


def test_the_true_completion_comes_first_and_negatives_are_draws_of_the_denoiser():
    denoiser = tiny_denoiser()
    seen = {}

    def spy(x0, xt, t, log_proposal):
        seen.update(x0=x0, log_proposal=log_proposal)
        return torch.zeros_like(log_proposal)

    task = EnergyTask(energy_from_denoiser(denoiser), spy, denoiser, batches(negatives=3), None, "binary")
    batch = task.collate(list(range(8)))
    task.energies(batch)
    assert torch.equal(seen["x0"][:, 0], batch["x0"]) and seen["x0"].shape == (8, 4, 16)
    known = batch["xt"] != 27
    assert (seen["x0"] == batch["x0"].unsqueeze(1))[known.unsqueeze(1).expand(-1, 4, -1)].all()
    assert (seen["log_proposal"][:, 0] < seen["log_proposal"][:, 1:].mean(-1)).float().mean() > 0.6


def test_times_can_be_selected_and_weighted():
    t = batches(times=Times(0.5, 0.75), negatives=1)(list(range(64)))["t"]
    assert t.min() > 0.5 and t.max() <= 0.75
    assert batches(times=Times(power=0.5))(list(range(64)))["t"].mean() > 0.6
    network = energy_from_denoiser(tiny_denoiser())
    task = EnergyTask(
        network, LearnedEnergy(network), tiny_denoiser(), batches(negatives=1), None, "binary", t_weight=2.0
    )
    batch = task.collate(list(range(8)))
    torch.testing.assert_close(task.loss(batch), (2 * math.log(2) * batch["t"] ** 2).float())


def test_validation_tells_accuracy_energies_ess_and_log_z_by_time():
    network = energy_from_denoiser(tiny_denoiser())
    validation = batches(negatives=8)
    task = EnergyTask(network, LearnedEnergy(network), tiny_denoiser(), validation, validation, "binary")
    values = task.validate(range(40), 16, torch.device("cpu"))
    told = task.summarise(values)
    assert abs(told["loss"] - 2 * math.log(2)) < 1e-6 and abs(told["log_z"]) < 1e-6
    assert told["pair_accuracy"] == 0.5 and abs(told["effective_sample_size"] - 8) < 1e-9
    for name in ("loss", "accuracy", "energy_true", "energy_drawn", "effective_sample_size", "log_z"):
        assert {f"{name}_t{b / 5:.1f}-{(b + 1) / 5:.1f}" for b in range(5)} <= set(told)


def test_the_loss_fits_the_energy():
    assert loss_form(EnergyTrainConfig()) == "binary"
    assert loss_form(EnergyTrainConfig(init="ar:x")) == "ranking"
    assert loss_form(EnergyTrainConfig(init="coar:x")) == "binary"
    with pytest.raises(UserError, match="binary needs a normalised energy"):
        loss_form(EnergyTrainConfig(init="ar:x", nce=ContrastConfig(loss="binary")))


@pytest.mark.parametrize("make", [AutoregressiveEnergy, CarryOverEnergy])
def test_a_causal_energy_can_be_fine_tuned_by_contrast(make):
    model, denoiser = tiny_autoregressive(), tiny_denoiser()
    task = EnergyTask(model, make(model), denoiser, batches(negatives=3), None, "ranking")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(30):
        loss = task.loss(task.collate(list(range(8)))).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05


# --- the command


ENERGY = {k: v for k, v in TINY.items() if k.startswith(("run", "optim"))}


@pytest.fixture(scope="module")
def energy_run(finished, tmp_path_factory):
    out = tmp_path_factory.mktemp("energy") / "run"
    settings = ENERGY | {"denoiser": finished[0], "nce.negatives": 2}
    train("energy", out, settings)
    return out, settings


def test_training_an_energy_leaves_a_network_that_the_sampler_takes(energy_run, finished):
    out, _ = energy_run
    assert isinstance(load_model(out), EnergyNetwork)
    last = [line for line in metrics(out) if "eval_loss" in line][-1]
    assert last["eval_loss"] < 2 * math.log(2) and "eval_accuracy_t0.8-1.0" in last
    words = [
        "sample",
        "--denoiser",
        str(finished[0]),
        "--energy",
        f"nce:{out} + 0.5*nce:{out}",
        "--json",
        "--steps",
        "4",
    ]
    done = subprocess.run([*command("x", out, {})[:3], *words], capture_output=True, text=True, env=ENV, timeout=100)
    report = json.loads(done.stdout)
    assert report["samples"][0]["energy_evaluations"] == 4 * report["samples"][0]["denoiser_evaluations"]


@pytest.mark.slow
def test_an_interrupted_energy_run_ends_like_one_never_stopped(energy_run, tmp_path):
    whole, settings = energy_run
    train("energy", tmp_path / "part", settings | {"run.steps": 10})
    (tmp_path / "part" / "model").rename(tmp_path / "elsewhere")
    train("energy", tmp_path / "part", settings)  # a constant learning rate may go on for longer
    assert_same_run(whole, tmp_path / "part")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--run.shard",)], ids=["copies", "shards"])
def test_two_processes_train_the_energy_of_one(tmp_path, corpus, flags):
    plain = TINY | corpus | {"model.dropout": 0.0, "run.steps": 2, "run.eval-every": 0}
    train("denoiser", tmp_path / "denoiser", plain)
    settings = ENERGY | {"denoiser": tmp_path / "denoiser", "run.steps": 10}
    train("energy", tmp_path / "one", settings)
    torchrun("energy", tmp_path / "two", settings, *flags)
    assert_same_metrics(tmp_path / "one", tmp_path / "two")


def test_bad_energy_runs_are_refused(finished, tmp_path):
    for settings, message in (
        ({}, "name the denoiser"),
        ({"denoiser": finished[0], "nce.negatives": 0}, "nce.negatives must be at least 1, got 0"),
        ({"denoiser": finished[0], "init": "gpt:x"}, "init must be empty, ar:DIR or coar:DIR, got 'gpt:x'"),
        ({"denoiser": finished[0], "nce.t-min": 0.9, "nce.t-max": 0.5}, "0 <= t_min < t_max <= 1"),
    ):
        done = train("energy", tmp_path / "run", ENERGY | settings, check=False)
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_the_same_numbers_draw_the_same_negatives_in_any_batch():
    whole = batches(negatives=2)(list(range(8)))
    part = batches(negatives=2)([5])
    assert torch.equal(whole["uniform"][5:6], part["uniform"]) and torch.equal(whole["xt"][5:6], part["xt"])
    assert torch.equal(rand((1, 3), make_streams(0, [5])), rand((1, 3), make_streams(0, [5])))
