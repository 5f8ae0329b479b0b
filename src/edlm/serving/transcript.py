"""The text of a completion as it becomes final: tokens are revealed in any order, text is sent from the left.

A revealed token never changes, so everything before the first mask is final. From it three things are kept back: the
beginning of what may become a stop sequence, half of a character, and all that follows an end.
"""

import bisect
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from edlm.tokenization import Tokenizer

Finish = Literal["stop", "length"]
HALF = "\ufffd"
"""What tokenizers write for bytes that are not yet a character."""


class Transcript:
    """What of one completion can be sent so far."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._prompt, self._stops = tokenizer, list(prompt), stops
        self._prompt_text = tokenizer.decode(self._prompt)
        self._sent = ""
        self.finish: Finish | None = None
        """Why it ended, once it has."""
        self.num_tokens = 0
        """Tokens of the whole text, once it has ended."""

    def extend(self, tokens: Sequence[int], *, is_all: bool) -> str:
        """The text to send now that `tokens` are the completion's first ones; `is_all` if no more will come."""
        tokens, is_ended = self._before_end(list(tokens))
        text = self._decode(tokens)
        is_final = is_all or is_ended
        cut = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if cut is not None:
            text = text[:cut]
        elif not is_final:
            text = self._hold_back(text.rstrip(HALF))
        if cut is not None or is_final:
            self.finish = "length" if cut is None and not is_ended else "stop"
            self.num_tokens = len(tokens) if cut is None else self._num_tokens_of(text, tokens)
        new, self._sent = text[len(self._sent) :], text
        return new

    def _before_end(self, tokens: list[int]) -> tuple[list[int], bool]:
        end = self._tokenizer.eos_id
        return (tokens[: tokens.index(end)], True) if end is not None and end in tokens else (tokens, False)

    def _decode(self, tokens: list[int]) -> str:
        """Decoded behind the prompt: some tokenizers drop a space at the beginning of a text."""
        text = self._tokenizer.decode([*self._prompt, *tokens])
        if text.startswith(self._prompt_text):
            return text[len(self._prompt_text) :]
        return self._tokenizer.decode(tokens)

    def _num_tokens_of(self, text: str, tokens: list[int]) -> int:
        """How many of the tokens it takes to write the text."""
        written = lambda num: len(self._decode(tokens[:num]).rstrip(HALF))  # noqa: E731
        return bisect.bisect_left(range(len(tokens)), len(text), key=written)

    def _hold_back(self, text: str) -> str:
        """All but what could be the beginning of a stop sequence."""
        held = 0
        for stop in self._stops:
            sizes = range(min(len(stop) - 1, len(text)), 0, -1)
            held = max(held, next((size for size in sizes if text.endswith(stop[:size])), 0))
        return text[: len(text) - held]


def with_holes(tokenizer: Tokenizer, tokens: Sequence[int], mask_id: int) -> str:
    """A partly masked text in the notation of `edlm infill`: the [MASK:3] of."""
    parts = []
    for is_hole, run in groupby(tokens, key=lambda token: token == mask_id):
        ids = list(run)
        parts.append(tokenizer.decode(ids) if not is_hole else "[MASK]" if len(ids) == 1 else f"[MASK:{len(ids)}]")
    return "".join(parts)
