"""How the evaluation harness uses a model: settings only, so that help loads neither it nor torch."""

from dataclasses import dataclass

from edlm.likelihood_config import DEFAULT_STEPS, LikelihoodConfig
from edlm.sample_config import SampleConfig
from edlm.score_config import Effort


@dataclass(frozen=True)
class HarnessConfig:
    """How texts are scored and drawn. One sampler does both: the bound is of the one that writes."""

    steps: int | None = None
    """T: steps of the sampler. By default 64; for the bound of a denoiser without an energy the limit of many steps."""
    candidates: int = 2
    """k: candidates of a step, of which the energy chooses one."""
    window: float = 1.0
    """w: the energy is used while t >= 1 - w."""
    inner: int = 8
    """R: draws averaged inside the logarithm of a step. More cost more and tighten the bound."""
    num_draws: int = 64
    """Random masks averaged per text. More narrow its standard error; an exact likelihood needs none."""
    temperature: float = 1.0
    """Of texts that are drawn. What a task says of temperature or greedy decoding is not followed."""
    overlap: int | None = None
    """Tokens that the windows of texts longer than the model share; by default half the model's length."""
    seed: int = 0
    """Seeds masks, candidates and texts."""
    batch_size: int = 0
    """Sequences scored at once; 0 takes what fits into memory. Does not change the result."""
    normalise: bool = False
    """Map the text of the tasks to a-z and space first."""

    def __post_init__(self) -> None:
        _ = self.likelihood, self.sampling, self.effort(2)  # each refuses the settings that it cannot work with

    @property
    def likelihood(self) -> LikelihoodConfig:
        return LikelihoodConfig(
            steps=self.steps, candidates=self.candidates, window=self.window, inner=self.inner, seed=self.seed
        )

    @property
    def sampling(self) -> SampleConfig:
        return SampleConfig(
            steps=self.steps or DEFAULT_STEPS,
            candidates=self.candidates,
            window=self.window,
            temperature=self.temperature,
            overlap=self.overlap,
            seed=self.seed,
        )

    def effort(self, length: int) -> Effort:
        """For a model that reads `length` tokens."""
        return Effort(self.num_draws, length // 2 if self.overlap is None else self.overlap, self.batch_size)
