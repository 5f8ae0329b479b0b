"""From per-sequence values to a result that can be trusted: mean, standard error, and the protocol behind them.

Legend: B batch, C columns.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from edlm.adaptive import Adaptive
from edlm.correction import make_correction
from edlm.data import Corpus
from edlm.data.blocks import Blocks
from edlm.distributed import World
from edlm.energy import CarryOverEnergy, Energy, judges_steps
from edlm.errors import UserError
from edlm.importance import ImportanceSampling, RevealFirst
from edlm.journal import Journal
from edlm.likelihood import (
    Ideal,
    Law,
    autoregressive_nll,
    certified_nll,
    denoiser_nelbo,
    paper_nll,
    trajectory_nll,
)
from edlm.likelihood_config import LikelihoodConfig
from edlm.lookahead import look_ahead
from edlm.models.autoregressive import Autoregressive
from edlm.models.masked_lm import AnyDenoiser
from edlm.order import Confidence, EntropyBound, Remasking, make_order
from edlm.order_spec import DETERMINISTIC, parse_order
from edlm.ordered_likelihood import ordered_nll
from edlm.smc import SequentialMonteCarlo

MOST_BLOCKS, MOST_LOGITS = 32, 1 << 27
NOT_A_BOUND = "not a bound: the paper's formula has the joint of all masked tokens where a step reveals only some"


@dataclass(frozen=True)
class Score:
    """How sequences are scored, and what the number then is."""

    function: Callable[..., Tensor]
    """Tokens (B, L) and the index of each sequence in its split, to nats (B,) or several columns of them (B, C). Where
    tokens are given, a third argument (B, L) marks them."""
    quantity: str
    uses: tuple[str, ...] = ()
    """The settings that the value depends on."""
    remark: str = ""
    columns: tuple[str, ...] = ("value",)
    """What the columns are; the first is the result."""


@dataclass(frozen=True)
class Likelihood:
    """Bits per character or token with standard error over sequences, and everything needed to measure it again."""

    bits: float
    standard_error: float
    nats: float
    perplexity: float
    unit: str
    quantity: str
    """What `bits` is: the exact value, or an upper bound of which generator."""
    protocol: str
    remark: str
    gain: float | None
    """Bits below the plain denoiser's bound, from the same draws; negative where the bound is not informative."""
    gain_standard_error: float | None
    tightening: float | None
    """Bits below the bound that the same trajectories give one by one."""
    tightening_standard_error: float | None
    bits_lower: float | None
    """With the lower estimate of log Z in place of the upper one, where the paper's formula needs one."""
    standard_error_lower: float | None
    num_blocks: int
    num_tokens: int
    block_length: int
    steps: int | None
    """T; None in the limit of many steps, and where there are none."""
    candidates: int | None
    completions: int | None
    """Completions that the candidates share, of a reveal-first sampler."""
    window: float | None
    inner: int | None
    partition_samples: int | None
    trajectories: int | None
    seed: int | None
    precision: str
    smc: int | None = None
    """Positions of a block of sequential Monte Carlo."""
    lookahead: float | None = None
    """How strongly its particles look ahead."""
    ess: float | None = None
    """Effective number of candidates at which an adaptive step stops."""
    order: str | None = None
    """What a step reveals, where that is not the uniform order."""
    energy: str | None = None
    data: dict[str, object] | None = None


def make_score(model: AnyDenoiser | Autoregressive, config: LikelihoodConfig, energy: Energy | None = None) -> Score:
    """The estimator that a model, perhaps with an energy, and a protocol call for."""
    if isinstance(model, Autoregressive):
        return Score(lambda x0, index, given=None: autoregressive_nll(model, x0, is_given=given), "exact NLL")
    if config.protocol == "paper" and energy is not None:
        return _paper_score(model, config, energy)
    law = make_law(config, energy, model) if energy is not None else None
    steps = config.num_steps(with_energy=law is not None)
    seed, inner, order = config.seed, config.inner, make_order(config.order)
    about, uses = _about(config, law, steps)
    if isinstance(order, Confidence | EntropyBound):
        return Score(
            lambda x0, index, given=None: ordered_nll(
                model, law, order, x0, index, seed=seed, steps=steps or 1, inner=inner, is_given=given
            ),
            about,
            uses,
            columns=("value",) if law is None else ("value", "plain"),
        )
    remasking = order if isinstance(order, Remasking) else None
    if config.trajectories:
        assert steps is not None
        J = config.trajectories
        return Score(
            lambda x0, index, given=None: trajectory_nll(
                model, law, x0, index, seed=seed, steps=steps, inner=inner, trajectories=J, is_given=given
            ),
            f"{about}, {J} trajectories",
            (*uses, "trajectories"),
            columns=("value", "alone"),
        )
    if law is None:
        return Score(
            lambda x0, index, given=None: denoiser_nelbo(
                model, x0, index, seed=seed, steps=steps, is_given=given, remasking=remasking
            ),
            about,
            uses,
        )
    return Score(
        lambda x0, index, given=None: certified_nll(
            model, law, x0, index, seed=seed, steps=steps, inner=inner, is_given=given, remasking=remasking
        ),
        about,
        uses,
        columns=("value", "plain"),
    )


