"""edlm lm-eval"""

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from edlm.commands.sample import Compute, require_one_model, require_writable
from edlm.compute_config import FULL, ComputeConfig
from edlm.errors import UserError
from edlm.extras import require_extra
from edlm.harness_config import HarnessConfig


def lm_eval(
    *,
    tasks: str,
    denoiser: str = "",
    ar: str = "",
    energy: str = "",
    settings: Annotated[HarnessConfig, Parameter(name="*")] = HarnessConfig(),
    include_path: Path | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    compute: Compute = FULL,
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Run tasks of lm-evaluation-harness: likelihoods are exact or certified bounds, texts are drawn by our samplers.

    Parameters
    ----------
    tasks
        Names of tasks, separated by commas; `lm-eval ls tasks` lists them.
    denoiser
        Folder, built-in name or hub name of a denoiser; a training run's folder will do.
    ar
        Folder, built-in name or hub name of an autoregressive model, instead of a denoiser.
    energy
        What corrects the denoiser, as in `edlm sample`.
    include_path
        Folder with tasks of your own, as YAML files.
    num_fewshot
        Worked examples before each question, instead of the task's number.
    limit
        Only so many questions of each task.
    json
        Print results and settings as JSON.
    out
        File for results, settings and every answer, as JSON.
    """
    require_one_model(denoiser, ar)
    if energy and ar:
        raise UserError("an energy corrects a denoiser; an autoregressive model needs none")
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"--include-path {include_path}: there is no such folder")
    require_writable("--out", out)
    require_extra("lm-eval", "lm_eval")
    results = evaluate(denoiser, ar, energy, tasks, settings, include_path, num_fewshot, limit, compute)
    about = {"model": denoiser or ar, "kind": "denoiser" if denoiser else "ar", "energy": energy or None}
    show(results, about | asdict(settings) | {"num_fewshot": num_fewshot, "limit": limit}, json=json, out=out)


def evaluate(
    denoiser: str, ar: str, energy: str, tasks: str, settings: HarnessConfig, include_path: Path | None,
    num_fewshot: int | None, limit: int | None, compute: ComputeConfig,
) -> dict[str, Any]:  # fmt: skip
    """What the harness returns."""
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    from lm_eval.evaluator import simple_evaluate

    from edlm.harness import HarnessModel
    from edlm.models.load import load_named

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    manager = find_tasks(names, include_path)
    model = HarnessModel(
        load_named(denoiser, ar, compute), energy=energy or None, device=None, config=settings,
        progress=sys.stderr.isatty(),
    )  # fmt: skip
    seed = settings.seed
    return simple_evaluate(
        model=model, tasks=names, num_fewshot=num_fewshot, limit=limit, task_manager=manager, random_seed=seed,
        numpy_random_seed=seed, torch_random_seed=seed, fewshot_random_seed=seed,
    )  # fmt: skip


def find_tasks(names: list[str], include_path: Path | None) -> Any:
    """The tasks of the folder if it has all of them, else with the thousands that the harness has to read first."""
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=include_path, include_defaults=False) if include_path else None
    if manager is None or set(names) - set(manager.all_tasks):
        manager = TaskManager(include_path=include_path)
    missing = [name for name in names if not manager.match_tasks([name])]
    if missing or not names:
        remedy = "`lm-eval ls tasks` lists them, and --include-path adds a folder of your own"
        raise UserError(f"no task called {', '.join(missing) or 'nothing'}; {remedy}")
    return manager


def show(results: dict[str, Any], about: dict[str, Any], *, json: bool, out: Path | None) -> None:
    """The harness's table, or JSON; and a file with all answers."""
    from lm_eval.utils import make_table

    from edlm.commands.output import print_json
    from edlm.reports import plain

    kept = {"settings": about, "results": results["results"], "versions": results["versions"]}
    kept |= {"n-shot": results["n-shot"], "n-samples": results["n-samples"]}
    if out is not None:
        import json as json_module

        text = json_module.dumps(plain(kept | {"samples": results["samples"]}), indent=2, default=str)
        out.write_text(text + "\n", encoding="utf-8")
    print_json(kept) if json else print(make_table(results))
