"""The command line. Each command is a function in `edlm.commands` that imports what is heavy only when it runs."""

import os
import sys
from typing import Any

import yaml
from cyclopts import App
from cyclopts.config import Dict
from cyclopts.exceptions import CycloptsError

from edlm._version import __version__
from edlm.commands import (
    bench,
    convert,
    data,
    demo,
    evaluate,
    export,
    info,
    lm_eval,
    push,
    reproduce,
    sample,
    score,
    serve,
    show,
    train,
)
from edlm.errors import UserError


def complete(app: App, commands: tuple[str, ...], arguments: Any) -> None:
    """Add the recipe to what was typed, and check both."""
    read_recipe(app, commands, arguments)
    refuse_fractions(arguments)


def refuse_fractions(arguments: Any) -> None:
    """Refuse 3.5 for a whole number, which would be rounded without a word."""
    for argument in arguments:
        for token in argument.tokens if argument.hint in (int, int | None) else ():
            if "." in str(token.value):
                where = "" if token.source == "cli" else f" of {token.source}"
                raise CycloptsError(msg=f"{token.keyword or argument.name}{where} must be whole, got {token.value}")


def read_recipe(app: App, commands: tuple[str, ...], arguments: Any) -> None:
    """Fill the settings that were not typed from the YAML file given with --config."""
    for argument in arguments:
        if argument.name == "--config" and argument.tokens:
            path = argument.tokens[0].value
            settings = load_yaml(path)
            for command in reversed(commands):
                settings = {command: settings}
            Dict(settings, source=path)(app, commands, arguments)


NAMES_OF_MODELS = ("denoiser", "init")
"""Settings of the recipe of an energy that stand in no section."""


def load_yaml(path: str) -> dict[str, Any]:
    """A recipe, or the run.yaml that a run leaves behind."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            settings = yaml.safe_load(file) or {}
    except OSError as error:
        raise CycloptsError(msg=f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CycloptsError(msg=f"--config {path} is not valid YAML: {error}") from error
    if not isinstance(settings, dict):
        raise CycloptsError(msg=f"--config {path} must hold sections of settings, got {type(settings).__name__}")
    for name in ("edlm_version", "record", "history"):  # what happened, not what was asked for
        settings.pop(name, None)
    for name, values in settings.items():
        if not isinstance(values, dict | None) and not (name in NAMES_OF_MODELS and isinstance(values, str)):
            raise CycloptsError(msg=f"--config {path}: {name} must be a section of settings, got {values!r}")
    return {name: values for name, values in settings.items() if values}


app = App(
    name="edlm",
    version=__version__,
    help="Energy-based diffusion language models: train them, sample from them, score text with them.",
    config=complete,
)
app.command(train.app, name="train")
app.command(sample.sample)
app.command(sample.infill)
app.command(show.show)
app.command(demo.demo)
app.command(serve.serve)
app.command(score.score)
app.command(evaluate.app, name="evaluate")
app.command(lm_eval.lm_eval)
app.command(data.app, name="data")
app.command(export.export)
app.command(push.push)
app.command(convert.convert)
app.command(info.info)
app.command(bench.app, name="bench")
app.command(reproduce.reproduce)


def main() -> None:
    """Run the command; what the user can mend is one line on stderr and exit code 2."""
    try:
        app(sys.argv[1:])
    except UserError as error:
        fail(str(error), 2)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
    except KeyboardInterrupt:
        fail("interrupted", 130)


def fail(message: str, code: int) -> None:
    if os.environ.get("EDLM_TRACEBACK"):
        raise
    print(f"edlm: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
