"""Models and tasks from their configuration."""

from dataclasses import asdict, replace
from typing import Any, Literal

from edlm.data import Corpus, DataConfig
from edlm.data.record import trained_on
from edlm.energy import AutoregressiveEnergy, CarryOverEnergy, Energy, learned_energy
from edlm.energy_spec import check_same_tokens
from edlm.errors import UserError
from edlm.models.autoregressive import Autoregressive, AutoregressiveConfig
from edlm.models.denoiser import Denoiser, DenoiserConfig
from edlm.models.energy_network import EnergyNetwork, energy_from_denoiser
from edlm.models.load import load_as, load_own
from edlm.models.pretrained import find_folder
from edlm.models.transformer import TransformerConfig, make_transformer_config
from edlm.objectives import Times
from edlm.tokenization import Tokenizer
from edlm.tokenizer_files import tokenizer_of
from edlm.training.batches import NoisyBatches, TextBatches
from edlm.training.config import EnergyTrainConfig, TrainConfig
from edlm.training.tasks import EnergyTask, LanguageModelTask

Kind = Literal["denoiser", "ar"]
VALIDATION_NEGATIVES = 8


def build_model(
    kind: Kind, config: TrainConfig, vocab_size: int, tokenizer: Tokenizer | None
) -> Denoiser | Autoregressive:
    """A new model, from scratch or from the weights of `config.model.init`."""
    transformer = transformer_config(kind, config, vocab_size)
    model: Denoiser | Autoregressive
    if kind == "denoiser":
        model = Denoiser(DenoiserConfig(transformer, config.diffusion.schedule), tokenizer)
    else:
        model = Autoregressive(AutoregressiveConfig(transformer), tokenizer)
    if config.model.init:
        start_from(model, config.model.init)
    return model


def transformer_config(kind: Kind, config: TrainConfig, vocab_size: int) -> TransformerConfig:
    overrides = {key: value for key, value in asdict(config.model).items() if key not in ("preset", "init")}
    overrides["time_conditioning"] &= kind == "denoiser"
    return make_transformer_config(config.model.preset, vocab_size, config.data.length, **overrides)


def start_from(model: Denoiser | Autoregressive, name: str) -> None:
    """Copy the weights of another model of the same shape; one without time may start one with it."""
    source = load_own(name)
    if source.tokenizer and model.tokenizer and source.tokenizer.fingerprint != model.tokenizer.fingerprint:
        raise UserError(f"model.init {name} uses another tokenizer than the data; choose a model with the same one")
    weights, own = source.transformer.state_dict(), model.transformer.state_dict()
    for key, value in weights.items():
        if key not in own or own[key].shape != value.shape:
            raise UserError(f"model.init {name} has another shape ({key}: {tuple(value.shape)}); give the same preset")
    model.transformer.load_state_dict(own | weights)


def language_model_task(model: Denoiser | Autoregressive, config: TrainConfig, corpus: Corpus) -> LanguageModelTask:
    """Likelihood training of a denoiser or a causal model."""
    collate: Any = TextBatches(corpus["train"], config.run.seed)
    times = Times(config.diffusion.t_min, power=config.diffusion.t_power)
    if isinstance(model, Denoiser):
        collate = NoisyBatches(collate, model.schedule, model.mask_id, config.run.batch_size, times)
    validation = corpus["validation"] if config.run.eval_every else None
    return LanguageModelTask(model, collate, validation, corpus.unit, config.run.seed, times)


def energy_task(config: EnergyTrainConfig, denoiser: Denoiser, corpus: Corpus) -> EnergyTask:
    """Contrastive training of an energy against completions of a denoiser."""
    model, energy = start_energy(config, denoiser)
    nce, run = config.nce, config.run
    collate = NoisyBatches(
        TextBatches(corpus["train"], run.seed),
        denoiser.schedule,
        denoiser.mask_id,
        run.batch_size,
        Times(nce.t_min, nce.t_max, nce.t_power),
        nce.negatives,
        steps=nce.target == "step",
    )
    validation = None
    if run.eval_every:  # all times, evenly, whatever is trained on
        texts = TextBatches(corpus["validation"], run.seed)
        validation = replace(collate, texts=texts, times=Times(), negatives=VALIDATION_NEGATIVES)
    return EnergyTask(model, energy, denoiser, collate, validation, loss_form(config), nce.t_weight)


def start_energy(config: EnergyTrainConfig, denoiser: Denoiser) -> tuple[EnergyNetwork | Autoregressive, Energy]:
    """The model that is trained and the energy it defines."""
    if not config.init:
        nce = config.nce
        network = energy_from_denoiser(denoiser, inputs=nce.inputs, pooling=nce.pooling, target=nce.target)
        return network, learned_energy(network)
    if config.nce.target == "step":
        raise UserError("nce.target step trains a network that reads masked text, which no ar or coar can; drop init")
    kind, _, name = config.init.partition(":")
    if kind not in ("ar", "coar") or not name:
        raise UserError(f"init must be empty, ar:DIR or coar:DIR, got {config.init!r}")
    model = load_as(Autoregressive, name)
    check_same_tokens(denoiser, model, name)
    return model, AutoregressiveEnergy(model) if kind == "ar" else CarryOverEnergy(model)


def loss_form(config: EnergyTrainConfig) -> str:
    """binary or ranking. The AR energy's Z is the unknown p_AR(x^U), so only ranking, which is blind to Z, fits it.

    For a step energy either does; ranking is the default, because its value is that of the certified bound.
    """
    is_unnormalised = config.init.startswith("ar:")
    if config.nce.loss == "auto":
        return "ranking" if is_unnormalised or config.nce.target == "step" else "binary"
    if config.nce.loss == "binary" and is_unnormalised:
        raise UserError("nce.loss binary needs a normalised energy; use nce.loss ranking, or init coar:DIR")
    return config.nce.loss


def data_of(name: str, given: DataConfig | None) -> DataConfig:
    """The data named by the user, or what the model called `name` was trained on, with that model's tokenizer."""
    folder = find_folder(name)
    if given is None:
        given = trained_on(folder)
        if given is None:
            raise UserError(f"{folder} does not say what it was trained on; name the text with --data.source SOURCE")
    return replace(given, tokenizer=tokenizer_of(folder))
