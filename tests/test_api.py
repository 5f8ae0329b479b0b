"""The Python interface: what `edlm.load`, `edlm.sample` and `edlm.score` take, return and refuse."""

import dataclasses
import itertools
import math
import os
import subprocess
import sys
import typing

import numpy as np
import pytest
import torch

import edlm
from edlm.api import SampleOptions, ScoreOptions
from edlm.energy import AutoregressiveEnergy, LearnedEnergy
from edlm.errors import UserError
from edlm.generation import Sample, generate
from edlm.likelihood import autoregressive_nll, denoiser_nelbo
from edlm.likelihood_config import LikelihoodConfig
from edlm.models.energy_network import energy_from_denoiser
from edlm.sample_config import SampleConfig
from edlm.text_score import TextScore, normalise_pair
from edlm.tokenization import CHARACTERS, CharacterTokenizer
from toys import tiny_autoregressive, tiny_denoiser

DENOISER, AR = tiny_denoiser(), tiny_autoregressive(1)
TEXTS = ["the people", "of", "the united", "states of"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name, model in (("denoiser", DENOISER), ("ar", AR), ("nce", energy_from_denoiser(DENOISER))):
        model.save_pretrained(folder / name)
    return folder


def ids(*texts):
    return torch.as_tensor(np.stack([CharacterTokenizer().encode(text).astype(np.int64) for text in texts]))


def nats(*args, **options):
    return [s.nats for s in edlm.score(*args, **options)]


# --- the module itself


def test_importing_edlm_loads_nothing_heavy():
    code = (
        "import sys, edlm; edlm.sample; sys.exit(bool({'torch', 'numpy', 'cyclopts', 'lm_eval'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=60).returncode == 0


@pytest.mark.parametrize(("options", "config"), [(SampleOptions, SampleConfig), (ScoreOptions, LikelihoodConfig)])
def test_every_setting_is_a_keyword_of_the_same_type(options, config):
    assert typing.get_type_hints(options) == typing.get_type_hints(config)
    assert not options.__required_keys__ and len(dataclasses.fields(config)) == len(options.__annotations__)


def test_the_functions_are_documented_and_typed():
    for function in (edlm.load, edlm.sample, edlm.score):
        assert function.__doc__ and "return" in function.__annotations__


# --- sampling


def test_names_and_models_give_the_same_samples(folder):
    settings = {"num": 3, "steps": 4, "candidates": 3, "window": 0.5, "prompt": "the ", "seed": 7}
    named = edlm.sample(str(folder / "denoiser"), energy=f"ar:{folder / 'ar'}", **settings)
    loaded = edlm.sample(edlm.load(folder / "denoiser"), energy=AutoregressiveEnergy(AR), batch_size=2, **settings)
    assert named == loaded and len(named) == 3 and all(type(s) is Sample for s in named)
    assert all(s.text.startswith("the ") and s.energy_evaluations > 0 and len(s.tokens) == 16 for s in named)
    config = SampleConfig(steps=4, candidates=3, window=0.5, seed=7)
    assert named == list(generate(DENOISER, 3, config, energy=AutoregressiveEnergy(AR), prompt="the "))
    assert named == edlm.sample(DENOISER, energy=AutoregressiveEnergy(AR), config=config, num=3, prompt="the ")


def test_a_learned_energy_is_taken_as_it_is(folder):
    network = edlm.load(folder / "nce")
    settings = {"steps": 2, "seed": 1}
    samples = edlm.sample(DENOISER, energy=network, **settings)
    assert samples == edlm.sample(DENOISER, energy=LearnedEnergy(network), **settings)
    assert samples == edlm.sample(DENOISER, energy=f"nce:{folder / 'nce'}", **settings)


def test_an_autoregressive_model_and_holes_work_too():
    (text,) = edlm.sample(AR, length=8, prompt="ab")
    assert text.text.startswith("ab") and len(text.text) == 8
    (filled,) = edlm.sample(DENOISER, infill="a[MASK:3]b", steps=2)
    assert filled.text[0] == "a" and filled.text[4] == "b"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: edlm.sample(DENOISER, step=4), "unknown option 'step'; did you mean 'steps'"),
        (lambda: edlm.sample(DENOISER, steps=0), "steps must be at least 1"),
        (lambda: edlm.sample(DENOISER, energy=AR), "say which: AutoregressiveEnergy"),
        (lambda: edlm.sample(AR, energy="ar:text8-nano-ar"), "autoregressive model needs none"),
        (lambda: edlm.sample(energy_from_denoiser(DENOISER)), "writes no text by itself"),
        (lambda: edlm.score(AR, ["a"], candidate=2), "did you mean 'candidates'"),
        (lambda: edlm.score(AR, ["a", ""]), "text 2 is empty"),
        (lambda: edlm.score(AR, ["a", "The"]), "text 2 has 'T' at character 0"),
        (lambda: edlm.score(AR, ["a"], given="É"), "given before text 1 has 'É'"),
        (lambda: edlm.score(AR, ["a"], given=["a", "b"]), "one for each of the 1 texts, got 2"),
        (lambda: edlm.score(AR, ["a" * 10], given="b" * 10), "text 1 has 20 tokens, but the model reads 16.*overlap 8"),
        (lambda: edlm.score(AR, ["a" * 20], overlap=16), "overlap must be at least 0 and below the model's 16"),
        (lambda: edlm.score(DENOISER, ["a"], num_draws=0), "num-draws must be at least 1"),
        (lambda: edlm.score("no-such-model", ["a"]), "no model called no-such-model"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(call, message):
    with pytest.raises(UserError, match=message):
        call()


# --- scoring


def test_an_autoregressive_score_is_exact():
    for text, score in zip(TEXTS, edlm.score(AR, TEXTS), strict=True):
        assert type(score) is TextScore and score.text == text and score.num_tokens == len(text)
        assert score.nats == pytest.approx(autoregressive_nll(AR, ids(text)).item(), abs=1e-5)
        assert score.standard_error == 0 and score.quantity == "exact NLL" and score.log_likelihood == -score.nats
        assert score.bits_per_token == pytest.approx(score.nats / len(text) / math.log(2))


def test_a_denoisers_score_is_the_mean_of_its_draws():
    (score,) = edlm.score(DENOISER, "the people", num_draws=8, seed=3)
    draws = denoiser_nelbo(DENOISER, ids(*["the people"] * 8), range(8), seed=3, steps=None)
    assert score.nats == pytest.approx(draws.mean().item(), rel=1e-6)
    assert score.standard_error == pytest.approx((draws.std() / 8**0.5).item(), rel=1e-5)
    assert score.protocol == "certified" and "upper bound (NELBO)" in score.quantity
    assert math.isnan(edlm.score(DENOISER, "the people", num_draws=1)[0].standard_error)


@pytest.mark.parametrize("given", ["", "ab"])
def test_the_scores_of_all_short_texts_are_a_distribution(given):
    """Of a causal model always; of a denoiser with one step the bound is exact, and so sums to one."""
    texts = ["".join(pair) for pair in itertools.product(CHARACTERS, repeat=2)]
    assert sum(math.exp(-n) for n in nats(AR, texts, given=given)) == pytest.approx(1, abs=1e-4)
    one_step = nats(DENOISER, texts, given=given, steps=1, num_draws=1)
    assert sum(math.exp(-n) for n in one_step) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("energy", [None, AutoregressiveEnergy(AR)])
def test_a_score_depends_on_nothing_but_its_text(energy):
    settings = {"energy": energy, "num_draws": 4, "steps": 4, "inner": 2}
    together = nats(DENOISER, TEXTS, **settings)
    assert nats(DENOISER, TEXTS[::-1], **settings)[::-1] == pytest.approx(together, rel=1e-5)
    assert [nats(DENOISER, [text], **settings)[0] for text in TEXTS] == pytest.approx(together, rel=1e-5)


def test_a_causal_score_of_two_parts_is_the_sum_of_their_scores():
    whole, front = nats(AR, ["the people", "the "])
    (back,) = nats(AR, ["people"], given=["the "])
    assert front + back == pytest.approx(whole, rel=1e-5)


def test_a_long_text_is_scored_in_the_windows_it_would_be_written_in():
    """Windows of 16 tokens that see 4 before them end at 16, 28 and 30; the last begins at 14."""
    text = "the people of the united state"
    parts = [("", text[:16]), (text[12:16], text[16:28]), (text[14:28], text[28:])]
    wanted = sum(nats(AR, [new], given=given)[0] for given, new in parts)
    assert nats(AR, [text], overlap=4) == pytest.approx([wanted], rel=1e-5)
    (after,) = nats(AR, [text[20:]], given=text[:20], overlap=4)
    parts = [(text[12:20], text[20:28]), parts[2]]
    assert after == pytest.approx(sum(nats(AR, [new], given=given)[0] for given, new in parts), rel=1e-5)
    (bound,) = edlm.score(DENOISER, [text], overlap=4, num_draws=4, steps=1)
    assert bound.num_tokens == 30 and bound.nats > 0 and bound.standard_error == pytest.approx(0, abs=1e-4)


def test_more_draws_come_closer_and_say_so():
    few, many = (edlm.score(DENOISER, "the people", num_draws=n)[0] for n in (16, 1024))
    assert many.standard_error < 0.3 * few.standard_error
    assert abs(few.nats - many.nats) < 4.5 * few.standard_error


@pytest.mark.parametrize(
    ("given", "text", "wanted"),
    [
        ("", "It's 2!", ("", "it s two")),
        ("Q: Why?", " Yes", ("q why ", "yes")),
        ("the year ", "1999", ("the year ", "one nine nine nine")),
        ("the", " Year", ("the", " year")),
        ("peop", "LE", ("peop", "le")),
        ("no", "!", ("no", "")),
    ],
)
def test_a_normalised_pair_keeps_the_word_boundary_between_its_parts(given, text, wanted):
    assert normalise_pair(given, text) == wanted


def test_normalised_text_is_what_is_scored():
    (score,) = edlm.score(AR, "The people!", given="It's", normalise=True)
    assert (score.given, score.text) == ("it s", "the people")
    assert score.nats == nats(AR, "the people", given="it s")[0]
