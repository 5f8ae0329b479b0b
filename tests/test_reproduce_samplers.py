"""edlm reproduce samplers: equal passes, the bound of the very sampler, and what is reached within a time."""

import json
from types import SimpleNamespace

import pytest

from edlm.errors import UserError
from edlm.importance import is_in_window
from edlm.metrics import Estimate
from edlm.reproduce.equal_steps import Against, less
from edlm.reproduce.sampler_spec import in_window, parse_sampler, parse_samplers
from edlm.reproduce.samplers_report import Compared
from edlm.reproduce.settings import SCALES
from edlm.sample_config import SampleConfig
from edlm.schedule import uniform_times
from test_cli import assert_refused, edlm, one_thread, succeed  # noqa: F401
from test_reproduce import home, reproduce, table_of  # noqa: F401

FEW = ["--num", 3, "--passes", "6,18", "--steps", "6,16", "--max-blocks", 3, "--inner", 2]


def by_sampler(results):
    """The rows of the JSON by sampler and the passes they were meant to take."""
    return {(row["sampler"], row["passes"]): row for row in results["rows"] if "sampler" in row}


def test_every_sampler_gets_the_steps_that_its_passes_buy(reproduce):  # noqa: F811
    names = "mdlm, ar k=2 w=0.5, ar k=2 R=2, step k=5, nce k=8"
    results = json.loads(succeed(reproduce("samplers", *FEW, "--samplers", names, "--json")))
    rows = by_sampler(results)
    found = {key: row["steps"] for key, row in rows.items()}
    assert found["mdlm", 6] == 6 and found["mdlm", 18] == 18 and found["mdlm", None] == 16
    assert (found["ar k=2 w=0.5", 6], found["ar k=2 w=0.5", 18]) == (2, 8)  # 2 + 2 * 2, 8 + 5 * 2: t = 1/2 counts
    assert (found["ar k=2 R=2", 6], found["ar k=2 R=2", 18]) == (1, 3)  # 1 + 2 * 2
    assert (found["step k=5", 6], found["nce k=8", 18]) == (1, 2) and ("nce k=8", 6) not in rows
    for (_, budget), row in rows.items():
        taken = row["denoiser_passes"]["mean"] + row["energy_passes"]["mean"]
        assert budget is None or 0 < taken <= budget


def test_a_sampler_that_cannot_make_one_step_is_named(reproduce):  # noqa: F811
    text = succeed(reproduce("samplers", *FEW, "--samplers", "mdlm, ar k=30"))
    assert "Left out: ar k=30 (one step takes more passes than there are)" in text


def test_samples_and_bits_are_those_of_the_single_commands(reproduce, edlm, home):  # noqa: F811
    names = "ar k=3 R=1, ar k=3 smc=4, mdlm order=confidence"
    results = json.loads(succeed(reproduce("samplers", *FEW, "--samplers", names, "--json")))
    common = ["--denoiser", home / "denoiser", "--data", home / "text.txt", "--test", "20%", "--cache", home / "cache"]
    flags = {
        "ar k=3 R=1": ["--energy", f"ar:{home}/ar", "--candidates", 3, "--completions", 1],
        "ar k=3 smc=4": ["--energy", f"ar:{home}/ar", "--candidates", 3, "--smc", 4],
        "mdlm order=confidence": ["--order", "confidence"],
    }
    for (spec, budget), row in by_sampler(results).items():
        if spec not in flags:
            continue
        words = [*common, *flags[spec], "--steps", row["steps"], "--json"]
        bits = json.loads(succeed(edlm("evaluate", "likelihood", *words, "--max-blocks", 3, "--inner", 2)))
        assert bits["bits"] == row["likelihood"]["bits"] and bits["gain"] == row["likelihood"]["gain"], (spec, budget)
        drawn = json.loads(succeed(edlm("evaluate", "generation", *words, "--oracle", f"ar:{home}/judge", "--num", 3)))
        same = [other for other in drawn["rows"] if other["method"] == row["method"] and other["steps"] == row["steps"]]
        assert same[0]["perplexity"] == row["perplexity"] and same[0]["entropy"] == row["entropy"]


