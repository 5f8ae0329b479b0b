"""Which kind of importance sampling the settings of sampling or of a bound call for."""

from edlm.adaptive import Adaptive
from edlm.energy import Energy
from edlm.importance import ImportanceSampling, make_importance
from edlm.lookahead import LookAhead
from edlm.smc import SequentialMonteCarlo


def make_correction(
    energy: Energy, candidates: int, window: float = 1.0, temperature: float = 1.0, completions: int = 0, *,
    smc: int = 0, ess: float = 0.0, budget: int = 0, ahead: LookAhead | None = None,
) -> ImportanceSampling:  # fmt: skip
    """Algorithm 1, or reveal-first where there are completions: both with k candidates or, with a target `ess`, with as
    many as it takes. Sequential Monte Carlo where there is a block length; with `ahead` its particles look ahead."""
    if ess:
        return Adaptive(energy, candidates, window, temperature, completions, ess, budget)
    if smc:
        return SequentialMonteCarlo(energy, candidates, window, temperature, block=smc, ahead=ahead)
    return make_importance(energy, candidates, window, temperature, completions)
