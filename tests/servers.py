"""Real server processes on a free port of the loopback address."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ENV = {k: v for k, v in os.environ.items() if k != "EDLM_API_KEY"} | {"OMP_NUM_THREADS": "1"}


class Server:
    """`edlm serve`, or another command that serves, with some arguments; its standard error goes to a file."""

    def __init__(self, log: Path, *words: object, command: str = "serve", **env: str) -> None:
        self.log = log
        line = [sys.executable, "-m", "edlm", command, "--port", "0", *map(str, words)]
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                line, stdout=subprocess.PIPE, stderr=errors, text=True, env=ENV | env
            )  # fmt: skip
        assert self.process.stdout is not None
        self.url = ""

    def wait(self) -> "Server":
        """Until it listens: it says so on its first line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, (line, self.log.read_text())
        self.url = found[0]
        return self

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@contextlib.contextmanager
def running(server: Server):
    """The server while it runs; it is always ended."""
    try:
        yield server.wait()
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        server.process.stdout.close()
