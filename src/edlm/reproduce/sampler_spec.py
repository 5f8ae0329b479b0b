"""Samplers as they are written on the command line: a kind, and how it draws, such as "ar k=8 R=1" or "causal"."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edlm.errors import UserError
from edlm.sample_config import SampleConfig

PLAIN, CAUSAL, DRAFTS = "mdlm", "causal", "drafts"
ENERGIES = ("ar", "coar", "nce", "step")
KINDS = (PLAIN, *ENERGIES, CAUSAL, DRAFTS)
WORDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "k": ("candidates", int), "w": ("window", float), "R": ("completions", int), "smc": ("smc", int),
    "ahead": ("lookahead", float),    "ess": ("ess", float), "order": ("order", str),
}  # fmt: skip
FIRST_HITTING = "first-hitting"


@dataclass(frozen=True)
class Sampler:
    """A way to draw text, but for its number of steps."""

    spec: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of `SampleConfig`."""
    per_step: int = 0
    """With ess: candidates of a step that the budget has on average."""
    drafted: int = 8
    """Tokens that a denoiser drafts at a time for a causal model."""

    @property
    def has_steps(self) -> bool:
        """Whether it can be given a number of steps; others take as many passes as they need."""
        order = str(self.settings.get("order", ""))
        is_causal = self.kind in (CAUSAL, DRAFTS)
        return not (is_causal or self.settings.get("first_hitting") or order.startswith("entropy"))

    def passes(self, steps: int, num_passes: int) -> int:
        """Network passes of so many steps, with an energy that takes `num_passes` for a candidate (0 without one)."""
        config = self.config(SampleConfig(), steps)
        weighed = self.per_step or config.candidates
        return steps + in_window(steps, config.window) * weighed * max(1, config.completions) * num_passes

    def steps_within(self, passes: int, num_passes: int) -> int:
        """The most steps that take no more passes than this; 0 if a single one does."""
        return next((T for T in range(passes, 0, -1) if self.passes(T, num_passes) <= passes), 0)

    def config(self, base: SampleConfig, steps: int, num_passes: int = 1) -> SampleConfig:
        """How it draws in so many steps."""
        config = replace(base, steps=steps, **self.settings)
        each = max(1, config.completions) * num_passes
        return replace(config, budget=self.per_step * steps * each) if self.per_step else config


def in_window(steps: int, window: float) -> int:
    """Of a uniform grid of steps, how many begin at t >= 1 - window."""
    return sum(n <= window * steps + 1e-9 for n in range(steps)) if window else 0


def parse_samplers(text: str) -> tuple[str, ...]:
    """A list such as "mdlm, ar k=8 R=1", each once, refused where one cannot be read."""
    specs = tuple(dict.fromkeys(" ".join(part.split()) for part in text.split(",")))
    for spec in specs:
        parse_sampler(spec)
    return specs


def parse_sampler(spec: str) -> Sampler:
    """One sampler; words that mean nothing to its kind are refused."""
    kind, *words = spec.split() or [""]
    if kind not in KINDS:
        raise UserError(f"--samplers: unknown sampler {kind!r}; choose from {', '.join(KINDS)}")
    settings: dict[str, Any] = {}
    own: dict[str, int] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in allowed(kind):
            raise UserError(f"--samplers: {word!r} means nothing to {kind}; it knows {', '.join(allowed(kind))}")
        if key == FIRST_HITTING:
            settings["first_hitting"] = True
        elif key in WORDS:
            name, read = WORDS[key]
            settings[name] = number(word, value, read)
        else:
            own["per_step" if key == "b" else "drafted"] = number(word, value, int)
    if any(value < 1 for value in own.values()) or ("per_step" in own and not settings.get("ess")):
        raise UserError(f"--samplers: {spec!r}: b and g must be at least 1, and b needs an ess that is enough")
    try:
        SampleConfig(**settings)
    except UserError as error:
        raise UserError(f"--samplers: {spec!r}: {error}") from None
    return Sampler(spec, kind, settings, **own)


def allowed(kind: str) -> list[str]:
    """The words of a kind of sampler."""
    if kind == CAUSAL:
        return []
    if kind == DRAFTS:
        return ["g"]
    plain = ["order", FIRST_HITTING]
    return plain if kind == PLAIN else [*(word for word in WORDS if word != "order"), "b", *plain]


def number(word: str, text: str, read: Callable[[str], Any]) -> Any:
    try:
        return read(text)
    except ValueError:
        raise UserError(f"--samplers: {word!r} needs a number after the equals sign") from None
