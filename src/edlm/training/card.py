"""The model card: what a model is, what it was trained on and how good it is, from its record alone."""

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
    lines = [
        *("---", f"license: {licence}", "library_name: edlm", "language: en", "---", "", f"# {name}", ""),
        f"{what(model, recipe)} It comes with [run.yaml](run.yaml), its full recipe and record.",
        *("", "| | |", "|---|---|"),
        *(f"| {key} | {value} |" for key, value in rows(model, facts, recipe).items()),
        *("", *energy_table(facts["measured"])),
        *remarks(facts, recipe),
        *("## Use", "", *usage(name, model, recipe), ""),
        *("## Licence", "", f"Weights: {licence_name(licence)}. {text_licence(recipe)}".rstrip()),
    ]
    (folder / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def what(model: Any, recipe: dict[str, Any]) -> str:
    """What kind of model it is, in one sentence."""
    if "nce" in recipe:
        form = "learned energy (EDLM-NCE)" if isinstance(model, EnergyNetwork) else "fine-tuned autoregressive energy"
        about = (
            f"it corrects the denoiser `{recipe['denoiser']}`, from whose completions it was trained to tell true ones"
        )
        return f"This is a {form}: {about}."
    if isinstance(model, Denoiser):
        return "This is a masked diffusion denoiser (MDLM): it fills in masked tokens, many at a time."
    return (
        "This is an autoregressive language model, for use by itself, as an energy (EDLM-AR, EDLM-coAR) or as a judge."
    )


def rows(model: Any, facts: dict[str, Any], recipe: dict[str, Any]) -> dict[str, str]:
    """The facts of the card, one row each."""
    shape, unit, run, optim = model.config.transformer, f"{facts['unit']}s", recipe["run"], recipe["optim"]
    table = {
        "network": f"transformer, {shape.num_layers} layers, {shape.num_heads} heads, width {shape.width}; "
        f"{shape.length} positions, {shape.vocab_size} tokens",
        "parameters": f"{facts['parameters']:,}",
        "data": data_row(facts, recipe),
        "split": split_row(facts["splits"], unit),
        "steps": f"{facts['steps']:,}, each of {facts['batch_size']} sequences",
        "tokens seen": f"{facts['tokens_seen']:,} {unit}",
        "optimizer": f"{OPTIMIZERS[optim.get('name', 'adamw')]}, learning rate {optim['learning_rate']:g} "
        f"({optim['schedule']}), moving average {optim['ema']:g}, seed {run['seed']}",
    }
    if facts["started_from"]:
        table["started from"] = start_row(facts, recipe)
    return table | result_rows(facts)


def start_row(facts: dict[str, Any], recipe: dict[str, Any]) -> str:
    steps = f" after {facts['start_steps']:,} steps" if facts["start_steps"] is not None else ""
    return f"the weights of `{facts['started_from']}`{steps}, not counted above"


def data_row(facts: dict[str, Any], recipe: dict[str, Any]) -> str:
    source = (recipe["data"] or {}).get("source", "as its denoiser")
    if source != facts["measured_on"]:
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
    value = f"**{m['loss']:.4f} ± {m['standard_error']:.4f}** nats, accuracy {m['accuracy']:.3f}"
    return f"{m['form']} NCE loss", f"{value}, log Z {m['log_z']:.3f}, {m['negatives']} negatives"


def energy_table(measured: dict[str, Any]) -> list[str]:
    """Loss and accuracy of an energy in each part of the time, from nearly clean to all masked."""
    if "form" not in measured:
        return []
    lines = ["| time t | NCE loss, nats | accuracy | pair accuracy | log Z |", "|---|---|---|---|---|"]
    for b in range(NUM_BINS):
        low, high = f"{b / NUM_BINS:.1f}", f"{(b + 1) / NUM_BINS:.1f}"
        values = [measured.get(f"{key}_t{low}-{high}") for key in ("loss", "accuracy", "pair_accuracy", "log_z")]
        if None not in values:
            lines.append(f"| {low} to {high} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    return [*lines, ""]


def remarks(facts: dict[str, Any], recipe: dict[str, Any]) -> list[str]:
    """What must be said so that nobody compares what cannot be compared."""
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
    if "nce" in recipe:
        kind = "nce" if isinstance(model, EnergyNetwork) else recipe["init"].partition(":")[0]
        return f"edlm sample --denoiser {recipe['denoiser']} --energy {kind}:{name} --steps 32 --candidates 8"
    return f"edlm sample --{'ar' if isinstance(model, Autoregressive) else 'denoiser'} {name} --num 4"


def licence_name(licence: str) -> str:
    return "Apache 2.0" if licence == "apache-2.0" else licence


def text_licence(recipe: dict[str, Any]) -> str:
    source = str((recipe["data"] or {}).get("source", ""))
    return LICENCES.get(source.partition(":")[0], "The text has a licence of its own.")


def summary(folder: Path) -> list[str]:
    """Name, parameters, steps, tokens seen and result of an exported model: a line of a table of models."""
    facts = (read_run(folder) or {})["record"]
    m, unit = facts["measured"], f"{facts['unit']}s"
    if "bits" in m:
        result = f"{m['bits']:.3f} ± {m['standard_error']:.3f} bits per {m['unit']}, {m['quantity']}"
    else:
        result = f"{m['loss']:.3f} ± {m['standard_error']:.3f} nats, NCE loss; accuracy {m['accuracy']:.3f}"
    seen = f"{facts['tokens_seen'] / 1e6:.1f}M {unit}"
    counts = [f"{facts['parameters']:,}", f"{facts['steps']:,}", seen]
    return [folder.name, *counts, f"{result} ({m['num_blocks']:,} blocks)"]
