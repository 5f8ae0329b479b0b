"""A server under load, in a process of its own on the loopback address, against the same server asked one at a time.

There is no way to name a server: the one that is measured is started here, and nothing else is ever asked.
"""

import http.client
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from edlm.errors import UserError

LOOPBACK = "127.0.0.1"
TIMEOUT = 120.0


@dataclass(frozen=True)
class Load:
    """What the clients ask for, and for how long."""

    clients: int = 32
    """Clients at the same time."""
    seconds: float = 60.0
    """How long they ask, one request after another; one alone asks a quarter as long."""
    max_requests: int = 100_000
    """Stop after so many, whatever the time."""
    steps: int = 8
    """Denoising steps of a request."""
    max_tokens: int = 20
    """Tokens of a completion."""
    seeds: int = 16
    """Different requests; the text of each must be the same every time."""

    def __post_init__(self) -> None:
        for name in ("clients", "seconds", "max_requests", "steps", "max_tokens", "seeds"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name.replace('_', '-')} must be positive, got {getattr(self, name)}")


@dataclass
class Tally:
    """What came back."""

    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    texts: dict[int, set[str]] = field(default_factory=dict)
    """The texts of each seed."""
    megabytes: list[float] = field(default_factory=list)
    """The server's memory, once a second."""
    elapsed: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.elapsed


def bench_serving(load: Load, words: Sequence[str] = ()) -> dict[str, Any]:
    """Requests per second of one client and of many, latencies, errors and memory. `words` go to `edlm serve`."""
    with server(words) as port:
        ask(port, load, seed=0)  # to warm up
        alone = press(port, load, clients=1, seconds=load.seconds / 4)
        before = read_metrics(port)
        crowd = press(port, load, clients=load.clients, seconds=load.seconds)
        after = read_metrics(port)
    rows, steps = (after[f"edlm_batch_rows_{name}"] - before[f"edlm_batch_rows_{name}"] for name in ("sum", "count"))
    return report(load, alone, crowd) | {"sequences_per_step": round(rows / steps, 2)}


def report(load: Load, alone: Tally, crowd: Tally) -> dict[str, Any]:
    different = [seed for seed, texts in crowd.texts.items() if len(texts | alone.texts.get(seed, set())) > 1]
    return {
        "setting": f"{load.clients} clients, {load.max_tokens} tokens in {load.steps} steps",
        "seconds": round(crowd.elapsed, 1),
        "requests": len(crowd.latencies),
        "errors": len(crowd.errors) + len(alone.errors),
        "first_error": next(iter([*crowd.errors, *alone.errors]), None),
        "seeds_with_more_than_one_text": len(different),
        "requests_per_second": {
            "one_at_a_time": round(alone.per_second, 2),
            "together": round(crowd.per_second, 2),
            "ratio": round(crowd.per_second / max(alone.per_second, 1e-9), 2),
        },
        "latency_seconds": {"one_at_a_time": latency(alone), "together": latency(crowd)},
        "server_megabytes": memory(crowd.megabytes),
    }


def latency(tally: Tally) -> dict[str, float]:
    ordered = sorted(tally.latencies) or [float("nan")]
    last = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return {"median": round(statistics.median(ordered), 3), "95%": round(last, 3)}


def memory(megabytes: Sequence[float]) -> dict[str, float]:
    """Medians of the second and of the last quarter: the first is for buffers that grow once."""
    quarter = max(1, len(megabytes) // 4)
    early, late = megabytes[quarter : 2 * quarter] or megabytes, megabytes[-quarter:]
    return {"early": round(statistics.median(early), 1), "late": round(statistics.median(late), 1)}


def press(port: int, load: Load, *, clients: int, seconds: float) -> Tally:
    """`clients` threads that ask one request after another until the time is over."""
    tally, numbers, start = Tally(), itertools.count(), time.monotonic()

    def client() -> None:
        while (number := next(numbers)) < load.max_requests and time.monotonic() < start + seconds:
            began, seed = time.monotonic(), number % load.seeds
            try:
                text = ask(port, load, seed)
            except (OSError, ValueError, http.client.HTTPException) as error:
                tally.errors.append(f"{type(error).__name__}: {error}")
                continue
            tally.latencies.append(time.monotonic() - began)
            tally.texts.setdefault(seed, set()).add(text)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tally.megabytes.append(read_metrics(port)["process_resident_memory_bytes"] / 1e6)
        time.sleep(min(1.0, seconds / 8))
    tally.elapsed = time.monotonic() - start
    return tally


def ask(port: int, load: Load, seed: int) -> str:
    """The text of one completion; anything but status 200 is an error."""
    body = {"model": "text8-nano-denoiser", "prompt": "in the year ", "seed": seed}
    body |= {"steps": load.steps, "max_tokens": load.max_tokens}
    return json.loads(fetch(port, "POST", "/v1/completions", json.dumps(body)))["choices"][0]["text"]


def read_metrics(port: int) -> dict[str, float]:
    """The server's numbers that have no labels, by name."""
    lines = fetch(port, "GET", "/metrics").decode().splitlines()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", "\n".join(lines), re.MULTILINE)}


def fetch(port: int, method: str, path: str, body: str | None = None) -> bytes:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=TIMEOUT)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"status {response.status}: {content[:200].decode(errors='replace')}")
    return content


@contextmanager
def server(words: Sequence[str] = ()) -> Iterator[int]:
    """The port of a server with the built-in denoiser, which is stopped at the end."""
    command = [sys.executable, "-m", "edlm", "serve", "--host", LOOPBACK, "--port", "0", *words]
    env = {name: value for name, value in os.environ.items() if name != "EDLM_API_KEY"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        found = re.search(rf"http://{re.escape(LOOPBACK)}:(\d+)", process.stdout.readline())
        if found is None:
            raise UserError("the server did not start; what it says is above")
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT)
        process.stdout.close()