def make_law(config: LikelihoodConfig, energy: Energy, model: AnyDenoiser) -> Law:
    """What the steps of the sampler draw from: one of k candidates, or the model itself."""
    if config.candidates is not None:
        return make_correction(
            energy, config.candidates, config.window, completions=config.completions, smc=config.smc, ess=config.ess,
            ahead=look_ahead(model, config.lookahead),
        )  # fmt: skip
    return Ideal(energy, config.window, config.partition_samples)


def _about(config: LikelihoodConfig, law: Law | None, steps: int | None) -> tuple[str, tuple[str, ...]]:
    kind, _ = parse_order(config.order)
    length = "limit of many steps" if steps is None else f"T = {steps}"
    length = f"order {config.order}" + (f", {length}" if kind != "entropy" else "") if kind != "uniform" else length
    ordered: tuple[str, ...] = () if kind == "uniform" else ("order",)
    ordered += ("steps",) if kind != "entropy" else ()
    if law is None and kind in DETERMINISTIC:
        return f"exact NLL of the sampler, {length}", ordered
    if law is None:
        return f"upper bound (NELBO), {'continuous time' if steps is None else length}", (*ordered, "seed")
    uses = (*ordered, "candidates", "window", "inner", "seed")
    if isinstance(law, ImportanceSampling):
        kind, number = "step-energy sampler" if judges_steps(law.energy) else "sampler", f"k = {law.num_candidates}"
        if isinstance(law, RevealFirst | Adaptive) and law.completions:
            kind, uses = f"reveal-first sampler, R = {law.completions}", (*uses, "completions")
        if isinstance(law, SequentialMonteCarlo):
            kind, uses = f"sequential Monte Carlo sampler, blocks of {law.block}", (*uses, "smc")
            if law.ahead is not None:
                kind, uses = f"{kind}, lookahead {law.ahead.strength:g}", (*uses, "lookahead")
        if isinstance(law, Adaptive):
            number, uses = f"k up to {law.num_candidates} until the ESS is {law.target:g}", (*uses, "ess")
        return f"upper bound of the {kind}, {length}, {number}, w = {law.window:g}", uses
    return f"upper bound of the ideal sampler, {length}, w = {law.window:g}", (*uses, "partition_samples")


def _paper_score(model: AnyDenoiser, config: LikelihoodConfig, energy: Energy) -> Score:
    steps = config.num_steps(with_energy=True)
    settings = {"seed": config.seed, "steps": steps, "partition_samples": config.partition_samples}
    quantity = f"paper's formula, {'continuous time' if steps is None else f'T = {steps}'}"
    exact = isinstance(energy, CarryOverEnergy) and energy.covers
    return Score(
        lambda x0, index, given=None: paper_nll(model, energy, x0, index, is_given=given, **settings),  # type: ignore[arg-type]
        quantity + (", which is the causal model's own NLL" if exact else ", log Z from above"),
        () if exact else tuple(settings),
        NOT_A_BOUND,
        ("upper", "lower"),
    )


def score_blocks(
    score: Score, blocks: Blocks, index: Sequence[int], *, batch_size: int, device: torch.device | str, progress: bool,
    journal: Journal | None = None, world: World = World(), label: str = "",
) -> np.ndarray:  # fmt: skip
    """Nats of the blocks at `index`, in that order: (n, C) float64. What the journal has is not scored again.

    Batches are the same whatever was done before and by however many processes, so results are too, bit for bit.
    """
    done = world.agree(journal.read() if journal is not None and world.is_first else {})
    batches = [index[start : start + batch_size] for start in range(0, len(index), batch_size)]
    mine = [batch for batch in batches if not all(i in done for i in batch)][world.rank :: world.size]
    with tqdm(total=sum(map(len, mine)), unit="block", disable=not progress, desc=label or "scoring") as bar:
        for batch in mine:
            x0 = torch.from_numpy(blocks.get(np.asarray(batch))).to(device)
            rows = score.function(x0, batch).view(len(batch), -1).tolist()
            require_finite(rows, batch)
            done.update(zip(batch, rows, strict=True))
            if journal is not None:
                journal.append(batch, rows)
            bar.update(len(batch))
    every = {block: row for part in world.gather(done) for block, row in part.items()}
    return np.array([every[i] for i in index])


