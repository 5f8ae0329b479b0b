"""What the commands that measure likelihood share: text in a model's tokens, energies, a journal of what is done."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from edlm._version import __version__
from edlm.data.config import DataConfig
from edlm.data.record import is_exported, portable_source, trained_on
from edlm.errors import UserError
from edlm.likelihood_config import LikelihoodConfig

if TYPE_CHECKING:
    import numpy as np

    from edlm.data import Corpus
    from edlm.distributed import World
    from edlm.evaluation import Likelihood, Score
    from edlm.generation import Model
    from edlm.journal import Journal


@dataclass(frozen=True)
class HeldOut:
    """The text that is scored. Tokenizer and block length are the model's."""

    data: Annotated[str, Parameter(allow_leading_hyphen=True)] = ""
    """Source of the text, as in `edlm data prepare --source`; by default what the model was trained with."""
    split: str = "test"
    """Which split of the data is scored."""
    validation: str | None = None
    """Validation text of the data, as in `edlm data prepare`."""
    test: str | None = None
    """Test text of the data, as in `edlm data prepare`."""
    text_field: str | None = None
    """Field that holds the text."""
    document_separator: str | None = None
    """Mark between documents inside a text file."""
    detokenise: str | None = None
    """Name of the detokeniser the text goes through first, as in `edlm data prepare`."""
    wrap_eos: bool | None = None
    """Start and end every block with the end-of-document token; by default as in the model's training."""
    normalise: bool | None = None
    """Map text to a-z and space first."""
    cache: str | None = None
    """Folder of the tokenised data, and of what an interrupted evaluation has done."""


@dataclass(frozen=True)
class Work:
    """How much is scored, and how much of it at once."""

    max_blocks: int = 0
    """Score only so many evenly spaced blocks; 0 means all."""
    batch_size: int = 0
    """Blocks scored at once; 0 takes what fits into memory. Does not change the result."""

    def __post_init__(self) -> None:
        for name in ("max_blocks", "batch_size"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name.replace('_', '-')} must not be negative, got {getattr(self, name)}")


def data_of(folder: Path, held_out: HeldOut) -> DataConfig:
    """The data named on the command line; what was left out is as in the model's training, if it is the same source."""
    trained = trained_on(folder)
    if trained is None:
        if not held_out.data:
            raise UserError(f"{folder} does not say what it was trained on; name the text with --data SOURCE")
        base = DataConfig(source=held_out.data)
    elif held_out.data in ("", trained.source):
        base = trained
        require_here(folder, base.source)
    elif is_exported(folder) and portable_source(held_out.data) == trained.source:
        base = replace(trained, source=held_out.data)  # the same file, in a folder that the record does not name
    else:  # other text, but in blocks like those the model knows
        base = DataConfig(source=held_out.data, wrap_eos=trained.wrap_eos)
    names = (
        "validation", "test", "text_field", "document_separator", "detokenise", "wrap_eos", "normalise", "cache"
    )  # fmt: skip
    given = {name: getattr(held_out, name) for name in names}
    return replace(base, **{key: value for key, value in given.items() if value is not None})


def require_here(folder: Path, source: str) -> None:
    """Refuse the text of an exported model that is not in this folder, naming the flag that says where it is."""
    if not is_exported(folder) or source in ("text8", "sotu") or source.startswith("hub:"):
        return
    kind, colon, name = source.rpartition(":")
    if not Path(name).exists():
        remedy = f"name the file with --data {kind}{colon}PATH"
        raise UserError(f"{folder.name} was trained on {name}, which is not in this folder; {remedy}")


