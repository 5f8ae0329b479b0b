import os
import random
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from runs import TINY, WORDS, train

torch.set_num_threads(1)  # the networks here are so small that threads would only wait for each other


@pytest.fixture(scope="session")
def shared():
    """Folder of real data for development, if this machine has it."""
    folder = Path(os.environ.get("EDLM_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no development data at {folder}; set EDLM_SHARED")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    text = " ".join(random.Random(0).choices(WORDS, k=8000))
    (folder / "train.txt").write_text(text)
    return {
        "data.source": folder / "train.txt",
        "data.validation": "5%",
        "data.test": "5%",
        "data.cache": folder / "cache",
    }


@pytest.fixture(scope="session")
def finished(corpus, tmp_path_factory):
    """An uninterrupted run with dropout, accumulation, EMA and a cosine schedule."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    settings = TINY | corpus | {"run.micro-batch-size": 4, "optim.schedule": "cosine", "run.steps": 40}
    train("denoiser", out, settings)
    return out, settings
