"""The zero-shot sets: seven held-out corpora on which a model trained on something else is scored.

Each is read from its usual file or from the hub, cut into documents and detokenised in one fixed way, so that a number
on one of them says what was measured. The whole source is the test split.
"""

import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edlm.data.documents import Piece, whole_document
from edlm.data.files import COMPRESSED, RECORDS, Row, file_state, kind_of, read_rows
from edlm.data.source import Source, detokenised
from edlm.errors import UserError

PREFIX = "zeroshot:"
PARQUET = "refs/convert/parquet"  # the branch where the hub keeps its own Parquet conversion of a scripted data set
AG_NEWS_COLUMNS = ("class", "title", "description")
TITLE = re.compile(r"= (?!=).*(?<!=) =")
END = Row(None, "the end", 0)


@dataclass(frozen=True)
class HubFiles:
    """The files of one split of a data set on the hub; no script of the data set is run."""

    repository: str
    files: str
    """Pattern of their paths, which begin with the configuration and end with the split."""
    revision: str = "main"


@dataclass(frozen=True)
class ZeroShotSet:
    """One set and everything that decides which text is scored."""

    name: str
    title: str
    """As in the paper's table."""
    document: str
    """What one document is; an end token follows each."""
    detokeniser: str
    local: tuple[str, ...]
    """File names looked for in a folder, best first; a pattern may match several files, which are read in order."""
    hub: HubFiles
    layout: str
    """How a local file is read, whatever its name: .jsonl, .csv or lines."""
    fields: tuple[tuple[str, ...], ...]
    """Columns that make up a document, joined by a space; the first alternative of which all are there is taken."""


def _papers(name: str, title: str) -> ZeroShotSet:
    return ZeroShotSet(
        name, title, "paper", "scientific-1",
        local=(f"{name}.test.jsonl", f"{name}-dataset/test.txt"),
        hub=HubFiles("armanc/scientific_papers", f"{name}/*test/*.parquet", PARQUET),
        layout=".jsonl", fields=(("article",), ("article_text",)),
    )  # fmt: skip


SETS: dict[str, ZeroShotSet] = {
    entry.name: entry
    for entry in (
        ZeroShotSet(
            "ptb", "PTB", "sentence", "ptb-1",
            local=("ptb.test.txt",),
            hub=HubFiles("ptb-text-only/ptb_text_only", "penn_treebank/test/*.parquet", PARQUET),
            layout="lines", fields=(("line",), ("sentence",)),
        ),
        ZeroShotSet(
            "wikitext", "WikiText", "article", "wikitext-1",
            local=("wiki.test.raw", "wikitext103.test.raw", "wikitext2.test.raw"),
            hub=HubFiles("Salesforce/wikitext", "wikitext-103-raw-v1/test-*.parquet"),
            layout="lines", fields=(("line",), ("text",)),
        ),
        ZeroShotSet(
            "lm1b", "LM1B", "sentence", "lm1b-1",
            local=("lm1b.heldout.tokens", "news.en.heldout-*-of-00050"),
            hub=HubFiles("billion-word-benchmark/lm1b", "plain_text/test/*.parquet", PARQUET),
            layout="lines", fields=(("line",), ("text",)),
        ),
        ZeroShotSet(
            "lambada", "LAMBADA", "passage", "lambada-1",
            local=("lambada_test.jsonl",),
            hub=HubFiles("EleutherAI/lambada_openai", "data/lambada_test.jsonl"),
            layout=".jsonl", fields=(("text",),),
        ),
        ZeroShotSet(
            "ag_news", "AG News", "title and description", "none-1",
            local=("ag_news.test.csv", "ag_news_csv/test.csv"),
            hub=HubFiles("fancyzhx/ag_news", "data/test-*.parquet"),
            layout=".csv", fields=(("text",), AG_NEWS_COLUMNS[1:]),
        ),
        _papers("pubmed", "PubMed"),
        _papers("arxiv", "arXiv"),
    )
}  # fmt: skip


def zeroshot_source(spec: str) -> Source:
    """The source for `zeroshot:NAME` (from the hub) or `zeroshot:NAME:PATH` (a file, or a folder that holds it)."""
    name, _, path = spec.removeprefix(PREFIX).partition(":")
    entry = _named(name)
    files = _local_files(entry, Path(path).expanduser()) if path else _hub_files(entry)
    states = [file_state(file) for file in files]
    source = Source(
        spec,
        identity={"zeroshot": name, "document": entry.document, "files": states},
        pieces=lambda: _documents(entry, files),
        total=sum(state["size"] for state in states),
        only_split="test",
        normalise_characters=True,
    )
    return detokenised(source, entry.detokeniser)