def corpus_for(
    model: "Model", name: str, held_out: HeldOut, *, length: int | None = None, progress: bool | None = None
) -> "Corpus":
    """The held-out text in the tokens, and by default the length, of the model of that name."""
    from edlm.data import prepare
    from edlm.models.masked_lm import MaskedLM
    from edlm.models.pretrained import find_folder
    from edlm.tokenizer_files import tokenizer_of

    folder = model.folder if isinstance(model, MaskedLM) else find_folder(name)
    if model.tokenizer is None:
        remedy = "put the tokenizer the model was trained with beside its weights"
        raise UserError(f"{folder} has no tokenizer.json; {remedy}")
    config = replace(data_of(folder, held_out), tokenizer=tokenizer_of(folder), length=length or model.length)
    if isinstance(model, MaskedLM):  # a mark between documents is a special token, to which it gives no mass
        config = replace(config, mark_documents=False)
    return prepare(config, progress=progress)


@dataclass
class Evaluator:
    """Measures models one after the other; an interrupted command finds what it had in the journals."""

    world: "World"
    work: Work
    journals: "list[Journal]" = field(default_factory=list)
    energies: dict[str, Any] = field(default_factory=dict)

    def corpus(self, model: "Model", name: str, held_out: HeldOut) -> "Corpus":
        """The held-out text in the model's tokens; the first process alone shows how far it is."""
        return corpus_for(model, name, held_out, progress=None if self.world.is_first else False)

    def measure(
        self, model: "Model", corpus: "Corpus", split: str, config: LikelihoodConfig, *, energy: str | None = None,
        label: str = "",
    ) -> "Likelihood":  # fmt: skip
        """The likelihood of a model, perhaps with an energy, on a split of the corpus."""
        from edlm.evaluation import evaluate_likelihood

        correction = self.energy(energy, model) if energy else None
        result = evaluate_likelihood(
            model, corpus, split, config, energy=correction, max_blocks=self.work.max_blocks,
            batch_size=self.work.batch_size, progress=self.world.is_first and sys.stderr.isatty(),
            journal=self._journal(model, correction, corpus, split, asdict(config)), world=self.world, label=label,
        )  # fmt: skip
        return replace(result, energy=energy)

    def score(
        self, score: "Score", model: "Model", corpus: "Corpus", split: str, *, energy: str, settings: dict[str, Any],
        label: str = "",
    ) -> "np.ndarray":  # fmt: skip
        """What `score` says of each block that is looked at, (n, C); `settings` are all that it depends on besides."""
        from edlm.evaluation import choose_blocks, fitting_batch, score_blocks

        blocks = corpus[split]
        return score_blocks(
            score, blocks, choose_blocks(len(blocks), self.work.max_blocks),
            batch_size=self.work.batch_size or fitting_batch(blocks.length, model.vocab_size),
            device=next(model.parameters()).device, progress=self.world.is_first and sys.stderr.isatty(),
            journal=self._journal(model, self.energy(energy, model), corpus, split, settings), world=self.world,
            label=label,
        )  # fmt: skip

    def forget(self) -> None:
        """All is measured and written: the journals have served."""
        for journal in self.journals if self.world.is_first else []:
            journal.remove()

    def energy(self, spec: str, model: "Model") -> Any:
        """The energy that `spec` names."""
        from edlm.energy_spec import load_energy
        from edlm.generation import require_denoiser

        if spec not in self.energies:
            self.energies.clear()  # one in memory at a time
            self.energies[spec] = load_energy(spec, require_denoiser(model))
        return self.energies[spec]

    def _journal(
        self, model: "Model", energy: Any, corpus: "Corpus", split: str, settings: dict[str, Any]
    ) -> "Journal":
        from edlm.data.cache import cache_folder
        from edlm.energy import identity_of
        from edlm.journal import Journal

        key = {
            "models": identity_of(model, energy),
            "text": corpus.describe() | {"split": split},
            "blocks": self.work.max_blocks,
            "version": __version__,
            **settings,
        }
        self.journals.append(Journal(cache_folder(corpus.config.cache) / "evaluations", key, self.world.rank))
        return self.journals[-1]


@contextmanager
def evaluator(work: Work) -> Iterator[Evaluator]:
    """An evaluator for the processes that torchrun started, or for this one."""
    from edlm.distributed import join_world

    with join_world() as world:
        made = Evaluator(world, work)
        yield made
        made.forget()
