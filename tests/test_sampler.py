import numpy as np
import pytest
import torch
from scipy import stats

import oracle
from edlm import causal_sampler, sampler
from edlm.errors import UserError
from edlm.generation import SampleConfig, generate
from edlm.randomness import make_streams
from edlm.schedule import Cosine, LogLinear, uniform_times
from toys import TableDenoiser, tiny_autoregressive, tiny_denoiser

V, L, N = 3, 3, 20_000
TABLE = oracle.random_denoiser(V, L, seed=1)


def rows(x):
    return [tuple(row) for row in x.tolist()]


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("schedule", [None, Cosine()])
def test_texts_after_so_many_steps_follow_the_enumerated_law(steps, schedule):
    times = uniform_times(steps)
    denoiser = TableDenoiser(TABLE, V, schedule)
    x = sampler.sample(sampler.init(L, make_streams(0, range(N)), V), denoiser, times)
    alphas = denoiser.schedule.alpha(times).numpy()
    oracle.assert_law(rows(x), oracle.chain_law(TABLE, np.abs(alphas), V, L), N)


def first_hitting(model, num, length, **settings):
    *_, (state, _) = sampler.first_hitting(
        sampler.init(length, make_streams(0, range(num)), model.mask_id), model, **settings
    )
    return state


@pytest.mark.parametrize("schedule", [None, Cosine()])
def test_first_hitting_has_the_law_of_infinitely_many_steps(schedule):
    x = first_hitting(TableDenoiser(TABLE, V, schedule), N, L).x
    law = oracle.one_by_one_law(lambda xt: oracle.reveal_law(xt, 1.0, TABLE, V), V, L)
    oracle.assert_law(rows(x), law, N)
    fine = oracle.chain_law(TABLE, np.linspace(0, 1, 400), V, L)
    assert oracle.total_variation(law, fine) < 0.01


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine()], ids=["log-linear", "cosine"])
def test_first_hitting_times_are_those_of_the_schedule(schedule):
    start = sampler.init(L, make_streams(0, range(4000)), V)
    times = [info.t for _, info in sampler.first_hitting(start, TableDenoiser(TABLE, V, schedule))]
    levels = 1 - schedule.alpha(torch.stack(times)).flatten()  # of tokens, in any order: uniform
    assert stats.kstest(levels.numpy(), "uniform").pvalue > oracle.FAILURE_RATE
    assert (torch.stack(times).diff(dim=0) < 0).all()


def test_first_hitting_takes_one_pass_per_token_and_a_batch_gives_its_rows():
    model = tiny_denoiser()
    together = first_hitting(model, 3, 16)
    assert together.denoiser_evaluations.tolist() == [16, 16, 16] and (together.x != model.mask_id).all()
    for i in range(3):
        state = sampler.init(16, make_streams(0, [i]), model.mask_id)
        *_, (alone, _) = sampler.first_hitting(state, model)
        assert torch.equal(alone.x[0], together.x[i])
    prompted = next(iter(generate(model, 1, SampleConfig(first_hitting=True), prompt="the ")))
    assert prompted.text.startswith("the ") and prompted.denoiser_evaluations == 12


def test_fixed_tokens_stay_and_the_rest_follows_the_law_given_them():
    fixed = torch.tensor([V, 2, V])
    x = sampler.sample(
        sampler.init(L, make_streams(0, range(N)), V, fixed=fixed), TableDenoiser(TABLE, V), uniform_times(1)
    )
    law = oracle.reveal_law((V, 2, V), 1.0, TABLE, V)
    oracle.assert_law(rows(x), law, N)


def test_every_step_only_reveals_and_none_is_masked_at_the_end():
    model = tiny_denoiser()
    state = sampler.init(16, make_streams(3, range(4)), model.mask_id)
    before = state.x
    for after, info in sampler.trajectory(state, model, uniform_times(6)):
        is_changed = after.x != before
        assert torch.equal(is_changed, info.is_revealed) and (before[is_changed] == model.mask_id).all()
        before = after.x
    assert (before != model.mask_id).all()


def test_a_sequence_that_reveals_nothing_costs_nothing():
    denoiser = TableDenoiser(TABLE, V)
    state = sampler.init(L, make_streams(0, range(1)), V)
    *_, (end, info) = sampler.trajectory(state, denoiser, uniform_times(1000))
    assert denoiser.calls <= L and end.denoiser_evaluations.tolist() == [denoiser.calls]
    assert info.num_revealed in (0, 1) and end.step == 1000


