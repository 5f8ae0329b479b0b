"""A trajectory as JSON lines: one line per step of a batch, for plots, pages and papers."""

from typing import Any

from edlm.sampler import Info, State


def trace_line(indices: range, state: State, info: Info) -> dict[str, Any]:
    """What a step did to each sequence of its batch. Nothing is computed here that the step did not compute."""
    assert state.denoiser_evaluations is not None and state.energy_evaluations is not None
    revealed: list[list[list[int]]] = [[] for _ in indices]
    for row, position in info.is_revealed.nonzero().tolist():
        revealed[row].append([position, int(state.x[row, position])])
    line = {
        "step": state.step,
        "t": info.t.tolist(),
        "s": info.s.tolist(),
        "indices": list(indices),
        "revealed": revealed,
        "denoiser_evaluations": state.denoiser_evaluations.tolist(),
        "energy_evaluations": state.energy_evaluations.tolist(),
    }
    return line if info.choice is None else line | {"choice": _choice(indices, info)}


def _choice(indices: range, info: Info) -> dict[str, Any]:
    choice = info.choice
    assert choice is not None
    return {
        "indices": [indices[row] for row in choice.rows.tolist()],
        "candidates": choice.x0.tolist(),
        "energies": choice.energies.tolist(),
        "weights": choice.weights.tolist(),
        "effective_sample_size": choice.effective_sample_size.tolist(),
        "energy_ess": choice.energy_ess.tolist(),
        "chosen": choice.chosen.tolist(),
    }
