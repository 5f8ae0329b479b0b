import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(min(2, os.cpu_count() or 1))


@pytest.fixture(scope="session")
def shared():
    """Folder of real data for development, if this machine has it."""
    folder = Path(os.environ.get("EDLM_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no development data at {folder}; set EDLM_SHARED")
    return folder
