"""What is read from the response of any server: JSON, scores, pairs without one, and what was billed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_COUNT = 2**40  # of tokens; more is no bill
MAX_SCORE = float(np.finfo(np.float32).max)
TOKEN_COUNTS = (  # where servers report the tokens of a request, best first; lists are added up
    (("usage", "total_tokens"),),
    (("usage", "prompt_tokens"), ("usage", "completion_tokens")),
    (("usage", "input_tokens"), ("usage", "output_tokens")),
    (("meta", "tokens", "input_tokens"), ("meta", "tokens", "output_tokens")),
    (("meta", "billed_units", "input_tokens"),),
    (("input_tokens",),),
)


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a request of some pairs.

    Attributes:
        scores: (pairs,), NaN where there is none.
        unscored: Why a pair has no score, by its position: what the server did, such as "returned null".
        units: The billed units, if the server reports them.
        tokens: The tokens, if the server reports them.
    """

    scores: NDArray[np.float64]
    unscored: Mapping[int, str] = field(default_factory=dict)
    units: int | None = None
    tokens: int | None = None


def load_json(body: bytes) -> Any:
    """The JSON of a response.

    Raises:
        ValueError: What it is instead.
    """
    if not body.strip():
        raise ValueError("an empty body")
    if body.lstrip().startswith(b"<"):
        raise ValueError("not JSON but HTML or XML; check the URL")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error


def describe_shape(response: Any) -> str:
    """What a response is that lacks what was looked for, such as "an object with 'detail'"."""
    if not isinstance(response, dict):
        return f"a JSON {type(response).__name__}"
    return f"an object with {', '.join(f'{name!r:.40}' for name in list(response)[:5]) or 'no fields'}"


def read_tokens(response: Any) -> int | None:
    """The tokens of a request as the server reports them, under any of the usual names; None if it does not."""
    if isinstance(response, list):  # llama.cpp: a response for each prompt
        counts = [read_tokens(part) for part in response if isinstance(part, dict)]
        known = [count for count in counts if count is not None]
        return sum(known) if known and len(known) == len(response) else None
    for paths in TOKEN_COUNTS:
        tokens = sum(read_count(response, *path) or 0 for path in paths)
        if tokens:  # a server that reports none does not count them
            return tokens
    return None


def read_count(response: Any, *path: str) -> int | None:
    """The nonnegative integer at this path of nested objects, if there is one that a server can mean."""
    for name in path:
        response = response.get(name) if isinstance(response, dict) else None
    counted = isinstance(response, int) and not isinstance(response, bool) and 0 <= response <= MAX_COUNT
    return response if counted else None
