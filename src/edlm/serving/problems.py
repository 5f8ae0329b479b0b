"""What goes wrong between client and server: each with its HTTP status, and the body that OpenAI's clients read."""

from collections.abc import Sequence
from typing import Any

from edlm.errors import UserError


class RequestError(UserError):
    """A request that cannot be served; the client can mend it, or come back later."""

    status = 400
    kind = "invalid_request_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    @property
    def headers(self) -> dict[str, str]:
        return {}

    @property
    def body(self) -> dict[str, Any]:
        return error_body(str(self), self.kind, self.param, self.code)


class UnknownModelError(RequestError):
    status = 404
    code = "model_not_found"


class WrongKeyError(RequestError):
    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class WrongHostError(RequestError):
    status = 403
    kind = "permission_error"


class TooLargeError(RequestError):
    status = 413


class BusyError(RequestError):
    """The queue is full."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after)}


class StoppingError(RequestError):
    status = 503
    kind = "server_error"
    code = "stopping"

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "5"}


class DrawingError(RequestError):
    """The sampler itself failed: nothing the client did."""

    status = 500
    kind = "server_error"


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The error object that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def invalid(errors: Sequence[Any]) -> RequestError:
    """The first of pydantic's complaints, with the field it is about.

    The value itself is left out: it may be large, or not even be text.
    """
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    field = field.encode("ascii", "backslashreplace").decode()[:100]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "unknown field; leave it out"
    if first["type"] == "json_invalid":
        return RequestError("the body is not valid JSON; send a JSON object")
    if field == "temperature":
        message += "; 0.01 is close to always taking the likeliest token"
    return RequestError(f"{field}: {message}" if field else message, param=field or None)
