"""The trained models that come with the package: small, complete folders that are found by name."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "weights"


def builtin_names() -> list[str]:
    """Names of the built-in models."""
    return sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def builtin_folder(name: str) -> Path | None:
    """The folder of a built-in model, or None if there is none of that name."""
    return FOLDER / name if name in builtin_names() else None
