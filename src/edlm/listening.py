"""Where a server listens, and how it ends."""

import ipaddress
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from edlm.errors import UserError


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


def web_address(listening: socket.socket) -> str:
    """What to type into a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def quiet_signals() -> Iterator[None]:
    """uvicorn raises the signal that stopped it once more when it is done; by then there is nothing left to stop."""
    before = {which: signal.signal(which, lambda *_: None) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
