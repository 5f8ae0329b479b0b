"""The paper's tables and what its text says about its figures, as data: Xu et al., "Energy-Based Diffusion Language
Models for Text Generation" (arXiv 2410.21357).

Always shown as the paper's. Its EDLM likelihoods come from a formula that is no bound for a joint denoiser, and its
samples from draws in float32, which act like a lower temperature: quote them, and compare only numbers of one protocol.
"""

from dataclasses import dataclass

SOURCE = "Xu et al., Energy-Based Diffusion Language Models for Text Generation, arXiv 2410.21357"
REMARK = (
    "The paper's figures: its EDLM likelihoods come from its formula, which is not a bound, its samples from float32 "
    "draws, which lower perplexity and entropy alike; all are of larger models, trained for longer"
)


@dataclass(frozen=True)
class BitsPerCharacter:
    """One row of table 1."""

    group: str
    method: str
    bits: float
    is_bound: bool = True


TEXT8 = (
    BitsPerCharacter("autoregressive", "Transformer AR", 1.23, is_bound=False),
    BitsPerCharacter("autoregressive", "IAF/SCF", 1.88, is_bound=False),
    BitsPerCharacter("autoregressive", "AR Argmax Flow", 1.39, is_bound=False),
    BitsPerCharacter("autoregressive", "AR Discrete Flow", 1.23, is_bound=False),
    BitsPerCharacter("any-order autoregressive", "ARDM", 1.43),
    BitsPerCharacter("any-order autoregressive", "MAC", 1.40),
    BitsPerCharacter("continuous diffusion", "Plaid", 1.48),
    BitsPerCharacter("continuous diffusion", "BFN", 1.41),
    BitsPerCharacter("discrete diffusion", "Multinomial Diffusion", 1.72),
    BitsPerCharacter("discrete diffusion", "D3PM Uniform", 1.61),
    BitsPerCharacter("discrete diffusion", "D3PM Absorb", 1.45),
    BitsPerCharacter("discrete diffusion", "SEDD Absorb", 1.41),
    BitsPerCharacter("discrete diffusion", "MDLM", 1.40),
    BitsPerCharacter("discrete diffusion", "MD4", 1.37),
    BitsPerCharacter("discrete diffusion", "EDLM", 1.24),
)
"""Table 1: bits per character of text8's test split, blocks of 256. The paper writes "at most" before the bounds, also
before EDLM's value, which is none."""

OPENWEBTEXT = "openwebtext"
_SETS = (OPENWEBTEXT, "ptb", "wikitext", "lm1b", "lambada", "ag_news", "pubmed", "arxiv")
PERPLEXITY: dict[str, dict[str, float]] = {
    method: dict(zip(_SETS, values, strict=True))
    for method, values in {
        "AR": (17.56, 82.05, 25.75, 51.25, 51.28, 52.09, 49.01, 41.73),
        "SEDD": (24.56, 100.09, 34.28, 68.20, 49.86, 62.09, 44.53, 38.48),
        "MDLM": (23.83, 95.26, 32.83, 67.01, 47.52, 61.15, 41.89, 37.37),
        "EDLM-NCE": (21.52, 93.21, 30.77, 63.19, 46.92, 60.02, 41.80, 36.63),
        "EDLM-AR": (20.49, 89.67, 29.24, 60.80, 49.70, 57.27, 45.90, 38.38),
        "EDLM-coAR": (17.58, 89.73, 28.31, 60.23, 50.04, 57.94, 46.31, 39.02),
    }.items()
}
"""Table 2: perplexity on OpenWebText and on seven other sets, GPT-2's tokens, blocks of 1024, models trained on
OpenWebText. The sets are named as in `edlm.data.zeroshot`."""


@dataclass(frozen=True)
class Generation:
    """One method at one number of steps in table 3: perplexity by each oracle, and entropy in nats."""

    method: str
    steps: str
    llama2: float
    llama3: float
    gpt2: float
    entropy: float


def _at_steps(method: str, **columns: tuple[float, float, float, float]) -> tuple[Generation, ...]:
    steps = ("256", "512", "1024", "2048")
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return tuple(Generation(method, T, **row) for T, row in zip(steps, rows, strict=True))


GENERATION = (
    Generation("data", "–", 7.0, 9.4, 14.7, 7.7),
    Generation("AR", "1024", 22.9, 40.3, 35.7, 8.1),
    Generation("SUNDAE", "200", 29.5, 45.1, 34.7, 5.2),
    Generation("Ssd-LM", "> 10000", 73.3, 203.1, 99.2, 4.8),
    Generation("D3PM Absorb", "1024", 692.3, 754.9, 842.3, 7.6),
    *_at_steps(
        "SEDD", llama2=(36.1, 32.5, 27.3, 23.1), llama3=(65.0, 54.3, 43.7, 36.2),
        gpt2=(64.8, 52.2, 41.5, 33.7), entropy=(7.8, 7.7, 7.6, 7.5),
    ),
    *_at_steps(
        "MDLM", llama2=(37.2, 30.6, 27.6, 23.9), llama3=(66.8, 52.6, 44.6, 37.6),
        gpt2=(66.8, 52.4, 42.6, 34.9), entropy=(7.9, 7.8, 7.6, 7.5),
    ),
    *_at_steps(
        "EDLM-AR", llama2=(34.7, 26.8, 19.6, 14.6), llama3=(62.2, 44.4, 28.8, 20.8),
        gpt2=(62.1, 42.0, 25.5, 17.9), entropy=(7.9, 7.6, 7.2, 6.9),
    ),
    *_at_steps(
        "EDLM-NCE", llama2=(35.7, 26.3, 19.0, 14.6), llama3=(62.9, 44.1, 28.8, 20.7),
        gpt2=(61.7, 42.5, 25.5, 17.7), entropy=(7.9, 7.6, 7.3, 6.9),
    ),
)  # fmt: skip
"""Table 3: 2048 samples of 1024 tokens, w = 1. Which GPT-2 is not said."""


@dataclass(frozen=True)
class Speedup:
    """What the paper's text reads off its figure of quality against time, for one sample of 1024 tokens."""

    perplexity: float = 35.7
    """GPT-2's, of the paper's autoregressive samples: where the curves are compared."""
    edlm_seconds: float = 13.0
    mdlm_seconds: float = 17.0
    ratio: float = 1.3
    candidates: int = 2
    window: float = 0.2
    steps: tuple[int, ...] = (512, 768, 1024)


SPEEDUP = Speedup()

ABLATION_STEPS = 1024
ABLATION: dict[float, float] = {0.0: 42.6, 0.2: 30.0}
"""Window to GPT-2's perplexity at 1024 steps, as far as the text says: MDLM, and "about 30" for every k up to 16."""
