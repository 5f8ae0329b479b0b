"""One server process: a socket, the models, and an orderly end."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable

import uvicorn

from edlm.errors import UserError
from edlm.serving.app import make_app
from edlm.serving.batcher import Batcher
from edlm.serving.catalogue import Catalogue
from edlm.serving.config import ServeConfig
from edlm.serving.metrics import Metrics


def serve(catalogue: Catalogue, config: ServeConfig, listening: socket.socket, *, api_key: str = "") -> None:
    """Answer requests until SIGINT or SIGTERM; then refuse new ones, finish what runs, and return.

    What is not finished within `config.grace` seconds is given up; so is everything at a second SIGINT.
    """
    metrics = Metrics()
    batcher = Batcher(config.batch_size, config.queue, metrics)
    only_local = is_loopback(config.host) and not api_key
    app = make_app(catalogue, config, batcher, metrics, api_key=api_key, only_local=only_local)
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=config.grace,
        lifespan="off",
    )  # fmt: skip
    with quiet_signals():
        asyncio.run(Draining(settings, batcher.refuse_new).serve(sockets=[listening]))
    batcher.close(timeout=1)


class Draining(uvicorn.Server):
    """Tells the batcher before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, refuse_new: Callable[[], None]) -> None:
        super().__init__(config)
        self._refuse_new = refuse_new

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._refuse_new()
        await super().shutdown(sockets)


@contextlib.contextmanager
def quiet_signals():  # type: ignore[no-untyped-def]
    """uvicorn raises the signal that stopped it once more when it is done; by then there is nothing left to stop."""
    before = {which: signal.signal(which, lambda *_: None) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket: whether the address is free is known before any model is loaded."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        remedy = "choose another --port, or 0 for a free one; --host must be an address of this machine"
        raise UserError(f"cannot listen on {host}:{port} ({error.strerror}); {remedy}") from error
    # asyncio does this by itself only for sockets it makes; without it a small answer waits 40 ms for the one before.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
