"""How the examples run `edlm`: as a user would, in the open."""

import shlex
import subprocess
import sys


def edlm(*arguments: object, capture: bool = False) -> str:
    """Show a command, run it, and stop if it fails. What it prints is returned if it is captured."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ edlm {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", "edlm", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE if capture else None, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""
