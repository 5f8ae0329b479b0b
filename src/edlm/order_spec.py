"""An order of revealing by its name, such as remask-cap:0.1: read here without loading torch."""

from edlm.errors import UserError

KINDS = {"uniform": None, "confidence": None, "entropy": 0.5, "remask-cap": 0.1, "remask-rescale": 0.5}
"""The number that each takes where none is given; None for those that take none."""
GRAMMAR = "uniform, confidence, entropy:NATS, remask-cap:SHARE or remask-rescale:SHARE"
DETERMINISTIC = ("confidence", "entropy")
"""What these reveal follows from what is known: a text can be written in one way only."""


def parse_order(spec: str) -> tuple[str, float]:
    """Kind and number of 'entropy:0.5'; refuses what is not one."""
    kind, colon, text = spec.partition(":")
    if kind not in KINDS or (colon and KINDS[kind] is None):
        raise UserError(f"unknown order {spec!r}; write {GRAMMAR}")
    try:
        value = float(text) if colon else KINDS[kind] or 0.0
    except ValueError:
        raise UserError(f"order {spec!r}: what follows {kind}: must be a number; write {GRAMMAR}") from None
    if kind == "entropy" and not 0 <= value < float("inf"):
        raise UserError(f"order {spec!r}: the bound on the entropy must be at least 0 nats")
    if kind.startswith("remask") and not 0 <= value <= 1:
        raise UserError(f"order {spec!r}: the share of tokens that are masked again must be between 0 and 1")
    return kind, value
