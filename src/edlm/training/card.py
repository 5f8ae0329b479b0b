"""The model card: what a model is, what it was trained on and how good it is, from its record alone.

A record may be incomplete: a run that was not exported has nothing measured, a converted model has no training. What is
not known is left out.
"""

import re
from pathlib import Path
from typing import Any

from edlm.data.record import read_run
from edlm.models.autoregressive import Autoregressive
from edlm.models.denoiser import Denoiser
from edlm.models.energy_network import EnergyNetwork
from edlm.training.tasks import NUM_BINS

CARD = "README.md"
LICENCES = {
    "text8": "The text is text8, an extract of the English Wikipedia of 2006 (CC BY-SA).",
    "sotu": "The text is the State of the Union addresses, works of the United States government.",
}
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon (AdamW outside the blocks)"}
FULL_TEXT8 = 100_000_000
SUMMARY = ("model", "parameters", "steps", "seen", "test split")


def write_card(
    folder: Path, name: str, model: Any, facts: dict[str, Any], recipe: dict[str, Any], licence: str
) -> None:
    """README.md of a model folder."""
    (folder / CARD).write_text(card_text(name, model, facts, recipe, licence), encoding="utf-8")


def card_text(name: str, model: Any, facts: dict[str, Any], recipe: dict[str, Any], licence: str) -> str:
    """The card of a model called `name`. Without a recipe or a licence it says nothing of them."""
    header = [f"license: {licence}"] if licence else []
    record = " It comes with [run.yaml](run.yaml), its full recipe and record." if recipe else ""
    lines = [
        *("---", *header, "library_name: edlm", "language: en", "---", "", f"# {name}", ""),
        what(model, recipe) + record,
        *("", "| | |", "|---|---|"),
        *(f"| {key} | {value} |" for key, value in rows(model, facts, recipe).items()),
        *("", *energy_table(facts.get("measured", {}))),
        *remarks(facts),
        *("## Use", "", *usage(name, model, recipe)),
        *(licence_section(licence, recipe) if licence else []),
    ]
    return "\n".join(lines) + "\n"


def licence_section(licence: str, recipe: dict[str, Any]) -> list[str]:
    return ["", "## Licence", "", f"Weights: {licence_name(licence)}. {text_licence(recipe)}".rstrip()]


def licence_of(folder: Path) -> str:
    """The licence in the header of the card in a folder, or nothing."""
    path = folder / CARD
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.match(r"---\n(?:(?!---).*\n)*?license: *(\S+)", text)
    return found[1] if found else ""


def what(model: Any, recipe: dict[str, Any]) -> str:
    """What kind of model it is, in one sentence."""
    if isinstance(model, EnergyNetwork) and not recipe:
        return f"This is a {energy_kind(model)}: it corrects the denoiser that it was trained with."
    if "nce" in recipe:
        about = (
            f"it corrects the denoiser `{recipe['denoiser']}`, from whose completions it was trained to tell true ones"
        )
        return f"This is a {energy_kind(model)}: {about}."
    if isinstance(model, Denoiser):
        return "This is a masked diffusion denoiser (MDLM): it fills in masked tokens, many at a time."
    return (
        "This is an autoregressive language model, for use by itself, as an energy (EDLM-AR, EDLM-coAR) or as a judge."
    )


def energy_kind(model: Any) -> str:
    if not isinstance(model, EnergyNetwork):
        return "fine-tuned autoregressive energy"
    return "learned energy of single steps" if model.config.target == "step" else "learned energy (EDLM-NCE)"


def rows(model: Any, facts: dict[str, Any], recipe: dict[str, Any]) -> dict[str, str]:
    """The facts of the card, one row each."""
    shape = model.config.transformer
    table = {
        "network": f"transformer, {shape.num_layers} layers, {shape.num_heads} heads, width {shape.width}; "
        f"{shape.length} positions, {shape.vocab_size} tokens",
        "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
    }
    if recipe:
        table |= training_rows(facts, recipe)
    if "measured" in facts:
        return table | result_rows(facts)
    return table | ({"measured": "nothing yet; `edlm export` measures on held-out text"} if recipe else {})


