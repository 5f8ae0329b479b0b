"""What a model was trained on, as the run that made it wrote down."""

from pathlib import Path

import yaml

from edlm.config import from_dict
from edlm.data.config import DataConfig


def trained_on(folder: Path) -> DataConfig | None:
    """The data section of the run.yaml beside a model, or None if there is none."""
    path = folder / "run.yaml"
    if not path.exists():
        return None
    data = yaml.safe_load(path.read_text(encoding="utf-8")).get("data")
    return None if data is None else from_dict(DataConfig, data, where=str(path))
