"""Beyond the paper: all samplers side by side, at equal network passes or equal steps, and at equal time.

Each sampler is given as many steps as every number of passes buys, or the same numbers of steps as all; the plain
denoiser also draws with other numbers of steps, which is the curve that all are compared with. What a sampler reaches
"within the time" of one of these is its best measured point that took no longer: nothing is interpolated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

from edlm import generation_setup as setup
from edlm.evaluation import Likelihood
from edlm.evaluator import Evaluator, Work, evaluator
from edlm.generation import require_drafter
from edlm.generation_report import plot_frontier
from edlm.likelihood_config import LikelihoodConfig
from edlm.reports import Report
from edlm.reproduce import equal_steps
from edlm.reproduce.sampler_spec import CAUSAL, DRAFTS, ENERGIES, PLAIN, Sampler, parse_sampler
from edlm.reproduce.samplers_report import Compared, Entry, plot
from edlm.reproduce.sampling import remarks, study
from edlm.reproduce.settings import Comparison
from edlm.reproduce.stage import Job, Stage
from edlm.reproduce.wall_clock import RULE
from edlm.sample_config import SampleConfig
from edlm.speculative import Drafts
from edlm.study import Method, Setting


def plan(stage: Stage) -> list[Job]:
    assert isinstance(stage.settings, Comparison)
    entries, _ = entries_of(stage)
    return [Job(entry.setting.label, entry.setting.cost * stage.settings.num) for entry in entries]


def run(stage: Stage) -> Report:
    entries, too_dear = entries_of(stage)
    done = study(stage, [entry.setting for entry in entries], with_text=True)
    held_out = done.rows[len(entries) :]
    bits = certified(stage, entries) if held_out else {}
    results = done.results | {"rule": equal_steps.RULE if is_of_steps(stage) else RULE}
    for told, entry in zip(results["rows"], entries, strict=False):
        likelihood = bits.get(entry.setting.label)
        told |= {"sampler": entry.sampler.spec, "passes": entry.passes}
        told["likelihood"] = likelihood and asdict(likelihood)
    compared = Compared(done, entries, bits)
    for told, (entry, row) in zip(results["rows"], compared.rows, strict=False):
        against = compared.against(entry, row)
        told["against_mdlm"] = against and asdict(against) | {"verdict": against.verdict}
    notes = [*remarks(done), *words(stage), *too_dear]
    table = compared.by_steps() if is_of_steps(stage) else compared.by_passes()
    return stage.write(
        f"{table}\n{compared.by_time()}", notes, results, partial(plot, compared), left_out=done.left_out, quotes=False,
        more={"frontier.png": lambda path: plot_frontier(done.rows, path, done.unit)},
    )  # fmt: skip


# --- what is drawn


def entries_of(stage: Stage) -> tuple[list[Entry], list[str]]:
    """Every sampler with its steps, each once, and words about those that cannot make a single one."""
    settings = stage.settings
    assert isinstance(settings, Comparison)
    stage.require("denoiser", "oracle")
    base = SampleConfig(seed=settings.seed, batch_size=settings.batch_size)
    samplers, notes = [parse_sampler(spec) for spec in settings.samplers], []
    methods = load_methods(stage, samplers)
    entries = [
        Entry(parse_sampler(PLAIN), Setting(methods[PLAIN], replace(base, steps=steps)), None)
        for steps in settings.steps
    ]
    for sampler in samplers:
        method = methods.get(method_key(sampler))
        if method is None:
            continue  # its model is absent, which is said elsewhere
        made = list(steps_of(sampler, method, settings, base))
        notes += [] if made else [f"Left out: {sampler.spec} (one step takes more passes than there are)"]
        entries += made
    found: dict[str, Entry] = {}
    for entry in entries:  # a point of the curve may be what a budget buys, too
        if entry.setting.label not in found or entry.passes is not None:
            found[entry.setting.label] = entry
    return list(found.values()), notes


def steps_of(sampler: Sampler, method: Method, settings: Comparison, base: SampleConfig) -> Iterator[Entry]:
    """The sampler with the numbers of steps that are asked for, or as many as each number of passes buys."""
    if not sampler.has_steps:
        yield Entry(sampler, Setting(method, sampler.config(base, base.steps)), None)
        return
    each = method.energy.num_passes if method.energy is not None else 0
    wanted: list[tuple[int, int | None]] = [(steps, None) for steps in settings.steps]
    if settings.equal == "passes":
        wanted = [(sampler.steps_within(budget, each), budget) for budget in settings.passes]
    for steps, budget in wanted:
        if steps:
            yield Entry(sampler, Setting(method, sampler.config(base, steps, each)), budget)


def load_methods(stage: Stage, samplers: Sequence[Sampler]) -> dict[str, Method]:
    """The models behind the samplers, by `method_key`; the plain denoiser is always among them."""
    models, kinds = stage.cast, list(dict.fromkeys(sampler.kind for sampler in samplers))
    specs = models.energies([kind for kind in kinds if kind in ENERGIES])
    needs_causal = CAUSAL in kinds or DRAFTS in kinds
    loaded = setup.load_methods(models.denoiser, specs, models.ar if needs_causal else "", stage.compute)
    methods = {method.spec.partition(":")[0]: method for method in loaded[1:] if method.spec}
    methods[PLAIN] = loaded[0]
    if needs_causal and models.ar:
        methods[CAUSAL] = causal = loaded[-1]
        for sampler in samplers:
            if sampler.kind == DRAFTS:
                drafter = require_drafter(loaded[0].model, causal.model, models.denoiser)
                label = f"AR, drafts of {sampler.drafted}"
                methods[sampler.spec] = Method(label, causal.model, drafts=Drafts(drafter, sampler.drafted))
    return methods


def method_key(sampler: Sampler) -> str:
    return sampler.spec if sampler.kind == DRAFTS else sampler.kind


# --- certified bits


def certified(stage: Stage, entries: Sequence[Entry]) -> dict[str, Likelihood]:
    """The bound of each sampler that has one, on held-out text, by its label; of a causal model the exact value."""
    settings = stage.settings
    assert isinstance(settings, Comparison)
    found = {}
    with evaluator(Work(max_blocks=settings.max_blocks)) as measuring:
        for entry in entries:
            if not entry.setting.config.budget:  # with a budget there is none (`Adaptive.slots`)
                found[entry.setting.label] = bound(stage, measuring, entry)
    return found


def bound(stage: Stage, measuring: Evaluator, entry: Entry) -> Likelihood:
    settings, setting = stage.settings, entry.setting
    assert isinstance(settings, Comparison)
    name = stage.cast.ar if setting.method.is_causal else stage.cast.denoiser
    corpus = measuring.corpus(setting.method.model, name, stage.held_out)
    config = likelihood_of(setting.config, settings.inner)
    spec = setting.method.spec or None
    label = f"bits, {setting.label}"
    return measuring.measure(setting.method.model, corpus, stage.held_out.split, config, energy=spec, label=label)


def likelihood_of(config: SampleConfig, inner: int) -> LikelihoodConfig:
    """The bound that belongs to a sampler."""
    names = ("candidates", "completions", "smc", "lookahead", "ess", "window", "order", "seed")
    steps = 0 if config.first_hitting else config.steps
    return LikelihoodConfig(steps=steps, inner=inner, **{name: getattr(config, name) for name in names})


# --- what is said


def is_of_steps(stage: Stage) -> bool:
    assert isinstance(stage.settings, Comparison)
    return stage.settings.equal == "steps"


def words(stage: Stage) -> list[str]:
    settings = stage.settings
    assert isinstance(settings, Comparison)
    chosen = [] if is_of_steps(stage) else ["passes for: the number of passes that T was chosen for"]
    return [
        *chosen,
        "passes: those that a sample took through denoiser and energy (a step that reveals nothing takes none; a "
        "causal model with drafts: both models')",
        f"bits: certified, R = {settings.inner}, on {settings.max_blocks or 'all'} blocks; exact for causal models and "
        "orders that leave nothing to chance; gain: bits below the denoiser's bound from the same masks; – where a "
        "budget makes the law depend on what a text does not show",
        equal_steps.RULE if is_of_steps(stage) else RULE,
        "Within a time: the best measured point of a sampler that took no longer; nothing is interpolated",
    ]
