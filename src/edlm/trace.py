"""A trajectory as JSON lines: a header, then one line per step of a batch, for plots, pages and papers.

A trace can be shown without the models that made it, and without torch: whenever a token first appears, its text is
written beside it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

from edlm.reports import plain

if TYPE_CHECKING:
    from torch import Tensor

    from edlm.sampler import Info, State
    from edlm.tokenization import Tokenizer

FORMAT = 1
"""Version of the file format; it stands in the header."""
Line = dict[str, Any]


@final
class Tracer:
    """Turns steps into lines, and remembers which tokens' texts are in the trace already. A mask is null in them."""

    def __init__(self, tokenizer: "Tokenizer", mask_id: int) -> None:
        self.tokenizer, self.mask_id = tokenizer, mask_id
        self._written: set[int] = set()

    def header(self, settings: dict[str, Any], fixed: "Tensor", num_steps: int) -> Line:
        """The first line: settings, known tokens (null where unknown), and how many steps a sequence will take."""
        tokens = self._unmasked(fixed.tolist())
        about = {"edlm_trace": FORMAT, "settings": settings, "num_steps": num_steps, "tokens": tokens}
        return about | self._pieces(tokens)

    def line(self, indices: range, state: "State", info: "Info") -> Line:
        """What a step did to each sequence of its batch."""
        line = trace_line(indices, state, info)
        drawn = [token for row in line["revealed"] for _, token in row]
        if "choice" in line:  # candidates for a single step leave the rest masked
            rows = [[self._unmasked(one) for one in row] for row in line["choice"]["candidates"]]
            line["choice"]["candidates"] = rows
            drawn += [token for row in rows for one in row for token in one]
        return line | self._pieces(drawn)

    def _unmasked(self, tokens: list[int]) -> list[int | None]:
        return [None if token == self.mask_id else token for token in tokens]

    def _pieces(self, tokens: Iterable[int | None]) -> Line:
        new = sorted({token for token in tokens if token is not None} - self._written)
        self._written.update(new)
        return {"pieces": {str(token): piece(self.tokenizer, token) for token in new}}


def piece(tokenizer: "Tokenizer", token: int) -> str:
    """The text that a token adds behind another one: what a second copy of it adds to the first.

    Decoded alone it could lose the space before a word, or show the mark of a word's continuation.
    """
    return tokenizer.decode([token, token])[len(tokenizer.decode([token])) :] or f"<{token}>"


def trace_line(indices: range, state: "State", info: "Info") -> Line:
    """What a step did to each sequence of its batch. Nothing is computed here that the step did not compute.

    Positions count from `start`, which is 0 unless the text is longer than the model.
    """
    assert state.denoiser_evaluations is not None and state.energy_evaluations is not None
    revealed: list[list[list[int]]] = [[] for _ in indices]
    for row, position in info.is_revealed.nonzero().tolist():
        revealed[row].append([position, int(state.x[row, position])])
    line: dict[str, Any] = {
        "step": state.step,
        "start": state.start,
        "t": info.t.tolist(),
        "s": info.s.tolist(),
        "indices": list(indices),
        "revealed": revealed,
        "denoiser_evaluations": state.denoiser_evaluations.tolist(),
        "energy_evaluations": state.energy_evaluations.tolist(),
    }
    if info.is_remasked is not None:
        line["remasked"] = [row.nonzero()[:, 0].tolist() for row in info.is_remasked]
    return line if info.choice is None else line | {"choice": _choice(indices, info)}


def _choice(indices: range, info: "Info") -> Line:
    choice = info.choice
    assert choice is not None
    log_z = {} if choice.log_z is None else {"log_z": choice.log_z.tolist()}
    ends = [choice.energies.shape[1]] * len(choice.rows)
    if choice.num_scored is not None:  # those that the energy saw come first
        ends = [int(row.nonzero()[-1]) + 1 for row in choice.energies.isfinite()]
    columns = {"candidates": choice.x0, "energies": choice.energies, "weights": choice.weights}
    return log_z | {
        "indices": [indices[row] for row in choice.rows.tolist()],
        **{
            name: [plain(row[:end].tolist()) for row, end in zip(rows, ends, strict=True)]
            for name, rows in columns.items()
        },
        "effective_sample_size": choice.effective_sample_size.tolist(),
        "energy_ess": plain(choice.energy_ess.tolist()),
        "chosen": choice.chosen.tolist(),
    }
