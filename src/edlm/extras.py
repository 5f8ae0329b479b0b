"""A missing extra is one clear line, not an ImportError."""

from importlib.util import find_spec

from edlm.errors import UserError


def require_extra(extra: str, *modules: str) -> None:
    """Refuse, naming the extra to install, if one of its modules is absent."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UserError(f"this needs {', '.join(missing)}: pip install 'energy-diffusion-lm[{extra}]'")