def test_drafts_change_passes_and_not_the_likelihood(reproduce):  # noqa: F811
    rows = by_sampler(json.loads(succeed(reproduce("samplers", *FEW, "--samplers", "causal, drafts g=3", "--json"))))
    causal, drafts = rows["causal", None], rows["drafts g=3", None]
    assert causal["likelihood"]["bits"] == drafts["likelihood"]["bits"]
    assert drafts["energy_passes"]["mean"] < causal["denoiser_passes"]["mean"] == 16
    assert drafts["method"] == "AR, drafts of 3" and causal["steps"] is None


def test_a_budget_has_no_bound_and_is_kept(reproduce):  # noqa: F811
    spec = "ar k=8 R=1 ess=2 b=2"
    row = by_sampler(json.loads(succeed(reproduce("samplers", *FEW, "--samplers", spec, "--json"))))[spec, 18]
    assert row["steps"] == 6 and row["energy_passes"]["mean"] <= 12 and row["likelihood"] is None


def test_samplers_at_their_own_pace_are_there_once(reproduce):  # noqa: F811
    names = "mdlm first-hitting, mdlm order=entropy:1"
    rows = by_sampler(json.loads(succeed(reproduce("samplers", *FEW, "--samplers", names, "--json"))))
    own = [rows[name.strip(), None] for name in names.split(",")]
    assert own[0]["denoiser_passes"]["mean"] == 16 and own[0]["likelihood"]["steps"] is None
    assert [row["method"] for row in own] == ["MDLM first-hitting", "MDLM entropy:1"] and own[1]["steps"] is None


def test_samplers_without_their_model_are_left_out_and_named(reproduce):  # noqa: F811
    text = succeed(reproduce("samplers", *FEW, "--samplers", "mdlm, step k=2", step_energy_model=None))
    assert "Left out: EDLM-step (no model" in text and {row["sampler"] for row in table_of(text)[:-1]} == {"mdlm"}


def test_with_equal_steps_every_sampler_has_them_and_is_held_against_the_denoiser(reproduce):  # noqa: F811
    flags = ["--num", 3, "--steps", "4,8", "--max-blocks", 3, "--inner", 2, "--equal", "steps"]
    names = "mdlm, ar k=3, ar k=2 smc=1 ahead=1, step k=5, causal"
    results = json.loads(succeed(reproduce("samplers", *flags, "--samplers", names, "--json")))
    rows = {(row["sampler"], row["steps"]): row for row in results["rows"] if "sampler" in row}
    assert set(rows) == {(name.strip(), T) for name in names.split(",")[:-1] for T in (4, 8)} | {("causal", None)}
    for (spec, steps), row in rows.items():
        if spec in ("mdlm", "causal"):
            assert row["against_mdlm"] is None
            continue
        plain, against = rows["mdlm", steps], row["against_mdlm"]
        gap = row["entropy"]["mean"] - plain["entropy"]["mean"]
        assert against["entropy"]["mean"] == pytest.approx(gap)
        for judged, found in zip(row["shown_perplexity"].values(), against["perplexities"], strict=True):
            (other,) = plain["shown_perplexity"].values()
            assert found["mean"] == pytest.approx(judged["mean"] - other["mean"])
    told = {
        (line["sampler"], line["T"]): line["is"]
        for line in table_of(succeed(reproduce("samplers", *flags, "--samplers", names)))
    }
    for key, row in rows.items():
        if row["against_mdlm"]:
            assert told[key[0], str(key[1])] == row["against_mdlm"]["verdict"]


@pytest.mark.parametrize(
    ("gaps", "entropy", "verdict"),
    [
        ([-3, -2.1], 0.04, "better"),
        ([-3, -1.9], 0.04, "as good"),
        ([-3, 3], 0.0, "as good"),
        ([2.1, 3], -0.04, "worse"),
        ([-3, -3], -0.051, "entropy differs"),
        ([3, 3], 0.051, "entropy differs"),
    ],
)
def test_better_is_beyond_two_errors_by_every_oracle_at_equal_entropy(gaps, entropy, verdict):
    assert Against([Estimate(gap, 1.0) for gap in gaps], Estimate(entropy, 0.01)).verdict == verdict