def training_rows(facts: dict[str, Any], recipe: dict[str, Any]) -> dict[str, str]:
    """What it was trained on, and how."""
    unit, run, optim = f"{facts['unit']}s", recipe["run"], recipe["optim"]
    table = {"data": data_row(facts, recipe)}
    if "splits" in facts:
        table["split"] = split_row(facts["splits"], unit)
    table |= {
        "steps": f"{facts['steps']:,}, each of {facts['batch_size']} sequences",
        "tokens seen": f"{facts['tokens_seen']:,} {unit}",
        "optimizer": f"{OPTIMIZERS[optim.get('name', 'adamw')]}, learning rate {optim['learning_rate']:g} "
        f"({optim['schedule']}), moving average {optim['ema']:g}, seed {run['seed']}",
    }
    if facts["started_from"]:
        table["started from"] = start_row(facts, unit)
    return table


def start_row(facts: dict[str, Any], unit: str) -> str:
    """The model whose weights training started from, and the runs behind it, if they are known."""
    runs = [
        f"`{run['name']}` {run['steps']:,} steps, {run['tokens_seen']:,} {unit}, "
        f"{OPTIMIZERS[run['optimizer']]} {run['learning_rate']:g} ({run['schedule']})"
        for run in facts.get("history", [])
    ]
    behind = f", which had behind it: {'; '.join(runs)}" if runs else ""
    return f"the weights of `{facts['started_from']}`{behind}; not counted above"


def data_row(facts: dict[str, Any], recipe: dict[str, Any]) -> str:
    source = (recipe["data"] or {}).get("source", "as its denoiser")
    if source != facts.get("measured_on"):
        return f"`{source}`"
    return f"`{source}`, sha256 of the tokens `{next(iter(facts['splits'].values()))['tokens_sha256']}`"


def split_row(splits: dict[str, Any], unit: str) -> str:
    parts = [f"{name} {p['num_tokens']:,} (from {p['first_token']:,})" for name, p in splits.items()]
    return f"{', '.join(parts)} {unit}"


def result_rows(facts: dict[str, Any]) -> dict[str, str]:
    """What was measured, by which protocol, and what rounding the weights cost."""
    m = facts["measured"]
    unit = f"bits per {facts['unit']}" if "bits" in m else "nats per sequence"
    key, value = likelihood_row(m) if "bits" in m else energy_row(m)
    where = f"{m['split']} split of `{facts['measured_on']}`, {m['num_blocks']:,} blocks of {m['block_length']}"
    where += "" if m["seed"] is None else f", seed {m['seed']}"
    cost = f"{m['rounding_cost']:+.1e} {unit} on the same blocks" if m["precision"] != "float32" else "nothing"
    return {
        key: f"{value}; {where}; ± is one standard error over blocks",
        "stored in": f"{m['precision']}, loads as float32; rounding costs {cost}",
    }


def likelihood_row(m: dict[str, Any]) -> tuple[str, str]:
    value = f"**{m['bits']:.4f} ± {m['standard_error']:.4f}**, {m['quantity']}, {m['protocol']} protocol"
    return f"bits per {m['unit']}", value


def energy_row(m: dict[str, Any]) -> tuple[str, str]:
    value = f"**{m['loss']:.4f} ± {m['standard_error']:.4f}** nats, {accuracy(m)}"
    if m["form"] == "binary":
        value += f", log Z {m['log_z']:.3f}"
    return f"{m['form']} NCE loss", f"{value}, {m['negatives']} negatives"


def accuracy(m: dict[str, Any]) -> str:
    """How often the energy is right. Ranking fixes no threshold, so only pairs can be judged then."""
    name = "accuracy" if m["form"] == "binary" else "pair_accuracy"
    return f"{name.replace('_', ' ')} {m[name]:.3f}"