@pytest.mark.parametrize("model", [tiny_denoiser(), tiny_autoregressive()], ids=["denoiser", "ar"])
def test_a_batch_gives_the_texts_of_its_rows_alone(model):
    together = [s.tokens for s in generate(model, 5, SampleConfig(seed=4, steps=8))]
    one_by_one = [s.tokens for s in generate(model, 5, SampleConfig(seed=4, steps=8, batch_size=1))]
    last = next(generate(model, 1, SampleConfig(seed=4, steps=8, first=4)))
    assert together == one_by_one and last.tokens == together[4] and last.index == 4
    assert len({tuple(t) for t in together}) == 5


def test_autoregressive_samples_follow_the_model():
    model = tiny_autoregressive(vocab_size=3, length=3)
    every = torch.tensor(oracle.sequences(3, 3))
    law = dict(zip(rows(every), torch.exp(model(every).double().sum(-1)).tolist(), strict=True))
    x = causal_sampler.sample(sampler.init(3, make_streams(0, range(N)), 3), model)
    oracle.assert_law(rows(x), law, N)


def test_an_autoregressive_model_continues_a_prefix():
    model = tiny_autoregressive(vocab_size=3, length=3)
    fixed = torch.tensor([2, 3, 3])
    every = torch.tensor([s for s in oracle.sequences(3, 3) if s[0] == 2])
    law = dict(zip(rows(every), torch.exp(model(every).double()[:, 1:].sum(-1)).tolist(), strict=True))
    x = causal_sampler.sample(sampler.init(3, make_streams(0, range(N)), 3, fixed=fixed), model)
    oracle.assert_law(rows(x), law, N)
    with pytest.raises(UserError, match="can only continue a prefix"):
        causal_sampler.sample(sampler.init(3, make_streams(0, [0]), 3, fixed=torch.tensor([3, 2, 3])), model)


def test_the_cache_does_not_change_the_texts():
    model = tiny_autoregressive()
    x = causal_sampler.sample(sampler.init(16, make_streams(0, range(3)), 27), model)
    generators = make_streams(0, range(3))
    for position in range(16):  # the same numbers, drawn with a full pass per token
        from edlm.models.transformer import Cache
        from edlm.randomness import draw, rand

        with torch.inference_mode():
            log_probs = model.next_log_probs(model.shift(x)[:, : position + 1], Cache())
        assert torch.equal(draw(log_probs, rand((3,), generators)), x[:, position])


def test_temperature_sharpens_exactly():
    x = sampler.sample(
        sampler.init(L, make_streams(0, range(N)), V), TableDenoiser(TABLE, V), uniform_times(1), temperature=0.5
    )
    sharp = {state: p**2 / (p**2).sum(-1, keepdims=True) for state, p in TABLE.items()}
    oracle.assert_law(rows(x), oracle.chain_law(sharp, [0, 1], V, L), N)


def test_prompts_begin_every_text():
    for model in (tiny_denoiser(), tiny_autoregressive()):
        for sample in generate(model, 2, SampleConfig(steps=4), prompt="the cat"):
            assert sample.text.startswith("the cat") and len(sample.text) == 16


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: SampleConfig(steps=0), "steps must be at least 1, got 0"),
        (lambda: SampleConfig(temperature=0.0), "temperature must be positive, got 0.0"),
        (lambda: SampleConfig(batch_size=0), "batch-size must be at least 1"),
        (lambda: list(generate(tiny_denoiser(), 0, SampleConfig())), "num must be at least 1, got 0"),
        (lambda: SampleConfig(length=0), "length must be at least 1, got 0"),
        (lambda: list(generate(tiny_denoiser(), 1, SampleConfig(), prompt="a" * 16)), "shorten the prompt"),
        (lambda: sampler.check_times(torch.tensor([1.0, 0.5])), "must fall strictly from 1 to 0"),
        (lambda: sampler.init(4, make_streams(0, [0]), 3, fixed=torch.zeros(3)), "must cover all 4 positions, got 3"),
    ],
)
def test_bad_requests_are_refused(attempt, message):
    with pytest.raises(UserError, match=message):
        attempt()