def test_errors_of_a_difference_add_as_squares():
    gap = less(Estimate(5, 0.3), Estimate(7, 0.4))
    assert (gap.mean, gap.standard_error) == (-2, pytest.approx(0.5))


# --- within a time


def row(seconds, perplexity, entropy=2.8, steps=4):
    return SimpleNamespace(seconds_per_sample=seconds, value=perplexity, entropy=Estimate(entropy, 0.01), steps=steps)


@pytest.fixture
def compared():
    study = SimpleNamespace(perplexity=lambda row, oracle: Estimate(row.value, 0.1), oracles=["judge"], unit="token")
    return Compared(study, [], {})


def test_the_best_within_a_time_is_the_lowest_perplexity_that_took_no_longer(compared):
    rows = [row(1, 9), row(2, 7), row(3, 8), row(5, 4)]
    assert compared.best_within(rows, 3.0) is rows[1] and compared.best_within(rows, 0.5) is None


def test_a_goal_is_reached_by_the_fastest_that_has_it_and_its_entropy(compared):
    rows = [row(1, 6, entropy=2.7), row(2, 6, steps=3), row(3, 5)]
    assert compared.reaches(rows, row(8, 7)) == "4× (T=3)"  # the first is less varied by more than 0.05 nats
    assert compared.reaches(rows, row(8, 4)) == "not reached"


# --- as they are written


def test_the_words_of_a_sampler_are_settings():
    sampler = parse_sampler("ar k=16 R=2 ess=1.5 b=4 w=0.5")
    config = sampler.config(SampleConfig(seed=3), 8)
    assert (config.candidates, config.completions, config.ess, config.window, config.seed) == (16, 2, 1.5, 0.5, 3)
    assert config.budget == 4 * 8 * 2 and sampler.has_steps
    assert sampler.passes(4, 1) == 4 + 3 * 4 * 2 and sampler.steps_within(28, 1) == 4  # t = 1, 3/4 and 1/2 count
    assert parse_samplers(" mdlm ,ar  k=2,mdlm") == ("mdlm", "ar k=2")


@pytest.mark.parametrize(("steps", "window"), [(1, 1), (5, 0.2), (10, 0.3), (7, 0), (64, 0.2), (64, 1)])
def test_the_window_counts_the_steps_in_which_the_sampler_resamples(steps, window):
    times = uniform_times(steps)[:-1]
    assert in_window(steps, window) == int(is_in_window(times, window).sum())


def test_the_samplers_of_every_scale_can_be_read():
    for settings in SCALES["samplers"].values():
        assert parse_samplers(", ".join(settings.samplers)) == settings.samplers


@pytest.mark.parametrize(
    ("spec", "phrase"),
    [
        ("gibbs", "unknown sampler 'gibbs'; choose from mdlm, ar"),
        ("", "unknown sampler ''"),
        ("mdlm k=2", "'k=2' means nothing to mdlm; it knows order, first-hitting"),
        ("causal k=2", "'k=2' means nothing to causal"),
        ("ar k=two", "'k=two' needs a number"),
        ("ar k=0", "candidates must be at least 1, got 0"),
        ("ar k=8 smc=4 R=1", "leave out completions and ess, or smc"),
        ("ar k=8 b=2", "b needs an ess"),
        ("drafts g=0", "b and g must be at least 1"),
        ("mdlm order=random", "random"),
    ],
)
def test_a_sampler_that_cannot_be_read_is_refused(spec, phrase):
    with pytest.raises(UserError, match="--samplers") as error:
        parse_sampler(spec)
    assert phrase in str(error.value)


def test_flags_that_mean_nothing_here_are_refused(reproduce):  # noqa: F811
    assert_refused(reproduce("samplers", "--window", "1"), "--window means nothing to samplers", "--passes")
    assert_refused(reproduce("samplers", "--passes", "0"), "--passes must be at least 1, got 0")
    assert_refused(
        reproduce("samplers", "--equal", "steps", "--passes", "8"), "--passes means nothing with --equal steps"
    )
    assert_refused(reproduce("gen-ppl", "--equal", "steps"), "--equal means nothing to gen-ppl")
