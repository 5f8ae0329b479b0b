"""Energies of single steps, E(xs, xt): training, law of the sampler and bound, against enumeration."""

import functools
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import edlm
import oracle
from edlm import sampler
from edlm.energy import AutoregressiveEnergy, LearnedEnergy, StepEnergy, WeightedSum, judges_steps, learned_energy
from edlm.energy_spec import energy_label, load_energy
from edlm.errors import UserError
from edlm.evaluation import make_score
from edlm.importance import ImportanceSampling, RevealFirst, make_importance
from edlm.likelihood import Ideal, RevealStep, certified_nll, paper_nll, trajectory_nll
from edlm.likelihood_config import LikelihoodConfig
from edlm.masking import corrupt_step
from edlm.models.denoiser import predict
from edlm.models.energy_network import energy_from_denoiser
from edlm.models.load import load_model
from edlm.nce import ranking_loss
from edlm.randomness import draw, make_generator, make_streams, rand
from edlm.sample_config import SampleConfig
from edlm.schedule import Cosine, LogLinear, uniform_times
from edlm.study import Method, make_grid
from edlm.training.build import loss_form, start_energy
from edlm.training.config import ContrastConfig, EnergyTrainConfig
from edlm.training.tasks import EnergyTask
from runs import ENV, TINY, assert_same_run, metrics, train
from test_nce import batches
from toys import TableDenoiser, TableEnergy, tiny_autoregressive, tiny_denoiser

