"""The zero-shot sets: what each file becomes, what every detokeniser undoes, and what a wrong file leads to."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edlm.data import DataConfig, prepare
from edlm.data.detokenise import DETOKENISERS, detokeniser
from edlm.data.sources import open_source
from edlm.data.zeroshot import SETS, zeroshot_source
from edlm.errors import UserError
from edlm.paper_figures import OPENWEBTEXT, PERPLEXITY
from edlm.tokenization import normalise_text8, train_bpe

SENTENCES = ["the <unk> firm 's shares rose N %", "it did n't say", "traders ' fees of $ N fell"]
SENTENCES_UNDONE = ["the ? firm's shares rose 1 %", "it didn't say", "traders' fees of $1 fell"]


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("bpe")
    train_bpe(SENTENCES_UNDONE * 9, 300).save(folder)
    return str(folder)


@pytest.fixture
def make(tmp_path):
    def build(source, tokenizer="characters", **settings):
        return prepare(DataConfig(source, tokenizer, **{"length": 1, "cache": str(tmp_path / "cache")} | settings))

    return build


@pytest.fixture
def ptb(tmp_path) -> Path:
    return write(tmp_path / "ptb.test.txt", "".join(f" {sentence} \n" for sentence in SENTENCES))


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def parquet(path: Path, **columns) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def documents(spec: str) -> list[str]:
    texts, parts = [], []
    for piece in zeroshot_source(spec).pieces():
        parts.append(piece.text)
        if piece.is_last:
            texts.append("".join(parts))
            parts = []
    return texts


def text_of(corpus) -> str:
    blocks = corpus["test"]
    return corpus.tokenizer.decode(blocks.get(range(len(blocks))).reshape(-1))


# Detokenisers


@pytest.mark.parametrize(
    "name, before, after",
    [
        ("none-1", " as , it is . ", " as , it is . "),
        ("ptb-1", "he does n't ca n't", "he doesn't can't"),
        ("ptb-1", "it 's we 're they 've i 'm she 'd you 'll", "it's we're they've i'm she'd you'll"),
        ("ptb-1", "the banks ' loans", "the banks' loans"),
        ("ptb-1", "`` not yet '' he said", '"not yet" he said'),
        ("ptb-1", "he said `` not yet", 'he said " not yet'),
        ("ptb-1", "the ` soft ' kind", "the 'soft' kind"),
        ("ptb-1", "a -LRB- b -RRB- -lsb- c -rsb- -LCB- d -RCB-", "a (b) [c] {d}"),
        ("ptb-1", "and\\/or", "and/or"),
        ("ptb-1", "N in N rose N N\\/N N-year N", "1 in 1 rose 1 1/1 1-year 1"),
        ("ptb-1", "$ N and # N or N %", "$1 and #1 or 1 %"),
        ("ptb-1", "mr. <unk> of <unk> 's NASA", "mr. ? of ?'s NASA"),
        ("ptb-1", "now , then ; so : yes ! end .", "now, then; so: yes! end."),
        ("wikitext-1", "a 7 @-@ foot , 1 @,@ 500 and 2 @.@ 5 m", "a 7-foot, 1,500 and 2.5 m"),
        ("wikitext-1", " \n = = Early life = = \n \n He ( b. 1 ) . \n", "\n== Early life ==\n\nHe (b. 1).\n"),
        ("wikitext-1", " = Some ( film ) = ", "= Some (film) ="),
        ("wikitext-1", "k = = 2", "k = = 2"),
        ("wikitext-1", "at 20 ° C and 5 / 6", "at 20°C and 5 / 6"),
        ("wikitext-1", 'the " Old Hall " , and " New "', 'the "Old Hall", and "New"'),
        ("lm1b-1", "Yes , no ; so : what ? Ah ! End .", "Yes, no; so: what? Ah! End."),
        ("lm1b-1", "Rye , N.Y. , ( AP ) [ sic ] { x }", "Rye, N.Y., (AP) [sic] {x}"),
        ("lm1b-1", '" I see , " he said . " Good . "', '"I see," he said. "Good."'),
        ("lm1b-1", '" It goes on .', '"It goes on.'),
        ("lm1b-1", 'It ends here . "', 'It ends here."'),
        ("lm1b-1", 'Nobody knows , " who said so', 'Nobody knows, " who said so'),
        ("lm1b-1", "I don 't , we 're , DON 'T , it 's", "I don't, we're, DON'T, it's"),
        ("lm1b-1", "O 'Neill and d 'état and G.M. ' s", "O'Neill and d'état and G.M.'s"),
        ("lm1b-1", "the lawyers ' fees", "the lawyers' fees"),
        ("lm1b-1", "a ' one-stop shop ' , they say", "a 'one-stop shop', they say"),
        ("lm1b-1", "of ships ' iron ' and ' steel ' ones", "of ships 'iron' and 'steel' ones"),
        ("lm1b-1", "gone fishin ' , gone", "gone fishin', gone"),
        ("lm1b-1", "since ' 90s rock", "since ' 90s rock"),
        ("lm1b-1", "$ 5 , £ 6m , € .5 and ¥ 7 in US $ or so", "$5, £6m, €.5 and ¥7 in US $ or so"),
        ("lm1b-1", "at http : / / www.site.com and / or", "at http://www.site.com and/or"),
        ("lm1b-1", "a well-known man - tall -- said ... 5 % B & B", "a well-known man - tall -- said ... 5 % B & B"),
        ("lambada-1", " “Oh,” she said, ``it's'' — ‘so’. ", '"Oh," she said, "it\'s" — ‘so’.'),
        ("scientific-1", "as in @xcite , for @xmath3 ( fig . [ f1 ] ) .", "as in @xcite, for @xmath3 (fig. [f1])."),
        ("scientific-1", "parkinson 's , `` new '' or ` old ' ways", "parkinson's, \"new\" or 'old' ways"),
        ("scientific-1", "short - term  @xcite .\n then x ' and f '' .", "short - term  @xcite.\nthen x ' and f ''."),
    ],
)
def test_every_rule_undoes_what_it_says_and_does_nothing_the_second_time(name, before, after):
    assert detokeniser(name)(before) == after
    assert detokeniser(name)(after) == after


@pytest.mark.parametrize("name", ["wikitext", "lm1b", "lambada", "ag_news", "pubmed", "arxiv"])
def test_detokenising_a_real_set_twice_changes_nothing(shared, name):
    function = DETOKENISERS[SETS[name].detokeniser]
    texts = documents(f"zeroshot:{name}:{shared}/data/zeroshot")
    assert [text for text in texts if function(text) != text] == []


def test_every_detokeniser_has_a_version_and_says_what_it_undoes():
    for name, function in DETOKENISERS.items():
        assert name.rsplit("-", 1) == function.__name__.rsplit("_", 1) and function.__doc__


# The sets


def test_the_sets_are_those_of_the_papers_table():
    titles = [entry.title for entry in SETS.values()]
    assert titles == ["PTB", "WikiText", "LM1B", "LAMBADA", "AG News", "PubMed", "arXiv"]
    assert all(list(row) == [OPENWEBTEXT, *SETS] for row in PERPLEXITY.values())
    assert PERPLEXITY["MDLM"]["lambada"] == 47.52 and PERPLEXITY["EDLM-coAR"]["arxiv"] == 39.02
    assert all(entry.detokeniser in DETOKENISERS for entry in SETS.values())


@pytest.mark.parametrize(
    "name, count, number, before, after",
    [
        ("wikitext", 60, 0, "a guest @-@ starring role", "a guest-starring role"),
        ("wikitext", 60, 0, "= = Career = =", "== Career =="),
        ("lm1b", 12105, 0, '" house arrest , " saying', '"house arrest," saying'),
        ("lambada", 5153, 1, "I can make it there on my own, Shane", "I can make it there on my own, Shane"),
        ("ag_news", 7600, 0, 'after talks","Unions', "after talks Unions"),
        ("pubmed", 5, 0, "parkinson 's disease ( pd )", "parkinson's disease (pd)"),
        ("arxiv", 5, 0, "discovered by @xcite in", "discovered by @xcite in"),
    ],
)
def test_a_real_file_becomes_its_documents(shared, name, count, number, before, after):
    folder = shared / "data" / "zeroshot"
    texts = documents(f"zeroshot:{name}:{folder}")
    raw = next(path for path in map(folder.joinpath, SETS[name].local) if path.exists()).read_text(encoding="utf-8")
    assert len(texts) == count
    assert before in raw and after in texts[number]
    assert all(text == text.strip() != "" for text in texts)


def test_curly_quotes_of_lambada_become_plain_ones(shared):
    texts = documents(f"zeroshot:lambada:{shared}/data/zeroshot/lambada_test.jsonl")
    assert not any(mark in text for text in texts for mark in "“”") and any("’" in text for text in texts)


def test_articles_of_wikitext_begin_at_titles_and_nowhere_else(shared):
    texts = documents(f"zeroshot:wikitext:{shared}/data/zeroshot")
    titles = [text.split("\n")[0] for text in texts]
    assert titles[:2] == ["= Robert Boulter =", "= Du Fu ="] and "= Constant k filter =" in titles
    assert not any("henry" in title for title in titles)  # a formula that looks like a title


def test_sentences_of_a_paper_are_its_lines(shared):
    first = documents(f"zeroshot:arxiv:{shared}/data/zeroshot")[0].split("\n")
    assert len(first) == 220 and first[1].startswith("many investigators studied")


def test_a_penn_treebank_file_is_one_document_per_line(make, ptb, bpe_folder):
    corpus = make(f"zeroshot:ptb:{ptb.parent}", bpe_folder)
    assert documents(f"zeroshot:ptb:{ptb}") == SENTENCES_UNDONE
    assert text_of(corpus) == "".join(f"{sentence}<|endoftext|>" for sentence in SENTENCES_UNDONE)


def test_ag_news_may_name_its_columns(tmp_path):
    rows = [["3", "Rents, up", 'They "rose"\nagain'], ["1", "Talks", "No end \\ in sight"]]
    for index, start in enumerate(([], [["Class Index", "Title", "Description"]])):
        with (tmp_path / f"{index}.csv").open("w", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(start + rows)
        assert documents(f"zeroshot:ag_news:{tmp_path}/{index}.csv") == [
            'Rents, up They "rose"\nagain',
            "Talks No end \\ in sight",
        ]


def test_a_set_in_several_files_is_read_in_order(tmp_path):
    for number, text in ((1, "Second .\n"), (0, "First .\nAgain .\n")):
        write(tmp_path / f"news.en.heldout-0000{number}-of-00050", text)
    assert documents(f"zeroshot:lm1b:{tmp_path}") == ["First.", "Again.", "Second."]


# The hub


LINES = ["", " = One = \n", "", " Some text . \n", " = 2 = \n", " More . \n", "", " = Two = \n", "", " End . \n"]


@pytest.mark.parametrize(
    "name, columns, expected",
    [
        ("ptb", {"sentence": SENTENCES}, SENTENCES_UNDONE),
        ("wikitext", {"text": LINES}, ["= One =\n\nSome text.\n= 2 =\nMore.", "= Two =\n\nEnd."]),
        ("lm1b", {"text": ["It 's so .", "Oh !"]}, ["It's so.", "Oh!"]),
        ("ag_news", {"text": ["Title Body ."], "label": [2]}, ["Title Body ."]),
        ("pubmed", {"article": ["a b .\nc d ."], "abstract": [""], "section_names": [""]}, ["a b.\nc d."]),
    ],
)
def test_a_folder_in_the_hubs_layout_gives_the_same_documents(tmp_path, name, columns, expected):
    parquet(tmp_path / SETS[name].hub.files.replace("*", "0"), **columns)
    assert documents(f"zeroshot:{name}:{tmp_path}") == expected


def test_lines_of_a_file_and_rows_of_the_hub_are_the_same_articles(tmp_path):
    raw = write(tmp_path / "wiki.test.raw", "".join(line or " \n" for line in LINES))
    rows = parquet(tmp_path / "rows.parquet", text=LINES)
    assert documents(f"zeroshot:wikitext:{raw}") == documents(f"zeroshot:wikitext:{rows}")


def test_without_a_path_the_set_comes_from_the_hubs_cache(make, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"get ptb\.test\.txt by hand and name it: zeroshot:ptb:PATH"):
        make("zeroshot:ptb")
    stored, commit = tmp_path / "datasets--ptb-text-only--ptb_text_only", "0123456789" * 4
    parquet(stored / "snapshots" / commit / "penn_treebank" / "test" / "0000.parquet", sentence=SENTENCES)
    write(stored / "refs" / "refs" / "convert" / "parquet", commit)
    assert text_of(make("zeroshot:ptb")) == normalise_text8(" ".join(SENTENCES_UNDONE))


# In the pipeline


@pytest.mark.parametrize(
    "name, num_characters, num_tokens",
    [("lambada", 1_596_538, 423_590), ("pubmed", 78_894, 17_099), ("arxiv", 139_005, 35_052)],
)
def test_a_real_set_is_prepared_with_characters_and_with_the_vocabulary_of_gpt2(
    make, shared, name, num_characters, num_tokens
):
    spec, gpt2 = f"zeroshot:{name}:{shared}/data/zeroshot", str(shared / "data" / "gpt2_bpe")
    texts = documents(spec)
    characters, tokens = make(spec, length=256), make(spec, gpt2, length=1024)
    assert characters["test"].num_tokens == num_characters and tokens["test"].num_tokens == num_tokens
    assert np.array_equal(characters["test"][0], characters.tokenizer.encode(normalise_text8(texts[0])[:256]))
    start = tokens.tokenizer.encode(texts[0])
    assert np.array_equal(tokens["test"][0][: len(start)], start[:1024])


def test_all_of_a_set_is_its_test_split(make, ptb):
    corpus = make(f"zeroshot:ptb:{ptb}")
    assert corpus.splits == ("test",) and "train" not in corpus
    assert text_of(corpus) == normalise_text8(" ".join(SENTENCES_UNDONE))
    with pytest.raises(UserError, match="no split 'train'; choose test"):
        corpus["train"]


def test_a_set_can_be_the_test_text_of_another_source(make, ptb, tmp_path):
    corpus = make(str(write(tmp_path / "a.txt", "some words")), test=f"zeroshot:ptb:{ptb}", detokenise="lambada-1")
    assert corpus.splits == ("train", "test")
    assert text_of(corpus) == normalise_text8(" ".join(SENTENCES_UNDONE))


def test_the_description_names_the_detokeniser(make, ptb):
    told = make(f"zeroshot:ptb:{ptb}").describe()["splits"]["test"]
    assert told["source"] == f"zeroshot:ptb:{ptb}, detokenised by ptb-1" and told["normalised"]


def test_another_version_of_the_detokeniser_is_another_text(make, ptb, bpe_folder, monkeypatch):
    spec = f"zeroshot:ptb:{ptb}"
    before, text = zeroshot_source(spec).identity, text_of(make(spec, bpe_folder))
    monkeypatch.setitem(DETOKENISERS, "ptb-2", str.upper)
    monkeypatch.setitem(SETS, "ptb", replace(SETS["ptb"], detokeniser="ptb-2"))
    assert zeroshot_source(spec).identity == before | {"detokeniser": "ptb-2"}
    assert "<unk>" not in text and "THE <UNK> FIRM 'S" in text_of(make(spec, bpe_folder))


def test_any_source_can_be_detokenised(make, tmp_path, bpe_folder):
    path = write(tmp_path / "a.txt", "It 's so ( far ) .\n" * 9000)  # above the size at which documents are cut
    source = open_source(str(path), DataConfig(str(path), detokenise="lm1b-1"), tmp_path)
    assert "".join(piece.text for piece in source.pieces()) == "It's so (far).\n" * 9000
    plain = make(str(path), bpe_folder)
    assert make(str(path), bpe_folder, detokenise="lm1b-1")["train"].num_tokens < plain["train"].num_tokens


# What goes wrong


@pytest.mark.parametrize(
    "spec, message",
    [
        ("zeroshot:lambda", "unknown zero-shot set 'lambda'; did you mean 'lambada'"),
        ("zeroshot:", "choose ptb, wikitext"),
        ("zeroshot:ptb:/no/such/place", "/no/such/place does not exist; name the file or its folder"),
    ],
)
def test_a_name_or_path_that_is_not_there_is_reported(make, spec, message):
    with pytest.raises(UserError, match=message):
        make(spec)


def test_a_folder_without_the_file_says_which_one_it_wants(make, tmp_path):
    with pytest.raises(UserError, match=r"holds no pubmed\.test\.jsonl or pubmed-dataset/test\.txt; put it there"):
        make(f"zeroshot:pubmed:{tmp_path}")


@pytest.mark.parametrize(
    "name, file, content, message",
    [
        ("lambada", "a.jsonl", "", "holds no text"),
        ("lambada", "a.jsonl", "plain text\n", "line 1 is not JSON"),
        (
            "lambada",
            "a.jsonl",
            '{"body": "x"}\n',
            "has no field text, but body; LAMBADA is read from lambada_test.jsonl",
        ),
        ("lambada", "a.jsonl", "[1]\n", "line 1 is not a record with text"),
        ("pubmed", "a.jsonl", json.dumps({"article_text": ["a", 1]}), "field 'article_text' holds list, not text"),
        ("arxiv", "a.jsonl", json.dumps({"abstract_text": ["a"]}), "has no field article or article_text"),
        ("ag_news", "a.csv", "text,label\nx,1\n", "line 1 must have the three columns class, title, description"),
        ("ag_news", "a.csv", "1,a,b\n2,a,b,c\n", "line 2 must have the three columns"),
        ("ag_news", "a.csv", "1,a,b\nx,a,b\n", "line 2: class must be a number, got 'x'"),
        ("wikitext", "a.raw", " Some text . \n", "line 1 stands before the first article's = Title ="),
        ("ptb", "a.jsonl", '{"text": "x"}\n', "is no text file; PTB is read from ptb.test.txt"),
        ("lm1b", "a.txt", "\n\n", "holds no text"),
    ],
)
def test_a_file_in_the_wrong_layout_is_reported_in_one_line(make, tmp_path, name, file, content, message):
    with pytest.raises(UserError, match=message) as error:
        make(f"zeroshot:{name}:{write(tmp_path / file, content)}")
    assert file in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"validation": "5%"}, "all of zeroshot:ptb:.* is the test split; leave validation and test empty"),
        ({"test": "5%"}, "is the test split"),
        ({"tokenizer": "bpe:300"}, "no text to learn a vocabulary from"),
        ({"detokenise": "ptb"}, "unknown detokeniser 'ptb'; choose none-1, ptb-1"),
    ],
)
def test_a_test_set_is_not_to_be_learned_from(make, ptb, settings, message):
    with pytest.raises(UserError, match=message):
        make(f"zeroshot:ptb:{ptb}", **settings)
