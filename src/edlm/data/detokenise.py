"""Detokenisers: corpora that were published as spaced-out tokens, back to text as people write it.

They are part of the measuring protocol: a perplexity means nothing without the name of the one that made the text. Each
is a pure function of one document, found by a name that ends in its version; a rule that changes gets a new version.
On the texts they are made for, applying one twice is the same as applying it once.
"""

import re
from collections.abc import Callable

from edlm.errors import UserError

Detokeniser = Callable[[str], str]

BRACKETS = {"LRB": "(", "RRB": ")", "LSB": "[", "RSB": "]", "LCB": "{", "RCB": "}"}
NEAR = 40  # characters that a pair of single quotation marks may enclose: a stray one must not upset those after it


def none_1(text: str) -> str:
    """The text as it is."""
    return text


def ptb_1(text: str) -> str:
    r"""Undo the Penn Treebank's tokens in the form of `ptb.test.txt`.

    `n't`, `'s` and the other endings go back to their word, `traders '` becomes `traders'`; ``` `` ``` and `''` become
    `"`, `-lrb-` to `-rcb-` their brackets, `\/` a slash. Brackets, quotation marks and `. , ; : !` close up as in
    `lm1b_1`. Placeholders, which no rule can undo, become something a text could hold: `<unk>` a `?` that stands as a
    word, the number `N` a `1`, which takes the `$` or `#` before it. `%` keeps its space.
    """
    text = text.replace("\\/", "/").replace("<unk>", "?")
    text = re.sub(r"(?<!\S)-([LR][RSC]B)-(?!\S)", lambda match: BRACKETS[match[1].upper()], text, flags=re.IGNORECASE)
    text = re.sub(r"(?<![^\s/-])N(?![^\s/-])", "1", text)
    text = re.sub(r" n't(?!\w)", "n't", text)
    text = re.sub(r"``|''", '"', _latex_quotes(text))  # a quotation may go on in the next sentence
    # A placeholder is a word: its question mark must not be taken for the end of a sentence.
    return _close_up(text, currency="$#", punctuation=".,;:!")


def wikitext_1(text: str) -> str:
    """Undo the tokens of WikiText's raw files.

    ` @-@ `, ` @,@ ` and ` @.@ ` become the bare hyphen, comma and point; headings stay, `= = Early life = =` as
    `== Early life ==`; a degree sign loses its spaces, `$ £ € ¥` the one before the number. Punctuation, brackets,
    quotation marks and apostrophes as in `lm1b_1`; ` / ` stays. Lines lose the space at their ends.
    """
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ° ", "°", text)
    text = re.sub(r"^ *((?:= )+)(.+?)((?: =)+) *$", _heading, text, flags=re.MULTILINE)
    return _close_up(text, currency="$£€¥")


def lm1b_1(text: str) -> str:
    """Undo the tokens of the One Billion Word benchmark.

    `. , ; : ? !` go back to the word before them, brackets to what they enclose, `$ £ € ¥` to their number. Quotation
    marks close up in pairs within a line, single ones only around a few words; a double one without a partner does so
    only at an end of the line. `'s`, `'t`, `'re` and the like go back to their word, so do `O 'Neill`, `d 'état` and
    the apostrophe of `lawyers ' fees`. `http : / /` and ` / ` lose their spaces. Hyphens inside words were never taken
    apart; ` - ` and ` -- ` are dashes and stay, like `...`, `%` and `&`.
    """
    text = re.sub(r"\b(https?) : / / ", r"\1://", text)
    text = re.sub(r"(?<=\S) / (?=\S)", "/", text)
    return _close_up(text, currency="$£€¥")


def lambada_1(text: str) -> str:
    """Make LAMBADA's double quotation marks plain ones, curly ones, ``` `` ``` and `''` alike, and strip the text."""
    return re.sub(r"[“”]|``|''", '"', text).strip()


def scientific_1(text: str) -> str:
    """Undo the tokens of the papers from arXiv and PubMed.

    Punctuation, brackets, `"` and `'s` as in `lm1b_1`; ``` `` x '' ``` and ``` ` x ' ``` become `"x"` and `'x'`. Any
    other `'` stays where it is: it may be a prime. What stands for something that was cut out stays too: `@xcite`,
    `@xmath3`, `[ fig1 ]` without its spaces. So do formulas in LaTeX, runs of spaces, and the ` - ` of `short - term`,
    which cannot be told from a dash.
    """
    return _close_up(_latex_quotes(text), currency="", is_prose=False)