V, L, N = 2, 3, 8_000
TABLE = oracle.random_denoiser(V, L, seed=0)
DENOISER = TableDenoiser(TABLE, V)
RANDOM = np.random.default_rng(3)
STEPS = {(xs, xt): RANDOM.normal() for xt in oracle.states(V, L) for xs in oracle.successors(xt, V)}
SEQUENCES = oracle.sequences(V, L)
x0 = torch.tensor(SEQUENCES).repeat_interleave(N // len(SEQUENCES), 0)  # equally many rows of each


def as_network(energy):
    """A table of energies called like a network."""
    return lambda xs, xt, t: energy(xs.unsqueeze(1), xt, t, None).squeeze(1)


ENERGY = StepEnergy(as_network(TableEnergy(STEPS, V)))


def weight(xs, xt):
    return math.exp(-STEPS[xs, xt])


@functools.cache
def step_law(xt, S, k):
    return oracle.step_energy_law(xt, S, TABLE, weight, k, V)


def grid(steps):
    return np.linspace(0, 1, steps + 1)


def rows(x):
    return [tuple(row) for row in x.tolist()]


# --- the law of the sampler


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize(("state", "S"), [((V, V, V), (0, 2)), ((V, 1, V), (0, 2)), ((V, V, 0), (1,))])
def test_one_step_follows_the_enumerated_law(state, S, k):
    num = 20_000
    start = sampler.init(L, make_streams(0, range(num)), V, fixed=torch.tensor(state))
    is_revealed = torch.zeros(num, L, dtype=torch.bool)
    is_revealed[:, list(S)] = True
    t = torch.full((num,), 0.7, dtype=torch.float64)
    after, _ = sampler.reveal(start, DENOISER, t, t / 2, is_revealed, importance=ImportanceSampling(ENERGY, k))
    oracle.assert_law(rows(after.x), step_law(state, S, k), num)
    agreed = sum(p**k for p in step_law(state, S, 1).values())  # then there is nothing to weigh
    assert (after.denoiser_evaluations == 1).all() and set(after.energy_evaluations.tolist()) <= {0, k}
    assert abs((after.energy_evaluations == 0).double().mean() - (agreed if k > 1 else 1)) < 0.02


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_texts_follow_the_enumerated_law(steps, k):
    state = sampler.init(L, make_streams(0, range(N)), V)
    x = sampler.sample(state, DENOISER, uniform_times(steps), importance=ImportanceSampling(ENERGY, k))
    oracle.assert_law(rows(x), oracle.chain_of_steps_law(lambda xt, S: step_law(xt, S, k), grid(steps), V, L), N)


def test_first_hitting_reveals_one_token_by_the_law_of_one_token():
    state = sampler.init(L, make_streams(0, range(N)), V)
    *_, (after, _) = sampler.first_hitting(state, DENOISER, importance=ImportanceSampling(ENERGY, 2))
    law = {(V,) * L: 1.0}
    for num_masked in range(L, 0, -1):
        new = {}
        for xt, p in law.items():
            for i in oracle.masked(xt, V):
                for xs, q in step_law(xt, (i,), 2).items():
                    new[xs] = new.get(xs, 0) + p * q / num_masked
        law = new
    oracle.assert_law(rows(after.x), law, N)


def test_many_candidates_reach_the_energy_based_step():
    state, S = (V, V, V), (0, 1)
    ideal = step_law(state, S, None)
    distances = [oracle.total_variation(step_law(state, S, k), ideal) for k in (2, 4, 8)]
    assert distances[0] > 1.7 * distances[1] > 1.7 * 1.7 * distances[2]  # about 1/k
    num = 4000
    is_revealed = torch.tensor([True, True, False]).expand(num, -1)
    t = torch.ones(num, dtype=torch.float64)
    start = sampler.init(L, make_streams(0, range(num)), V)
    after, _ = sampler.reveal(start, DENOISER, t, t / 2, is_revealed, importance=ImportanceSampling(ENERGY, 512))
    oracle.assert_law(rows(after.x), ideal, num)


def test_candidates_stay_masked_where_the_step_reveals_nothing():
    denoiser = tiny_denoiser()
    network = energy_from_denoiser(denoiser, target="step").eval()
    start, importance = sampler.init(16, make_streams(0, range(8)), 27), ImportanceSampling(StepEnergy(network), 3)
    for state, info in sampler.trajectory(start, denoiser, uniform_times(4), importance=importance):
        hidden = (state.x == 27)[info.choice.rows].unsqueeze(1).expand(-1, 3, -1)
        assert torch.equal(info.choice.x0 == 27, hidden)


# --- the bound


def oracle_bound(x, steps, k):
    return oracle.expected_step_bound(x, TABLE, weight, grid(steps), k, V)


def mean(values):
    return values.mean().item(), values.std().item() / math.sqrt(len(values))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_bound_holds_and_is_its_enumerated_expectation(steps, k):
    chain = oracle.chain_of_steps_law(lambda xt, S: step_law(xt, S, k), grid(steps), V, L)
    exact = np.mean([-math.log(chain[x]) for x in SEQUENCES])
    expected = np.mean([oracle_bound(x, steps, k) for x in SEQUENCES])
    assert exact < expected + 1e-9
    settings = {"seed": 3, "steps": steps, "inner": 1}
    values = certified_nll(DENOISER, ImportanceSampling(ENERGY, k), x0, range(N), **settings)[:, 0]
    estimate, error = mean(values)
    assert abs(estimate - expected) < 4.5 * error and error < 0.03 * expected


def test_more_inner_draws_tighten_the_bound_towards_the_steps_own_likelihood():
    num, state, S = 2000, (V,) * L, (0, 2)
    text = torch.tensor([[1, 0, 1]]).expand(num, -1)
    xt, is_revealed = torch.full((num, L), V), torch.tensor([True, False, True]).expand(num, -1)
    step = RevealStep(text, xt, torch.ones(num), is_revealed, [(0, i) for i in range(num)], V)
    true = math.log(step_law(state, S, 3)[1, V, 1] / (TABLE[state][0, 1] * TABLE[state][2, 1]))
    gains = [step.gain(predict(DENOISER, xt), ImportanceSampling(ENERGY, 3), inner).mean() for inner in (1, 4, 64)]
    assert gains[0] < gains[1] < gains[2] < true + 0.01 and true - gains[2] < 0.01


def test_the_ideal_samplers_bound_has_the_partition_function_of_the_step():
    num, state, S = 2000, (V,) * L, (0, 2)
    text = torch.tensor([[1, 0, 1]]).expand(num, -1)
    xt, is_revealed = torch.full((num, L), V), torch.tensor([True, False, True]).expand(num, -1)
    step = RevealStep(text, xt, torch.ones(num), is_revealed, [(0, i) for i in range(num)], V)
    true = math.log(step_law(state, S, None)[1, V, 1] / (TABLE[state][0, 1] * TABLE[state][2, 1]))
    rough, fine = (step.gain(predict(DENOISER, xt), Ideal(ENERGY, partition_samples=n), 1).mean() for n in (2, 256))
    assert rough < fine < true + 0.01 and true - fine < 0.02


@pytest.mark.parametrize("steps", [None, 1, 2])
def test_the_bound_with_many_inner_draws_holds_also_for_one_token_at_a_time(steps):
    law = ImportanceSampling(ENERGY, 2)
    chain = oracle.chain_of_steps_law(lambda xt, S: step_law(xt, S, 2), grid(steps or 256), V, L)
    estimate, error = mean(certified_nll(DENOISER, law, x0, range(N), seed=4, steps=steps, inner=16)[:, 0])
    assert estimate > np.mean([-math.log(chain[x]) for x in SEQUENCES]) - 4.5 * error


def test_whole_trajectories_are_tighter_and_still_a_bound():
    law, some = ImportanceSampling(ENERGY, 2), slice(0, N, 4)
    chain = oracle.chain_of_steps_law(lambda xt, S: step_law(xt, S, 2), grid(2), V, L)
    settings = {"seed": 4, "steps": 2, "inner": 4, "trajectories": 8}
    tight, alone = trajectory_nll(DENOISER, law, x0[some], range(N)[some], **settings).T
    estimate, error = mean(tight)
    assert estimate > np.mean([-math.log(chain[x]) for x in SEQUENCES]) - 4.5 * error
    assert estimate < alone.mean() - 0.01


def test_the_bound_is_the_ranking_loss():
    """With K = k completions and all masked tokens revealed: log k - loss is the gain, from the same draws."""
    denoiser = tiny_denoiser()
    network = energy_from_denoiser(denoiser, target="step").eval()
    torch.nn.init.normal_(network.transformer.head.weight)
    text, xt, t = torch.randint(27, (64, 16), generator=make_generator(0)), torch.full((64, 16), 27), torch.ones(64)
    task = EnergyTask(network, StepEnergy(network), denoiser, None, None, "ranking")
    uniform = rand((64, 3, 16), make_generator(1))
    batch = {"x0": text, "xt": xt, "t": t, "uniform": uniform, "is_revealed": xt == 27}
    with torch.no_grad():
        loss = ranking_loss(task.energies(batch))
    step = RevealStep(text, xt, t, xt == 27, [(0, i) for i in range(64)], 27)
    with torch.no_grad():
        gain = step.gain(predict(denoiser, xt, t), ImportanceSampling(StepEnergy(network), 4), 1)
    difference = (math.log(4) - loss) - gain
    assert abs(difference.mean()) < 4.5 * difference.std() / 8


def test_a_step_that_reveals_nothing_costs_nothing_and_gains_nothing():
    calls = []

    def network(xs, xt, t):
        calls.append(len(xs))
        return torch.zeros(len(xs))

    xt = torch.full((4, L), V)
    nothing = torch.zeros(4, L, dtype=torch.bool)
    step = RevealStep(x0[:4], xt, torch.ones(4), nothing, [(0, i) for i in range(4)], V)
    law = ImportanceSampling(StepEnergy(network), 3)
    assert step.gain(predict(DENOISER, xt), law, 2).tolist() == [0, 0, 0, 0]
    start = sampler.init(L, make_streams(0, range(4)), V)
    t = torch.ones(4, dtype=torch.float64)
    after, _ = sampler.reveal(start, DENOISER, t, t, nothing, importance=law)
    assert torch.equal(after.x, start.x) and not calls and (after.energy_evaluations == 0).all()


# --- training


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()])
@pytest.mark.parametrize(("t", "s"), [(0.5, 0.3), (0.9, 0.0), (0.1, 0.05)])
def test_training_steps_are_the_samplers_and_never_empty(schedule, t, s):
    num = 20_000
    times = torch.full((num,), t, dtype=torch.float64)
    xt, is_revealed = corrupt_step(
        torch.zeros(num, L, dtype=torch.long), times, s / t * times, schedule, V, generator=make_generator(0)
    )
    masked, kept = (1 - schedule.alpha(torch.tensor([t, s], dtype=torch.float64))).tolist()
    law = {}
    for M in oracle.subsets(range(L)):
        q = masked ** len(M) * (1 - masked) ** (L - len(M))
        for S in oracle.subsets(M):
            p = q * (1 - kept / masked) ** len(S) * (kept / masked) ** (len(M) - len(S))
            # nothing revealed: one masked token is, each as likely; nothing masked: one token is, each as likely
            choices = [(M, S)] if S else [(M, (i,)) for i in M] or [((i,), (i,)) for i in range(L)]
            for choice in choices:
                law[choice] = law.get(choice, 0) + p / len(choices)
    found = [tuple(tuple(r.nonzero()[:, 0].tolist()) for r in pair) for pair in zip(xt == V, is_revealed, strict=True)]
    oracle.assert_law(found, law, num)