def _named(name: str) -> ZeroShotSet:
    if name not in SETS:
        close = difflib.get_close_matches(name.lower(), SETS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(f"unknown zero-shot set {name!r}; {hint}choose {', '.join(SETS)}")
    return SETS[name]


def _local_files(entry: ZeroShotSet, path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.exists():
        remedy = f"name the file or its folder, or take it from the hub with {PREFIX}{entry.name}"
        raise UserError(f"{path} does not exist; {remedy}")
    for name in (*entry.local, entry.hub.files):
        for suffix in ("", *COMPRESSED):
            if files := sorted(path.glob(name + suffix)):
                return files
    raise UserError(f"folder {path} holds no {' or '.join(entry.local)}; put it there, or name the file itself")


def _hub_files(entry: ZeroShotSet) -> list[Path]:
    """The set's files in the hub's local cache, fetched on first use and known there by their content."""
    from huggingface_hub import snapshot_download

    hub = entry.hub
    try:
        folder = snapshot_download(
            hub.repository, repo_type="dataset", revision=hub.revision, allow_patterns=hub.files, etag_timeout=10
        )
    except Exception as error:  # the hub's client raises those of its own network library
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"cannot fetch {hub.repository} from the hub ({reason}); {_by_hand(entry)}") from error
    files = sorted(Path(folder).glob(hub.files))
    if not files:
        raise UserError(f"{hub.repository} at {hub.revision} holds no {hub.files}; {_by_hand(entry)}")
    return files


def _by_hand(entry: ZeroShotSet) -> str:
    return f"get {entry.local[0]} by hand and name it: {PREFIX}{entry.name}:PATH"


def _documents(entry: ZeroShotSet, files: list[Path]) -> Iterator[Piece]:
    before = 0
    for file in files:
        texts = _texts(entry, file)
        for text, row in _articles(texts) if entry.document == "article" else texts:
            yield from whole_document(text, row.where, before + row.done)
        before += file.stat().st_size


def _texts(entry: ZeroShotSet, file: Path) -> Iterator[tuple[str, Row]]:
    """The stripped text of every row, blank ones too."""
    kind = kind_of(file) if kind_of(file) == ".parquet" else entry.layout
    if kind == "lines" and kind_of(file) in RECORDS:
        raise UserError(f"{file} is no text file; {_usual(entry)}")
    rows = read_rows(file, kind, header=AG_NEWS_COLUMNS)
    for row in _checked(rows, entry) if kind == ".csv" else rows:
        yield _text(entry, row).strip(), row


def _checked(rows: Iterator[Row], entry: ZeroShotSet) -> Iterator[Row]:
    """The rows of AG News: three columns, the first a number; a first row that names the columns is left out."""
    for index, row in enumerate(rows):
        if None in row.values or None in row.values.values():
            wanted = ", ".join(AG_NEWS_COLUMNS)
            raise UserError(f"{row.where} must have the three columns {wanted}; {_usual(entry)}")
        is_news = row.values["class"].strip().isdecimal()
        if index > 0 and not is_news:
            raise UserError(f"{row.where}: class must be a number, got {row.values['class'][:40]!r}; mend the file")
        if is_news:
            yield row


def _text(entry: ZeroShotSet, row: Row) -> str:
    wanted = " or ".join(" and ".join(columns) for columns in entry.fields)
    if not isinstance(row.values, dict):
        raise UserError(f"{row.where} is not a record with {wanted}; {_usual(entry)}")
    for columns in entry.fields:
        if all(column in row.values for column in columns):
            return " ".join(_plain(row.values[column], column, row.where) for column in columns)
    has = ", ".join(str(column)[:40] for column in row.values) or "none"
    raise UserError(f"{row.where} has no field {wanted}, but {has}; {_usual(entry)}")


def _usual(entry: ZeroShotSet) -> str:
    return f"{entry.title} is read from {entry.local[0]} or from Parquet"


def _plain(value: Any, column: str, where: str) -> str:
    """Text, or sentences that become its lines."""
    sentences = value if isinstance(value, list) else [value]
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise UserError(f"{where}: field {column!r} holds {type(value).__name__}, not text; mend the file")
    return "\n".join(sentences)


def _articles(lines: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """Lines gathered into articles. A title, `= Du Fu =`, stands between blank lines; scraps of a formula do not."""
    article: list[str] = []
    before, last = "", END
    for (line, row), (after, _) in itertools.pairwise(itertools.chain(lines, [("", END)])):
        is_title = not before and not after and TITLE.fullmatch(line)
        if line and not article and not is_title:
            raise UserError(f"{row.where} stands before the first article's = Title =; name WikiText's raw file")
        if is_title and article:
            yield "\n".join(article).strip("\n"), last
            article = []
        if article or line:
            article.append(line)
        before, last = line, row
    if article:
        yield "\n".join(article).strip("\n"), last
