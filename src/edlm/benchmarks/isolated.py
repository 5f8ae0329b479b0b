"""Measurements in processes of their own: peak memory is then one setting's alone, and a killed benchmark can go on."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, final

from edlm.durable import LineStore
from edlm.errors import UserError


def isolated(module: str, label: str, *arguments: Any) -> dict[str, Any]:
    """What `python -m module` prints as JSON, its arguments being JSON too. `label` says what failed."""
    command = [sys.executable, "-m", module, *(json.dumps(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}: out of memory?"])[-1]
        raise UserError(f"the benchmark of {label} failed ({reason}); try a smaller one")
    return json.loads(done.stdout)


def arguments_of(words: list[str]) -> list[Any]:
    """The other side of `isolated`."""
    return [json.loads(word) for word in words]


def peak_megabytes() -> float:
    """The most memory this process has had; the system counts it in kilobytes, on macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@final
class Measured:
    """Isolated measurements, written down one by one: what the file has is not measured again."""

    def __init__(self, path: Path) -> None:
        machine = {"cores": os.cpu_count(), "threads": os.environ.get("OMP_NUM_THREADS")}
        path.parent.mkdir(parents=True, exist_ok=True)
        self.store = LineStore(path, machine)

    def __call__(self, module: str, label: str, *arguments: Any) -> dict[str, Any]:
        asked = json.loads(json.dumps([module, *arguments]))
        for row in self.store.rows:
            if row["asked"] == asked:
                return row["answer"]
        answer = isolated(module, label, *arguments)
        self.store.append([{"asked": asked, "answer": answer}])
        return answer
