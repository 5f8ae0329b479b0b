"""What is checked before a request is even read: who it is addressed to, its key, its size."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from edlm.serving.problems import RequestError, TooLargeError, WrongHostError, WrongKeyError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OPEN = ("/health",)
"""Answered without a key."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@final
class Guard:
    """Refuses requests by their headers, and bodies that grow beyond the limit.

    With `only_local`, a request must be addressed to this machine by name: otherwise a page in a browser could reach a
    server without a key, through a name of its own that it lets point here.
    """

    def __init__(self, app: Application, *, api_key: str = "", max_body: int, only_local: bool = False) -> None:
        self._app, self._max_body, self._only_local = app, max_body, only_local
        self._key = digest(api_key.encode()) if api_key else None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope["path"], Headers(scope=scope))
        except RequestError as problem:
            await refusal(problem)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _check(self, path: str, headers: Headers) -> None:
        if self._only_local and host_name(headers.get("host", "")) not in LOOPBACK_NAMES:
            raise WrongHostError(
                "this server answers to localhost and 127.0.0.1 only; set an API key to use other names"
            )
        if self._key is not None and path not in OPEN:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            # Digests are compared, in a time that depends on neither the key nor its length.
            if not (
                hmac.compare_digest(digest(given.strip().encode("latin-1")), self._key) and scheme.lower() == "bearer"
            ):
                raise WrongKeyError("wrong or missing API key; send the header 'Authorization: Bearer KEY'")
        size = headers.get("content-length", "0")
        if size.isdecimal() and int(size[:20]) > self._max_body:
            raise TooLargeError(f"the body must have at most {self._max_body} bytes, got {size[:20]}")

    def _limited(self, receive: Receive) -> Receive:
        """The same messages, until they add up to too much: chunked bodies do not announce their size."""
        total = 0

        async def limited() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self._max_body:
                raise TooLargeError(f"the body must have at most {self._max_body} bytes")
            return message

        return limited


def host_name(host: str) -> str:
    """The Host header without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def refusal(problem: RequestError) -> JSONResponse:
    """The response that says what is wrong."""
    return JSONResponse(problem.body, problem.status, problem.headers)
