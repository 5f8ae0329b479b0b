"""Which kind of importance sampling the settings of sampling or of a bound call for."""

from edlm.energy import Energy
from edlm.importance import ImportanceSampling, make_importance
from edlm.smc import SequentialMonteCarlo


def make_correction(
    energy: Energy, candidates: int, window: float = 1.0, temperature: float = 1.0, completions: int = 0, smc: int = 0
) -> ImportanceSampling:
    """Algorithm 1; reveal-first where there are completions; sequential Monte Carlo where there is a block length."""
    if smc:
        return SequentialMonteCarlo(energy, candidates, window, temperature, block=smc)
    return make_importance(energy, candidates, window, temperature, completions)