DETOKENISERS: dict[str, Detokeniser] = {
    "none-1": none_1,
    "ptb-1": ptb_1,
    "wikitext-1": wikitext_1,
    "lm1b-1": lm1b_1,
    "lambada-1": lambada_1,
    "scientific-1": scientific_1,
}


def detokeniser(name: str) -> Detokeniser:
    """The detokeniser of that name and version."""
    if name not in DETOKENISERS:
        raise UserError(f"unknown detokeniser {name!r}; choose {', '.join(DETOKENISERS)}")
    return DETOKENISERS[name]


def _close_up(text: str, *, currency: str, punctuation: str = ".,;:?!", is_prose: bool = True) -> str:
    """The rules that spaced-out corpora share. Quotation marks come before what may close up with them."""
    text = re.sub(r"(?<=\S) '(?=(?:s|t|m|d|re|ve|ll)(?![\w']))", "'", text, flags=re.IGNORECASE)
    text = "\n".join(_double_quotes(line.strip(" ")) for line in text.split("\n"))
    if is_prose:
        text = re.sub(r"(?<=\S) ' (?=s(?!\S))", "'", text)  # G.M. ' s
        text = re.sub(r"\b([DJLMNOdjlmno]) '(?=\w)", r"\1'", text)
        text = "\n".join(_single_quotes(line) for line in text.split("\n"))
    text = re.sub(r"([(\[{]) +(?=\S)", r"\1", text)
    text = re.sub(r"(?<=\S) +([)\]}])", r"\1", text)
    if currency:
        text = re.sub(rf"([{currency}]) (?=\.?\d)", r"\1", text)
    return re.sub(rf"(?<=\S) +([{punctuation}])(?=$|[\s\"')\]}}])", r"\1", text)


def _latex_quotes(text: str) -> str:
    """Pairs of marks as LaTeX writes them, within a line; `''` alone may be a second derivative."""
    text = re.sub(r"(?<!\S)`` ?(.+?) ?''", r'"\1"', text)
    return re.sub(r"(?<!\S)` ?([^`'\n]+?) ?'(?!\w)", r"'\1'", text)


def _double_quotes(line: str) -> str:
    """Marks that stand alone, closed up in pairs from the left; one left over only where it ends or opens the line."""
    marks = [match.start() for match in re.finditer(r'(?<!\S)"(?!\S)', line)]
    spaces: set[int] = set()
    for number, at in enumerate(marks):
        has_partner = number % 2 == 1 or number + 1 < len(marks)
        opens = number % 2 == 0 if has_partner else at == 0
        if has_partner or at in (0, len(line) - 1):
            spaces.add(at + 1 if opens else at - 1)
    return _without(line, spaces)


def _single_quotes(line: str) -> str:
    """Marks that stand alone: apostrophes after an s or before punctuation, else near pairs, else left as they are."""
    marks = [match.start() for match in re.finditer(r"(?<![^\s\"])'(?=$|[\s\",.;:?!])", line)]
    after_s = [line[max(at - 2, 0) : at].lower() == "s " for at in marks]
    spaces: set[int] = set()
    is_open = False
    for number, at in enumerate(marks):
        num_left = len(marks) - number
        has_partner = num_left > 1 and marks[number + 1] - at <= NEAR
        may_open = not after_s[number] or (num_left % 2 == 0 and has_partner and not after_s[number + 1])
        if is_open or not may_open or re.match(r"$| ?[,.;:?!\"]", line[at + 1 :]):
            spaces.add(at - 1)
            is_open = False
        elif has_partner:
            spaces.add(at + 1)
            is_open = True
    return _without(line, {at for at in spaces if line[at : at + 1] == " "})


def _without(line: str, positions: set[int]) -> str:
    return "".join(character for at, character in enumerate(line) if at not in positions)


def _heading(match: re.Match[str]) -> str:
    before, after = match[1].replace(" ", ""), match[3].replace(" ", "")
    return f"{before} {match[2]} {after}" if before == after else match[0]