def test_batches_have_steps_of_every_size_and_do_not_depend_on_each_other():
    many = batches(negatives=1, steps=True)(list(range(2000)))
    revealed, masked = many["is_revealed"].sum(-1), (many["xt"] == 27).sum(-1)
    assert (revealed >= 1).all() and (many["xt"][many["is_revealed"]] == 27).all()
    assert set(revealed.tolist()) == set(range(1, 17))
    assert 0.1 < (revealed == 1).float().mean() < 0.5 and 0.1 < (revealed == masked).float().mean() < 0.6
    whole, part = batches(negatives=2, steps=True)(list(range(8))), batches(negatives=2, steps=True)([5])
    assert all(torch.equal(whole[key][5:6], part[key]) for key in ("xt", "is_revealed", "uniform"))


def test_the_truth_comes_first_and_only_what_is_revealed_is_filled_in():
    denoiser, seen = tiny_denoiser(), {}

    def spy(xs, xt, t, log_proposal):
        seen.update(xs=xs, log_proposal=log_proposal)
        return torch.zeros_like(log_proposal)

    collate = batches(negatives=3, steps=True)
    task = EnergyTask(energy_from_denoiser(denoiser, target="step"), spy, denoiser, collate, None, "ranking")
    batch = collate(list(range(8)))
    task.energies(batch)
    where = batch["is_revealed"]
    assert torch.equal(seen["xs"][:, 0], torch.where(where, batch["x0"], batch["xt"]))
    others = ~where.unsqueeze(1).expand(-1, 4, -1)
    assert torch.equal(seen["xs"][others], batch["xt"].unsqueeze(1).expand(-1, 4, -1)[others])
    log_p = denoiser(batch["xt"], batch["t"], where=where)
    each = log_p.gather(-1, batch["x0"][where].unsqueeze(-1)).squeeze(-1).double()
    total = torch.zeros(8, dtype=torch.float64).index_add(0, where.nonzero()[:, 0], each)
    torch.testing.assert_close(seen["log_proposal"][:, 0], total)