def energy_table(measured: dict[str, Any]) -> list[str]:
    """Loss and accuracy of an energy in each part of the time, from nearly clean to all masked; of steps by size."""
    if "form" not in measured:
        return []
    times = [f"{b / NUM_BINS:.1f}-{(b + 1) / NUM_BINS:.1f}" for b in range(NUM_BINS)]
    sizes = [key.removeprefix("loss_revealed") for key in measured if key.startswith("loss_revealed")]
    by_size = parts_table(measured, "tokens revealed", "revealed", sizes) if sizes else []
    return [*parts_table(measured, "time t", "t", times), *by_size]


def parts_table(measured: dict[str, Any], title: str, prefix: str, parts: list[str]) -> list[str]:
    """One row for each part; a ranking loss fixes neither threshold nor log Z, so they are left out then."""
    columns = {"loss": "NCE loss, nats", "accuracy": "accuracy", "pair_accuracy": "pair accuracy", "log_z": "log Z"}
    names = list(columns) if measured["form"] == "binary" else ["loss", "pair_accuracy"]
    lines = [f"| {title} | {' | '.join(columns[name] for name in names)} |", "|---" * (1 + len(names)) + "|"]
    for part in parts:
        values = [measured.get(f"{name}_{prefix}{part}") for name in names]
        if None not in values:
            lines.append(f"| {part.replace('-', ' to ')} | " + " | ".join(f"{v:.3f}" for v in values) + " |")
    return [*lines, ""]


def remarks(facts: dict[str, Any]) -> list[str]:
    """What must be said so that nobody compares what cannot be compared."""
    if "splits" not in facts:
        return []
    total = max(part["end_token"] for part in facts["splits"].values())
    if not facts["measured_on"].startswith("text8") or total == FULL_TEXT8:
        return []
    about = f"The text is {total:,} of text8's {FULL_TEXT8:,} characters with a split of its own"
    return [f"{about}: figures are not like for like with those on the usual split (90M/5M/5M).", ""]


def usage(name: str, model: Any, recipe: dict[str, Any]) -> list[str]:
    """How to load it in Python, and one command that uses it."""
    python = ["```python", "import edlm", "", f'model = edlm.load("{name}")', "```", ""]
    return [*python, "```sh", command(name, model, recipe), "```"]


def command(name: str, model: Any, recipe: dict[str, Any]) -> str:
    if isinstance(model, EnergyNetwork) and not recipe:
        return f"edlm sample --denoiser DENOISER --energy {spec_kind(model)}:{name} --steps 32 --candidates 8"
    if "nce" in recipe:
        kind = spec_kind(model) if isinstance(model, EnergyNetwork) else recipe["init"].partition(":")[0]
        return f"edlm sample --denoiser {recipe['denoiser']} --energy {kind}:{name} --steps 32 --candidates 8"
    return f"edlm sample --{'ar' if isinstance(model, Autoregressive) else 'denoiser'} {name} --num 4"


def spec_kind(model: EnergyNetwork) -> str:
    """How --energy names it."""
    return "step" if model.config.target == "step" else "nce"


def licence_name(licence: str) -> str:
    return "Apache 2.0" if licence == "apache-2.0" else licence


def text_licence(recipe: dict[str, Any]) -> str:
    source = str((recipe.get("data") or {}).get("source", ""))
    if not source:
        return ""
    return LICENCES.get(source.partition(":")[0], "The text has a licence of its own.")


def summary(folder: Path) -> list[str]:
    """Name, parameters, steps, tokens seen and result of an exported model: a line of a table of models."""
    facts = (read_run(folder) or {})["record"]
    m, unit = facts["measured"], f"{facts['unit']}s"
    if "bits" in m:
        result = f"{m['bits']:.3f} ± {m['standard_error']:.3f} bits per {m['unit']}, {m['quantity']}"
    else:
        result = f"{m['loss']:.3f} ± {m['standard_error']:.3f} nats, {m['form']} NCE loss; {accuracy(m)}"
    runs = [facts, *facts.get("history", [])]
    steps, seen = (sum(run[key] for run in runs) for key in ("steps", "tokens_seen"))
    counts = [f"{facts['parameters']:,}", f"{steps:,}", f"{seen / 1e6:.1f}M {unit}"]
    return [folder.name, *counts, f"{result} ({m['num_blocks']:,} blocks)"]
