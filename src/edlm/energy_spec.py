"""An energy from its name on the command line: ar:NAME, coar:NAME, nce:NAME, step:NAME, or a weighted sum of them."""

from collections.abc import Sequence

from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, Energy, WeightedSum, learned_energy
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive
from edlm.models.causal_files import load_causal
from edlm.models.causal_lm import CausalLM
from edlm.models.energy_network import EnergyNetwork
from edlm.models.masked_lm import AnyDenoiser
from edlm.models.naming import parse_name
from edlm.models.placement import follow
from edlm.oracle import CausalOracle, check_readable
from edlm.retokenised import RetokenisedEnergy
from edlm.tokenization import Tokenizer

Tokens = Autoregressive | CausalLM | EnergyNetwork

LABELS = {"ar": "AR", "coar": "coAR", "nce": "NCE", "step": "step"}
NETWORKS = {"nce": "clean", "step": "step"}
GRAMMAR = "ar:NAME, coar:NAME, nce:NAME or step:NAME, or a sum such as 'ar:NAME + 0.5*nce:NAME'"


def load_energy(spec: str, denoiser: AnyDenoiser) -> Energy:
    """The energy that `spec` names, refused if it was trained on other tokens.

    It computes where and how the denoiser does, unless its name says in which precision.
    """
    terms = [_load_term(term, denoiser) for term in spec.split(" + ")]
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1 else WeightedSum(terms)


def energy_label(spec: str) -> str:
    """A method's name in the paper's words: EDLM-AR for ar:NAME, EDLM-AR+0.5*NCE for a sum."""
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
    """Weight, kind and name of '0.5*nce:NAME'."""
    weight, star, rest = term.strip().rpartition("*")
    kind, _, name = rest.partition(":")
    try:
        factor = float(weight) if star else 1.0
    except ValueError:
        raise UserError(f"energy {term!r}: the weight before * must be a number; write {GRAMMAR}") from None
    if kind not in LABELS or not name:
        raise UserError(f"unknown energy {term!r}; write {GRAMMAR}")
    return factor, kind, name


def _load_term(term: str, denoiser: AnyDenoiser) -> tuple[float, Energy]:
    factor, kind, name = _parse_term(term)
    if kind in NETWORKS:
        network = follow(EnergyNetwork.from_pretrained(name), denoiser)
        check_target(kind, network, name)
        check_same_tokens(denoiser, network, name)
        return factor, learned_energy(network)
    causal = follow(load_causal(name), denoiser, own_precision=bool(parse_name(name).precision))
    return factor, _causal_energy(kind, causal, denoiser, name)


def check_target(kind: str, network: EnergyNetwork, name: str) -> None:
    """nce is an energy of whole texts, step one of single steps; neither can be used as the other."""
    if network.config.target == NETWORKS[kind]:
        return
    if kind == "nce":
        raise UserError(f"{name} judges what one step reveals, not whole texts; write step:{name}")
    remedy = f"write nce:{name}, or train one with edlm train energy --nce.target step"
    raise UserError(f"{name} judges whole texts, not what one step reveals; {remedy}")


def _causal_energy(kind: str, model: Autoregressive | CausalLM, denoiser: AnyDenoiser, name: str) -> Energy:
    difference = token_difference(denoiser, model, name)
    if difference and denoiser.tokenizer is not None and model.tokenizer is not None:
        return _retokenised(kind, model, denoiser.tokenizer, name, difference)
    check_same_tokens(denoiser, model, name)
    if isinstance(model, CausalLM):
        model.narrow(denoiser.vocab_size, denoiser.never)
    covers = isinstance(model, CausalLM) or not denoiser.never
    return AutoregressiveEnergy(model, covers) if kind == "ar" else CarryOverEnergy(model, covers)


def _retokenised(
    kind: str, model: Autoregressive | CausalLM, tokenizer: Tokenizer, name: str, difference: str
) -> RetokenisedEnergy:
    """The energy of a model that reads the candidates' text; only the AR form has a meaning then."""
    if kind == "coar":
        remedy = f"masked positions have no counterpart in its tokens, so write ar:{name}"
        raise UserError(f"{difference}; {remedy}, which reads the text, or use a model with the denoiser's tokenizer")
    oracle = CausalOracle(model, name)
    check_readable(oracle, tokenizer)
    return RetokenisedEnergy(oracle, tokenizer)


def token_difference(denoiser: AnyDenoiser, other: Tokens, name: str) -> str:
    """In which way an id may mean one thing to the denoiser and another to the second model; empty if in none.

    The second model may have more tokens, behind those of the denoiser: they are left out of its law.
    """
    ours, theirs, size = denoiser.tokenizer, other.tokenizer, denoiser.vocab_size
    if other.vocab_size < size or (other.vocab_size > size and not isinstance(other, CausalLM)):
        return f"the denoiser has {size} tokens but {name} has {other.vocab_size}"
    if ours is None or theirs is None or ours.fingerprint == theirs.fingerprint:
        return ""
    if ours.tokens()[:size] != theirs.tokens()[:size]:
        return f"{name} has another tokenizer than the denoiser"
    return ""


def check_same_tokens(denoiser: AnyDenoiser, other: Tokens, name: str) -> None:
    """Token ids must mean the same to both models, and the sequences must fit into the second one."""
    if difference := token_difference(denoiser, other, name):
        raise UserError(f"{difference}; use an energy that was trained with the denoiser's tokenizer")
    if other.length < denoiser.length:
        raise UserError(
            f"{name} reads {other.length} tokens, but the denoiser writes {denoiser.length}; use a longer one"
        )
