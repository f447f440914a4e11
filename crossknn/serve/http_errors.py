"""Why a request gets no answer: the status, the type and the sentence that a client reads."""

from __future__ import annotations

import math
from typing import Any

from crossknn.errors import CrossKnnError, InputError
from crossknn.serve.dynamic_batching import ScorerUnavailable


class HttpError(Exception):
    """A request that is not answered; `retry_after` is in seconds, where coming back may help."""

    def __init__(self, status: int, type_: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.message = message
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        found = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        return found | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def body(self, request_id: str) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "request_id": request_id}}


def too_large(what: str, limit: int, unit: str = "bytes", *, got: int | None = None) -> HttpError:
    """A text or body past its limit."""
    given = "more" if got is None else f"{got:,}"
    return HttpError(413, "too_large", f"{what} must have at most {limit:,} {unit}. Got {given} instead.")


def busy(running: int, waiting: int, retry_after: float) -> HttpError:
    message = f"{running} requests run and {waiting} wait, which is the most. Come back later."
    return HttpError(429, "busy", message, retry_after=retry_after)


def http_error_of(error: Exception) -> HttpError:
    """What a client is told of an error."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, InputError):
        return HttpError(400, "bad_request", str(error))
    if isinstance(error, ScorerUnavailable):
        return HttpError(503, "not_ready", str(error), retry_after=5)
    if isinstance(error, CrossKnnError):
        kind = type(error).__name__.removesuffix("Error").lower()
        return HttpError(500, f"{kind}_failed", str(error))
    return HttpError(500, "internal", "something went wrong in the server. Its log has the request's id.")
