"""HTTP errors: the status, type and message that a client gets for each exception."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from crossknn.errors import CrossKnnError, InputError, ScorerError
from crossknn.serve.dynamic_batching import ScorerUnavailable

ERROR_TYPES: Final = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}
MAX_MESSAGE: Final = 4_096  # characters; a scorer's own message or a quoted value may have any number


class HttpError(HTTPException):
    """A request that fails with this status.

    Args:
        retry_after: Seconds, where a retry may succeed.
        close: Whether the connection ends after the response.
        allow: The methods of the resource.
    """

    def __init__(
        self,
        status: int,
        type_: str,
        message: str,
        *,
        retry_after: float | None = None,
        close: bool = False,
        allow: str | None = None,
    ) -> None:
        headers = {
            "Retry-After": None if retry_after is None else str(max(1, math.ceil(retry_after))),
            "WWW-Authenticate": "Bearer" if status == 401 else None,
            "Connection": "close" if close else None,
            "Allow": allow,
        }
        super().__init__(
            status, message[:MAX_MESSAGE], {name: value for name, value in headers.items() if value is not None}
        )
        self.type = type_

    def __str__(self) -> str:
        return self.detail


def check_size(what: str, size: int, limit: int, unit: str = "bytes") -> None:
    """Raise `HttpError` 413 for a body, text or list above its limit."""
    if size > limit:
        raise HttpError(413, "too_large", f"{what} must have at most {limit:,} {unit}, got {size:,}.")


def not_ready(reason: str, *, close: bool = False) -> HttpError:
    return HttpError(503, "not_ready", reason, retry_after=5, close=close)


def encode_json(value: object) -> bytes:
    """A response as JSON; lone surrogates, which a request may contain, become question marks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")


def error_content(error: HttpError, request_id: str) -> dict[str, dict[str, str]]:
    """What a client gets to read of an error."""
    return {"error": {"message": error.detail, "type": error.type, "request_id": request_id}}


def error_response(error: HttpError, request_id: str) -> Response:
    content = encode_json(error_content(error, request_id))
    return Response(content, error.status_code, error.headers, media_type="application/json")


def http_error_of(error: Exception) -> HttpError:
    """The HTTP error that a client gets for an exception."""
    match error:
        case HttpError():
            return error
        case RequestValidationError():
            problems = "; ".join(map(_describe, error.errors()[:3]))
            return HttpError(422, "bad_shape", problems or "the request body cannot be read.")
        case HTTPException():
            type_ = ERROR_TYPES.get(error.status_code, "bad_request")
            return HttpError(error.status_code, type_, error.detail, allow=_allowed_methods(error))
        case InputError():
            return HttpError(400, "bad_request", str(error))
        case ScorerUnavailable():
            return not_ready(str(error))
        case CrossKnnError():
            kind = "scorer" if isinstance(error, ScorerError) else type(error).__name__.removesuffix("Error").lower()
            return HttpError(500, f"{kind}_failed", str(error))
        case _:
            return HttpError(500, "internal", "internal server error. Look up the request id in the server's log.")


def _allowed_methods(error: HTTPException) -> str | None:
    """The methods that an error 405 allows, with those that the middleware adds."""
    given = (error.headers or {}).get("Allow")
    if given is None:
        return None
    methods = set(given.split(", "))
    return ", ".join(sorted(methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())))


def _describe(problem: dict[str, Any]) -> str:
    """One validation error of pydantic: the field, what is expected, and the value if it is short."""
    place = ".".join(str(part) for part in problem["loc"] if part != "body") or "the body"
    value = problem.get("input")
    found = f", got {value!a:.80}" if isinstance(value, str | int | float | bool | None) else ""
    return f"{place}: {problem['msg'].removeprefix('Value error, ')}{found}"
