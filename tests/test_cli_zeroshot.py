"""The zero-shot suite from the command line, on small files in the sets' own layouts."""

import json
import re

import pytest

from edlm.models.energy_network import energy_from_denoiser
from edlm.tokenization import train_bpe
from test_cli import assert_refused, edlm, home, one_thread, succeed  # noqa: F401
from toys import tiny_denoiser


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two of the seven sets."""
    folder = tmp_path_factory.mktemp("sets")
    (folder / "ptb.test.txt").write_text(" the <unk> said it did n't \n its sales rose N % last year \n" * 20)
    rows = [json.dumps({"text": f"he said number {i} was wrong , and left ."}) for i in range(20)]
    (folder / "lambada_test.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def zeroshot(edlm, home, files, tmp_path):  # noqa: F811
    def run(*words):
        words = [str(word).format(home) for word in words]
        return edlm("evaluate", "zeroshot", "--files", files, "--cache", home / "cache", "--out", tmp_path, *words)

    return run


def test_one_table_has_every_method_and_set_and_the_papers_rows(zeroshot, tmp_path):
    models = ["--ar", "{}/ar", "--denoiser", "{}/denoiser", "--energy", "coar:{}/ar", "--energy", "ar:{}/ar"]
    text = succeed(zeroshot(*models, "--steps", 4, "--inner", 2, "--max-blocks", 6))
    assert (tmp_path / "results.md").read_text() in text + "\n"
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    ours, paper = ["AR", "MDLM", "EDLM-coAR", "EDLM-AR"], ["AR", "SEDD", "MDLM", "EDLM-NCE", "EDLM-AR", "EDLM-coAR"]
    assert rows[2:] == [*ours, "characters scored", *(f"paper: {name}" for name in paper)]
    assert re.search(r"\| +PTB \| +LAMBADA \|", text) and "Left out: WikiText" in text and "51.28" in text
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["rows"]["EDLM-AR"]["ptb"]["quantity"] == "upper bound of the sampler, T = 4, k = 2, w = 1"
    assert results["rows"]["AR"]["lambada"]["num_tokens"] == 6 * 16


def test_a_set_of_the_suite_is_the_single_measurement(zeroshot, edlm, home, files):  # noqa: F811
    rows = json.loads(succeed(zeroshot("--ar", "{}/ar", "--sets", "ptb", "--json")))["rows"]
    words = ["--ar", home / "ar", "--data", f"zeroshot:ptb:{files}", "--cache", home / "cache", "--json"]
    alone = json.loads(succeed(edlm("evaluate", "likelihood", *words)))
    assert rows["AR"]["ptb"] == alone and list(rows["AR"]) == ["ptb"]
    assert "ptb-1" in alone["data"]["splits"]["test"]["source"]  # the detokeniser is part of the protocol


def test_the_papers_protocol_is_marked_in_the_table(zeroshot, home):  # noqa: F811
    energy_from_denoiser(tiny_denoiser()).save_pretrained(home / "nce")
    words = ["--denoiser", "{}/denoiser", "--energy", "nce:{}/nce", "--protocol", "paper", "--max-blocks", 2]
    text = succeed(zeroshot(*words))
    assert "not a bound" in text and "protocol paper" in text


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        ([], "name a model"),
        (["--ar", "{}/ar", "--energy", "ar:{}/ar"], "an energy corrects a denoiser"),
        (["--ar", "{}/ar", "--sets", "ptb,wiki"], "--sets: unknown set 'wiki'"),
        (["--ar", "{}/ar", "--sets", "wikitext"], "holds no wiki.test.raw"),
        (["--ar", "{}/ar", "--suite", "other"], "other"),
        (["--denoiser", "{}/denoiser", "--candidates", "2,4"], "several numbers of candidates need --sweep"),
    ],
)
def test_a_suite_that_cannot_be_scored_is_refused(zeroshot, words, phrase):
    assert_refused(zeroshot(*words), phrase)


def test_models_with_different_tokens_do_not_share_a_table(zeroshot, tmp_path):
    tokenizer = train_bpe(["the cat sat on the mat"] * 10, 270)
    model = tiny_denoiser(vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    model.save_pretrained(tmp_path / "bpe")
    assert_refused(zeroshot("--ar", "{}/ar", "--denoiser", tmp_path / "bpe"), "different tokenizers")


def test_a_folder_without_any_set_is_refused(edlm, home, tmp_path):  # noqa: F811
    words = ["evaluate", "zeroshot", "--ar", home / "ar", "--files", tmp_path]
    assert_refused(edlm(*words), "holds none of the sets")


@pytest.mark.slow
def test_the_real_files_give_one_table(edlm, home, shared, tmp_path):  # noqa: F811
    files = shared / "data" / "zeroshot"
    words = ["--ar", home / "ar", "--denoiser", home / "denoiser", "--max-blocks", 4, "--out", tmp_path / "out"]
    done = edlm("evaluate", "zeroshot", "--files", files, "--cache", tmp_path, *words, "--json")
    report = json.loads(succeed(done))
    assert list(report["rows"]["MDLM"]) == ["wikitext", "lm1b", "lambada", "ag_news", "pubmed", "arxiv"]
    assert list(report["missing"]) == ["ptb"]