def require_finite(rows: Sequence[Sequence[float]], batch: Sequence[int], *, what: str = "block") -> None:
    """Refuse a result, the first column, that says nothing, before it is kept."""
    for block, row in zip(batch, rows, strict=True):
        if not math.isfinite(row[0]):
            remedy = "the weights of a model are not usable, or it rules the text out, as a masked model does [UNK]"
            raise UserError(f"{what} {block} has a likelihood of {row[0]}: {remedy}")


def summarise(
    nats: np.ndarray, score: Score, config: LikelihoodConfig, *, length: int, unit: str, precision: str = "float32"
) -> Likelihood:
    """Average per-sequence nats (n, C) into bits per unit. The standard error is over sequences."""
    bits = nats / (length * math.log(2))
    column = dict(zip(score.columns, bits.T, strict=True))
    mean, error = mean_and_error(bits[:, 0])
    gain = mean_and_error(column["plain"] - bits[:, 0]) if "plain" in column else (None, None)
    tightening = mean_and_error(column["alone"] - bits[:, 0]) if "alone" in column else (None, None)
    low = mean_and_error(column["lower"]) if "lower" in column else (None, None)
    steps = config.num_steps(with_energy="candidates" in score.uses)
    settings = asdict(config) | {"steps": steps}
    names = ("order", "steps", "candidates", "completions", "smc", "lookahead", "window", "inner", "partition_samples")
    return Likelihood(
        bits=mean,
        standard_error=error,
        nats=mean * math.log(2),
        perplexity=2**mean if mean < 1000 else math.inf,
        unit=unit,
        quantity=score.quantity,
        protocol=config.protocol,
        remark=score.remark,
        gain=gain[0],
        gain_standard_error=gain[1],
        tightening=tightening[0],
        tightening_standard_error=tightening[1],
        bits_lower=low[0],
        standard_error_lower=low[1],
        num_blocks=len(nats),
        num_tokens=len(nats) * length,
        block_length=length,
        precision=precision,
        **{name: settings[name] if name in score.uses else None for name in (*names, "ess", "trajectories", "seed")},
    )


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean of values (n,) and its standard error, which one value does not have."""
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), error


def choose_blocks(num_blocks: int, max_blocks: int) -> list[int]:
    """Which blocks are scored: all, or `max_blocks` evenly spaced ones, so that no part of the split is favoured."""
    if max_blocks <= 0 or max_blocks >= num_blocks:
        return list(range(num_blocks))
    return [i * num_blocks // max_blocks for i in range(max_blocks)]


def fitting_batch(length: int, vocab_size: int) -> int:
    """How many blocks are scored at once by default: few enough that their logits fit."""
    return max(1, min(MOST_BLOCKS, MOST_LOGITS // (length * vocab_size)))


def evaluate_likelihood(
    model: AnyDenoiser | Autoregressive, corpus: Corpus, split: str, config: LikelihoodConfig = LikelihoodConfig(), *,
    energy: Energy | None = None, max_blocks: int = 0, batch_size: int = 0, progress: bool = False,
    journal: Journal | None = None, world: World = World(), label: str = "",
) -> Likelihood:  # fmt: skip
    """Score a split of a corpus that is tokenised for this model; `batch_size` 0 takes what fits."""
    blocks = corpus[split]
    parameter = next(model.parameters())
    score = make_score(model, config, energy)
    nats = score_blocks(
        score, blocks, choose_blocks(len(blocks), max_blocks),
        batch_size=batch_size or fitting_batch(blocks.length, model.vocab_size), device=parameter.device,
        progress=progress, journal=journal, world=world, label=label,
    )  # fmt: skip
    precision = str(parameter.dtype).removeprefix("torch.")
    result = summarise(nats, score, config, length=blocks.length, unit=corpus.unit, precision=precision)
    return replace(result, data=corpus.describe() | {"split": split})