class TableStepModel(torch.nn.Module):
    """One free number for every step from every state."""

    num_passes = 1

    def __init__(self):
        super().__init__()
        self.place = (V + 1) ** torch.arange(L).flip(0)
        self.energies = torch.nn.Parameter(torch.zeros(((V + 1) ** L,) * 2, dtype=torch.float64))

    def forward(self, xs, xt, t, log_proposal):
        return self.energies[(xt * self.place).sum(-1).unsqueeze(-1), (xs * self.place).sum(-1)]


@pytest.mark.parametrize("form", ["binary", "ranking"])
def test_nce_recovers_the_log_ratio_of_what_a_step_reveals(form):
    B, steps = 1024, 1200
    data = oracle.chain_data(L, coupling=0.7)
    table = oracle.posterior_denoiser(data, V, L)
    model = TableStepModel()
    task = EnergyTask(model, model, TableDenoiser(table, V), None, None, form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    texts, law, generator = torch.tensor(list(data)), torch.tensor(list(data.values())).log(), make_generator(0)
    for _ in range(steps):
        text = texts[draw(law.expand(B, -1), rand((B,), generator))]
        t, u = rand((2, B), generator)
        xt, where = corrupt_step(text, t, (t - L**-u).clamp(min=0), LogLinear(), V, generator=generator)
        batch = {"x0": text, "xt": xt, "t": t, "uniform": rand((B, 4, L), generator), "is_revealed": where}
        task.loss(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    assert_is_the_log_ratio(model, data, table, is_normalised=form == "binary")


@torch.no_grad()
def assert_is_the_log_ratio(model, data, table, *, is_normalised):
    learned, true = [], []
    for xt in oracle.states(V, L):
        for S in oracle.subsets(oracle.masked(xt, V)):
            if len(S) < 2:
                continue  # for one token the denoiser is exact and the ratio is one
            items = [oracle.filled(xt, S, tokens) for tokens in oracle.sequences(V, len(S))]
            p = np.array([math.prod(table[xt][i, xs[i]] for i in S) for xs in items])
            q = np.array([sum(m for x, m in data.items() if oracle.mask_out(x, oracle.masked(xs, V), V) == xs)
                          for xs in items])  # fmt: skip
            ratio = np.log(q / q.sum()) - np.log(p)
            energies = model(torch.tensor([items]), torch.tensor([xt]), None, None)[0].numpy()
            learned += list(-energies + (0.0 if is_normalised else np.mean(ratio + energies)))
            true += list(ratio)
    assert np.corrcoef(learned, true)[0, 1] > 0.98 and np.abs(np.array(learned) - true).mean() < 0.06


def test_validation_tells_by_time_and_by_size_of_step():
    network = energy_from_denoiser(tiny_denoiser(), target="step")
    validation = batches(negatives=8, steps=True)
    task = EnergyTask(network, learned_energy(network), tiny_denoiser(), validation, validation, "ranking")
    told = task.summarise(task.validate(range(60), 16, torch.device("cpu")))
    assert abs(told["loss"] - math.log(9)) < 1e-6 and told["pair_accuracy"] == 0.5
    assert {f"loss_revealed{part}" for part in ("1-3", "4-15")} | {"loss_t0.8-1.0"} <= set(told)


def test_the_loss_of_steps_is_ranking_and_no_causal_model_can_be_one():
    assert loss_form(EnergyTrainConfig(nce=ContrastConfig(target="step"))) == "ranking"
    assert loss_form(EnergyTrainConfig(nce=ContrastConfig(target="step", loss="binary"))) == "binary"
    with pytest.raises(UserError, match="reads masked text"):
        start_energy(EnergyTrainConfig(init="ar:x", nce=ContrastConfig(target="step")), tiny_denoiser())


# --- the network and its name


@pytest.mark.parametrize("inputs", ["marked", "joined"])
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_the_network_sees_what_is_new_what_was_known_and_what_stays_masked(inputs, pooling, tmp_path):
    network = energy_from_denoiser(tiny_denoiser(), inputs=inputs, pooling=pooling, target="step").eval()
    torch.manual_seed(0)
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.3)
    text = torch.randint(27, (1, 16), generator=make_generator(0))
    xs = text.masked_fill(torch.arange(16) >= 12, 27)
    xt, t = xs.masked_fill(torch.arange(16) >= 8, 27), torch.tensor([0.5])
    base = network(xs, xt, t)
    fewer = xs.masked_fill(torch.arange(16) >= 11, 27)
    known = xs.masked_fill(torch.arange(16) >= 9, 27)  # one more token of xs was there before
    assert all((network(*pair, t) - base).abs() > 1e-5 for pair in ((fewer, xt), (xs, known)))
    network.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert isinstance(learned_energy(again), StepEnergy) and torch.equal(again(xs, xt, t), base)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("energies")
    tiny_autoregressive().save_pretrained(folder / "ar")
    for target in ("clean", "step"):
        energy_from_denoiser(tiny_denoiser(), target=target).save_pretrained(folder / target)
    return folder


def test_it_has_a_name_of_its_own(folder):
    denoiser = tiny_denoiser()
    assert isinstance(load_energy(f"step:{folder}/step", denoiser), StepEnergy)
    assert isinstance(load_energy(f"nce:{folder}/clean", denoiser), LearnedEnergy)
    both = load_energy(f"step:{folder}/step + 0.5*step:{folder}/step", denoiser)
    assert isinstance(both, WeightedSum) and judges_steps(both) and both.num_passes == 2
    assert energy_label("step:x") == "EDLM-step"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nce:{}/step", "judges what one step reveals, not whole texts; write step:"),
        ("step:{}/clean", "judges whole texts, not what one step reveals; write nce:"),
        ("step:{}/ar", "expected 'edlm-energy'"),
        ("ar:{0}/ar + step:{0}/step", "their sum judges neither"),
    ],
)
def test_it_is_not_mistaken_for_another_energy(folder, spec, message):
    with pytest.raises(UserError) as error:
        load_energy(spec.format(folder), tiny_denoiser())
    assert message in str(error.value)


