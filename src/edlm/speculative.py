"""Exact autoregressive sampling with diffusion drafts: the denoiser proposes a block, the causal model keeps it or not.

Legend: B batch, L positions, V vocabulary, g drafted tokens.

A draft d ~ q_j of position j is kept with probability min(1, p_j(d) / q_j(d)). The first that is not is drawn again
from max(p_j - q_j, 0), normalised, and the round ends; if all are kept, the causal model's next token comes for free.
The text has the causal model's law exactly, whatever the drafts (Leviathan et al. 2023, Chen et al. 2023): they only
decide how many tokens one causal pass yields.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from edlm.causal_sampler import prefix_length
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import DenoiserLike
from edlm.models.transformer import Cache
from edlm.randomness import draw, rand
from edlm.sampler import Info, State, count, tempered


@dataclass(frozen=True)
class Drafts:
    """Who drafts, and how far ahead."""

    denoiser: DenoiserLike
    num: int = 8
    """g: tokens drafted in a round."""

    def __post_init__(self) -> None:
        if self.num < 1:
            raise UserError(f"drafted tokens must be at least 1, got {self.num}")


@torch.no_grad()
def trajectory(
    state: State, model: Autoregressive, drafts: Drafts, *, temperature: float = 1.0
) -> Iterator[tuple[State, Info]]:
    """The states after each round, one sequence after another: each has a cache of its own length.

    `denoiser_evaluations` counts the drafter's passes and `energy_evaluations` those of the causal model.
    """
    first = prefix_length(state.x, model.start_id)
    for row in range(len(state.x)):
        known, cache = first, Cache()
        unread = torch.cat([state.x.new_tensor([model.start_id]), state.x[row, :first]])
        while known < state.x.shape[1]:
            one = replace(state, x=state.x[row : row + 1], generators=[state.generators[row]])
            tokens = _round(one, model, drafts, known, unread, cache, temperature)
            state, info = _extend(state, row, known, tokens)
            yield state, info
            known += len(tokens)
            cache.forget(known)  # the start symbol and all known tokens but the last
            unread = tokens[-1:]


def _round(
    one: State, model: Autoregressive, drafts: Drafts, known: int, unread: Tensor, cache: Cache, temperature: float
) -> Tensor:
    """The tokens that one draft and one causal pass add to a sequence: at least one, at most g + 1."""
    L, device = one.x.shape[1], one.x.device
    g = min(drafts.num, L - known)
    log_q = tempered(_draft_log_probs(drafts.denoiser, one.x, known, g), temperature)  # (g, V)
    uniform = rand((1, 2 * g + 1), one.generators, device=device)[0]
    draft = draw(log_q, uniform[:g])
    is_last = known + g == L  # then nothing follows the draft, and its last token need not be read
    read = torch.cat([unread, draft[: g - is_last]]).unsqueeze(0)
    log_p = tempered(model.following_log_probs(read, cache, g + 1 - is_last)[0], temperature)  # (g or g + 1, V)
    log_ratio = (log_p[:g] - log_q).gather(-1, draft.unsqueeze(-1)).squeeze(-1)  # (g,)
    is_kept = uniform[g : 2 * g] < log_ratio.double().exp()
    num_kept = int(is_kept.long().cumprod(0).sum())
    if known + num_kept == L:
        return draft
    law = log_p[num_kept].double()
    if num_kept < g:
        law = (law.exp() - log_q[num_kept].double().exp()).clamp(min=0).log()
    return torch.cat([draft[:num_kept], draw(law.unsqueeze(0), uniform[-1:])])


def _draft_log_probs(denoiser: DenoiserLike, x: Tensor, known: int, g: int) -> Tensor:
    """The denoiser's log-probabilities (g, V) of the tokens behind the first `known` of `x` (1, L), all else masked."""
    where = torch.zeros_like(x, dtype=torch.bool)
    where[:, known : known + g] = True
    share = x.new_full((1,), 1 - known / x.shape[1], dtype=torch.float64)
    return denoiser(x, denoiser.schedule.time(1 - share), where)


def _extend(state: State, row: int, known: int, tokens: Tensor) -> tuple[State, Info]:
    L = state.x.shape[1]
    x, is_revealed = state.x.clone(), torch.zeros_like(state.x, dtype=torch.bool)
    x[row, known : known + len(tokens)] = tokens
    is_revealed[row, known : known + len(tokens)] = True
    once = torch.zeros(len(x), dtype=torch.long)
    once[row] = 1
    t, s = (torch.full((len(x),), 1 - n / L, dtype=torch.float64) for n in (known, known + len(tokens)))
    return count(state, x, once, once), Info(t, s, is_revealed)


def sample(state: State, model: Autoregressive, drafts: Drafts, *, temperature: float = 1.0) -> State:
    """The state at the end of `trajectory`."""
    *_, (state, _) = trajectory(state, model, drafts, temperature=temperature)
    return state
