# Two commands do all the set-up: `make quickstart` and `make test`. Both need Python >= 3.11, git and make only.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUNS   ?= runs/quickstart

.PHONY: install quickstart train weights images test test-fast lint format clean

# The stamp is newer than what it depends on once everything is installed, so a second run skips the installation.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "edlm needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/installed

quickstart: install
	$(BIN)/python examples/quickstart.py --out $(RUNS)/samples

train: install
	$(BIN)/python examples/train.py --out $(RUNS)

# make weights TRAINED=FOLDER_OF_THE_RUNS DATA=text8:PATH: replaces the built-in weights and the table that lists them.
weights: install
	$(BIN)/python examples/export_weights.py $(TRAINED) --data $(DATA)

# The screenshot and the GIF of the README, from the built-in weights; needs Chromium.
images: install
	$(BIN)/python examples/make_images.py

test: install lint
	$(BIN)/python -m pytest

test-fast: install lint
	$(BIN)/python -m pytest -m 'not slow'

lint: install
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix src tests examples
	$(BIN)/ruff format src tests examples

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache
