"""Posts that are tried again where that may help, after longer and longer waits."""

from __future__ import annotations

import logging
import random
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from socket import gaierror

from crossknn.errors import ScorerError
from crossknn.scorers.remote.client import HttpPosts, Reply
from crossknn.scorers.remote.cost import Spending
from crossknn.scorers.remote.settings import KEY_VARIABLE

FIRST_WAIT = 0.5  # seconds; every further wait is twice as long
LONGEST_WAIT = 60.0
SAID_LENGTH = 300  # characters of a server's own words in a message
OTHER_DIALECT = "If it speaks another dialect, give dialect=…"
OTHER_KEY = f"Give api_key=…, or set {KEY_VARIABLE}."
HINTS = {
    400: OTHER_DIALECT,
    401: OTHER_KEY,
    403: OTHER_KEY,
    404: "Give the URL of its rerank endpoint, and a model that it serves.",
    413: "Give a smaller batch_size=…",
    422: OTHER_DIALECT,
}
NEVER_SENT = (ConnectionRefusedError, gaierror, ssl.SSLCertVerificationError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Failure:
    words: str
    temporary: bool
    wait: float | None = None  # seconds that the server asks for
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Retrying:
    """Posts to `url`, each tried up to `retries` times more; what may be billed is paid from `spending` first.

    What a server says about an error is quoted without `secrets`, should it repeat one.
    """

    posts: HttpPosts
    url: str
    timeout: float
    retries: int
    secrets: Sequence[str]
    spending: Spending

    def post(self, body: bytes, units: int, stop: threading.Event) -> bytes:
        """The body of the answer, or an error that says why there is none; `stop` ends the tries early."""
        tries = 0
        while True:
            reply = self._try(body, units)
            tries += 1
            if isinstance(reply, Reply):
                return reply.body
            wait = back_off(tries) if reply.wait is None else reply.wait
            hopeless = not reply.temporary or tries > self.retries or wait > LONGEST_WAIT
            if hopeless or stop.wait(wait):
                counted = f" ({tries} tries)" if tries > 1 else ""
                raise ScorerError(f"{reply.words}{counted}.{reply.hint and ' '}{reply.hint}")
            logger.info("%s; trying again after %.1f s", reply.words, wait)

    def _try(self, body: bytes, units: int) -> Reply | _Failure:
        """Send it once; what is surely not billed does not stay counted."""
        self.spending.pay(units)
        try:
            reply = self.posts.post(body)
        except (OSError, HTTPException) as error:
            if isinstance(error, NEVER_SENT):
                self.spending.correct(-units)
            return self._explain(error)
        if reply.status == 200:
            return reply
        self.spending.correct(-units)
        return self._refused(reply)

    def _explain(self, error: OSError | HTTPException) -> _Failure:
        if isinstance(error, TimeoutError):
            return _Failure(f"{self.url} did not answer within {self.timeout:g} seconds", temporary=True)
        said = self._quote(str(error)) or type(error).__name__
        return _Failure(f"{self.url} cannot be reached: {said}", not isinstance(error, ssl.SSLCertVerificationError))

    def _refused(self, reply: Reply) -> _Failure:
        hint = HINTS.get(reply.status, "")
        if 300 <= reply.status < 400:
            there = self._quote(reply.headers.get("location", "nowhere"))
            hint = f"It redirects to {there}: give that, if you trust it."
        asked = read_retry_after(reply.headers.get("retry-after"))
        if asked is not None and asked > LONGEST_WAIT:
            hint = f"It asks to wait {asked:,.0f} seconds."
        said = self._quote(reply.body.decode("utf-8", "replace")) or "nothing"
        return _Failure(f"{self.url} answered {reply.status}: {said}", is_temporary(reply.status), asked, hint)

    def _quote(self, said: str) -> str:
        """The server's own words, on one line, cut, without secrets."""
        for secret in self.secrets:
            said = said.replace(secret, "•••")
        line = " ".join(said.split())
        return line if len(line) <= SAID_LENGTH else line[: SAID_LENGTH - 1] + "…"


def is_temporary(status: int) -> bool:
    """Whether the same request may be answered later: too many requests, or a server in trouble."""
    return status == 429 or status >= 500


def back_off(tries: int) -> float:
    """Seconds to wait after so many tries; less by chance, so that many clients do not come back together."""
    return min(FIRST_WAIT * 2.0 ** (tries - 1), LONGEST_WAIT) * random.uniform(0.5, 1.0)  # noqa: S311


def read_retry_after(value: str | None) -> float | None:
    """The seconds that a server asks to wait, given as a number or as a date; None where it says neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
