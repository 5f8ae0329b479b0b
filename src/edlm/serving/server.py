"""One server process: a socket, the models, and an orderly end."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from edlm.listening import is_loopback, quiet_signals
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
