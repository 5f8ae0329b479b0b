"""What commands ask for before they start."""

from edlm.extras import require_extra

__all__ = ["require_extra"]
