"""edlm info"""

from typing import Any


def info(model: str = "", /, *, vocab_size: int = 27, length: int = 256, json: bool = False) -> None:
    """What is installed, how large the presets are, which models are built in; or, given a model, what is in it.

    Parameters
    ----------
    model
        Folder, built-in name or hub name of a model.
    vocab_size
        Number of tokens for which the presets' parameters are counted.
    length
        Length of a sequence for which they are counted.
    json
        Print JSON.
    """
    from edlm.commands.output import print_json, print_table

    report = describe_model(model) if model else describe_installation(vocab_size, length)
    print_json(report) if json else print_table(report)


def describe_installation(vocab_size: int, length: int) -> dict[str, Any]:
    import sys

    import torch

    from edlm._version import __version__
    from edlm.models.transformer import PRESETS, count_parameters, make_transformer_config

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    report: dict[str, Any] = {"edlm": __version__, "python": sys.version.split()[0], "torch": torch.__version__}
    report |= {"threads": torch.get_num_threads(), "GPUs": ", ".join(gpus) or "none"}
    for name, size in PRESETS.items():
        count = count_parameters(make_transformer_config(name, vocab_size, length))
        shape = f"{size['num_layers']} layers, {size['num_heads']} heads, width {size['width']}"
        report[f"preset {name}"] = f"{count:,} parameters ({shape}, {vocab_size} tokens)"
    return report | describe_builtin()


def describe_builtin() -> dict[str, str]:
    """The models that come with the package, and what they reached."""
    from edlm.models.builtin import FOLDER, builtin_names
    from edlm.training.card import summary

    rows = [summary(FOLDER / name) for name in builtin_names()]
    return {f"model {row[0]}": f"{row[1]} parameters, {row[2]} steps, {row[4]}" for row in rows}


def describe_model(name: str) -> dict[str, Any]:
    from edlm.models.causal_lm import CausalLM
    from edlm.models.load import load_model
    from edlm.models.masked_lm import MaskedLM

    model = load_model(name)
    tokenizer = model.tokenizer
    report: dict[str, Any] = {"type": model.model_type, "parameters": f"{sum(p.numel() for p in model.parameters()):,}"}
    if isinstance(model, MaskedLM | CausalLM):
        report |= {"vocab_size": model.vocab_size, "length": model.length} | model.describe()
    else:
        report |= vars(model.config.transformer)
        report |= {key: value for key, value in vars(model.config).items() if key != "transformer"}
    return report | {"tokenizer": f"{tokenizer.vocab_size} tokens, per {tokenizer.unit}" if tokenizer else "none"}
