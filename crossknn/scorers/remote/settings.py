"""Checks of what a `RemoteScorer` is given: its URL, limits, fields and headers."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.scorers.remote.client import is_loopback

KEY_VARIABLE = "CROSSKNN_API_KEY"
PLAIN_HEADERS = {"content-type": "application/json", "accept": "application/json", "user-agent": "crossknn"}

logger = logging.getLogger(__name__)


def is_url(name: str) -> bool:
    """Whether a scorer of this name is behind a server."""
    return name.lower().startswith(("http://", "https://"))


def read_url(url: str, model: str | None) -> tuple[SplitResult, str | None]:
    """The URL without what follows a `#`, and the model, which may be that."""
    wanted = "url must be that of a rerank endpoint, such as 'http://localhost:8080/rerank'"
    if not isinstance(url, str) or not is_url(url) or not (url.isascii() and url.isprintable()) or " " in url:
        shown = "one with a name or a password" if "@" in str(url) else repr(url)
        raise InputError(f"{wanted}. Got {shown} instead.")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port  # a port that is none shows only when it is read
        host.encode("idna")
    except ValueError as error:
        raise InputError(f"{wanted}. Got one that cannot be read instead: {error}.") from error
    if "@" in parts.netloc or not host:
        raise InputError(f"{wanted}, with a host and without a name or a password: these go into api_key or headers.")
    named = unquote(parts.fragment) or None
    if named and model:
        raise InputError(f"the model is named twice, {named!r} in the url and model={model!r}. Leave one out.")
    return parts._replace(fragment=""), model or named


def check_limits(*, batch_size: object, concurrency: object, timeout: object, retries: object) -> None:
    """An error unless requests can be made this way."""
    check_positive("batch_size", batch_size)
    check_positive("concurrency", concurrency)
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < math.inf:
        raise InputError(f"timeout must be a number of seconds above 0. Got {timeout!r} instead.")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise InputError(f"retries must be a whole number of at least 0. Got {retries!r} instead.")


def copy_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as a server will read them."""
    taken = sorted({"query", "texts", "documents", "model"} & set(fields))
    if taken:
        raise InputError(f"fields must be others than those of every request. Got {taken[0]!r}.")
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(fields), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"fields must be names with values that JSON can hold: {error}.") from error
    return copied


def make_headers(url: SplitResult, api_key: str | None, headers: Mapping[str, str]) -> dict[str, str]:
    """All headers of a request, with names in lower case; those given win."""
    key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
    made = dict(PLAIN_HEADERS)
    if key:
        made["authorization"] = f"Bearer {key}"
    made |= {name.lower(): value for name, value in headers.items()}
    for name, value in made.items():  # the value may be a secret: no message shows it
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise InputError(f"the name of a header must be letters, digits and '-'. Got {name!r} instead.")
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            what = "api_key" if name == "authorization" else f"the header {name!r}"
            raise InputError(f"{what} must be a line of ASCII characters. Got something else.")
    if "authorization" in made and url.scheme == "http" and not is_loopback(str(url.hostname)):
        logger.warning("the key is sent to %s without encryption: whoever is on the way can read it.", url.hostname)
    return made


def find_secrets(headers: Mapping[str, str]) -> list[str]:
    """Every word of a header that may be a secret, longest first."""
    words = {word for name, value in headers.items() if name not in PLAIN_HEADERS for word in value.split()}
    return sorted((word for word in words if len(word) >= 6 and word != "Bearer"), key=len, reverse=True)