def test_what_needs_whole_texts_refuses_it():
    with pytest.raises(UserError, match="reads no completions"):
        make_importance(ENERGY, 2, completions=1)
    with pytest.raises(UserError, match="needs an energy of whole texts"):
        paper_nll(DENOISER, ENERGY, x0, range(N), seed=0, steps=2, partition_samples=2)
    with pytest.raises(UserError, match="reads no completions"):
        RevealFirst(ENERGY, 2, completions=1)
    with pytest.raises(UserError, match="judges neither"):
        WeightedSum([(1.0, ENERGY), (1.0, AutoregressiveEnergy(tiny_autoregressive()))])


def test_results_say_that_steps_were_judged(folder):
    denoiser = tiny_denoiser()
    energy = load_energy(f"step:{folder}/step", denoiser)
    score = make_score(denoiser, LikelihoodConfig(steps=4, candidates=3), energy)
    assert score.quantity == "upper bound of the step-energy sampler, T = 4, k = 3, w = 1"
    grid = make_grid([Method("EDLM-step", denoiser, energy)], [4], [2], [1.0], SampleConfig(), [0, 1, 2])
    assert [setting.curve for setting in grid] == ["EDLM-step, k=2, w=1"]
    network = load_model(folder / "step")
    settings = {"num": 1, "steps": 4, "candidates": 3, "seed": 0}
    by_name, by_network = (edlm.sample(denoiser, energy=e, **settings) for e in (f"step:{folder}/step", network))
    assert by_name == by_network and 0 < by_name[0].energy_evaluations <= 12
    (result,) = edlm.score(denoiser, "the cat", energy=network, steps=2, candidates=2, num_draws=4)
    assert math.isfinite(result.nats)


