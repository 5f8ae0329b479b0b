"""An energy from its name on the command line: ar:DIR, coar:DIR, nce:DIR, or a weighted sum of them."""

from collections.abc import Sequence

from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, Energy, LearnedEnergy, WeightedSum
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.models.load import load_as

LABELS = {"ar": "AR", "coar": "coAR", "nce": "NCE"}
GRAMMAR = "ar:DIR, coar:DIR or nce:DIR, or a sum such as 'ar:DIR + 0.5*nce:DIR'"


def load_energy(spec: str, denoiser: Denoiser) -> Energy:
    """The energy that `spec` names, on the denoiser's device, refused if it was trained on other tokens."""
    terms = [_load_term(term, denoiser) for term in spec.split(" + ")]
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1 else WeightedSum(terms)


def energy_label(spec: str) -> str:
    """A method's name in the paper's words: EDLM-AR for ar:DIR, EDLM-AR+0.5*NCE for a sum."""
    parts = []
    for term in spec.split(" + "):
        factor, kind, _ = _parse_term(term)
        parts.append(("" if factor == 1 else f"{factor:g}*") + LABELS[kind])
    return f"EDLM-{'+'.join(parts)}"


def distinct_labels(specs: Sequence[str]) -> list[str]:
    """A label for each energy; those that would share one are told apart by what they were named."""
    labels = [energy_label(spec) for spec in specs]
    return [f"{a} ({spec})" if labels.count(a) > 1 else a for a, spec in zip(labels, specs, strict=True)]


def _parse_term(term: str) -> tuple[float, str, str]:
    """Weight, kind and name of '0.5*nce:DIR'."""
    weight, star, rest = term.strip().rpartition("*")
    kind, _, name = rest.partition(":")
    try:
        factor = float(weight) if star else 1.0
    except ValueError:
        raise UserError(f"energy {term!r}: the weight before * must be a number; write {GRAMMAR}") from None
    if kind not in LABELS or not name:
        raise UserError(f"unknown energy {term!r}; write {GRAMMAR}")
    return factor, kind, name


def _load_term(term: str, denoiser: Denoiser) -> tuple[float, Energy]:
    factor, kind, name = _parse_term(term)
    device = next(denoiser.parameters()).device
    if kind == "nce":
        network = EnergyNetwork.from_pretrained(name).to(device)
        check_same_tokens(denoiser, network, name)
        return factor, LearnedEnergy(network)
    model = load_as(Autoregressive, name).to(device)
    check_same_tokens(denoiser, model, name)
    return factor, AutoregressiveEnergy(model) if kind == "ar" else CarryOverEnergy(model)


def check_same_tokens(denoiser: Denoiser, other: Autoregressive | EnergyNetwork, name: str) -> None:
    """Token ids must mean the same to both models, and the sequences must fit into the second one."""
    ours, theirs = denoiser.tokenizer, other.tokenizer
    if denoiser.vocab_size != other.vocab_size:
        raise UserError(
            f"the denoiser has {denoiser.vocab_size} tokens but {name} has {other.vocab_size}; "
            "use an energy that was trained with the denoiser's tokenizer"
        )
    if ours is not None and theirs is not None and ours.fingerprint != theirs.fingerprint:
        raise UserError(f"{name} has another tokenizer than the denoiser; use an energy trained with the same one")
    if other.length < denoiser.length:
        raise UserError(
            f"{name} reads {other.length} tokens, but the denoiser writes {denoiser.length}; use a longer one"
        )
