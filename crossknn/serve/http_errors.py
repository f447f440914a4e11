"""HTTP errors: the status, type and message that a client gets for each exception."""

from __future__ import annotations

import math
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from crossknn.errors import CrossKnnError, InputError
from crossknn.serve.dynamic_batching import ScorerUnavailable

ERROR_TYPES: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class HttpError(Exception):
    """A request that fails with this status; `retry_after` is in seconds, where a retry may succeed."""

    def __init__(self, status: int, type_: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        retry = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        return retry | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def body(self, request_id: str) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "request_id": request_id}}


def too_large(what: str, limit: int, unit: str = "bytes", *, size: int | None = None) -> HttpError:
    """The error for a body, text or list above its limit."""
    found = "" if size is None else f", got {size:,}"
    return HttpError(413, "too_large", f"{what} must have at most {limit:,} {unit}{found}.")


def not_ready(reason: str) -> HttpError:
    return HttpError(503, "not_ready", reason, retry_after=5)


def http_error_of(error: Exception) -> HttpError:
    """The HTTP error that a client gets for an exception."""
    match error:
        case HttpError():
            return error
        case RequestValidationError():
            problems = "; ".join(map(_describe, error.errors()[:3]))
            return HttpError(422, "bad_shape", problems or "the request body cannot be read.")
        case HTTPException():
            return HttpError(error.status_code, ERROR_TYPES.get(error.status_code, "bad_request"), str(error.detail))
        case InputError():
            return HttpError(400, "bad_request", str(error))
        case ScorerUnavailable():
            return not_ready(str(error))
        case CrossKnnError():
            kind = type(error).__name__.removesuffix("Error").lower()
            return HttpError(500, f"{kind}_failed", str(error))
        case _:
            return HttpError(500, "internal", "internal server error. Look up the request id in the server's log.")


def _describe(problem: dict[str, Any]) -> str:
    """One validation error of pydantic: the field, what is expected, and the value if it is short."""
    place = ".".join(str(part) for part in problem["loc"] if part != "body") or "the body"
    value = problem.get("input")
    found = f", got {value!a:.80}" if isinstance(value, str | int | float | bool | None) else ""
    return f"{place}: {problem['msg'].removeprefix('Value error, ')}{found}"