# --- the commands


SETTINGS = {k: v for k, v in TINY.items() if k.startswith(("run", "optim"))} | {"nce.target": "step"}


@pytest.fixture(scope="module")
def step_run(finished, tmp_path_factory):
    out = tmp_path_factory.mktemp("step") / "run"
    settings = SETTINGS | {"denoiser": finished[0], "nce.negatives": 3, "nce.pooling": "sum"}
    train("energy", out, settings)
    return out, settings


def run_edlm(*words):
    done = subprocess.run([sys.executable, "-m", "edlm", *map(str, words)], capture_output=True, text=True, env=ENV)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_trained_step_energy_samples_infills_and_is_bounded(step_run, finished):
    (out, _), denoiser = step_run, finished[0]
    assert load_model(out).config.target == "step"
    last = [line for line in metrics(out) if "eval_loss" in line][-1]
    assert last["eval_loss"] < math.log(9) and "eval_loss_revealed1-3" in last
    common = ["--denoiser", denoiser, "--energy", f"step:{out}", "--steps", 4, "--candidates", 3, "--json"]
    (sample,) = json.loads(run_edlm("sample", *common))["samples"]
    assert 0 < sample["energy_evaluations"] <= 3 * sample["denoiser_evaluations"]
    assert json.loads(run_edlm("infill", "the [MASK:4] two", *common))["samples"][0]["text"].startswith("the ")
    result = json.loads(run_edlm("evaluate", "likelihood", *common, "--max-blocks", 8, "--inner", 2))
    assert result["quantity"] == "upper bound of the step-energy sampler, T = 4, k = 3, w = 1"


@pytest.mark.slow
def test_an_interrupted_run_ends_like_one_never_stopped(step_run, tmp_path):
    whole, settings = step_run
    train("energy", tmp_path / "part", settings | {"run.steps": 10})
    (tmp_path / "part" / "model").rename(tmp_path / "elsewhere")
    train("energy", tmp_path / "part", settings)
    assert_same_run(whole, tmp_path / "part")


@pytest.mark.slow
def test_an_exported_step_energy_says_what_it_is_and_how_good_at_each_size(step_run, tmp_path):
    run_edlm("export", step_run[0], tmp_path / "mine", "--max-blocks", 64)
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "learned energy of single steps" in card and "--energy step:mine" in card and "pair accuracy" in card
    assert "| tokens revealed |" in card and "| 1 to 3 |" in card and "| 0.8 to 1.0 |" in card
    assert load_model(tmp_path / "mine").config.target == "step"
