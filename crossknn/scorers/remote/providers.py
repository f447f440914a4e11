"""What servers of the common `/rerank` protocol are asked, and how their answers are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError

LEAST_PROBABILITY = 1e-7  # logit -16; a float32 comes hardly nearer to 1 than that to 0
LARGEST_SCORE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one kind of server differs from the others.

    items          the field that holds the items' texts
    fields         what every request asks for besides
    batch_size     items that it takes in one request, unless told otherwise
    probabilities  whether it always answers with probabilities
    unit           items that are billed as one, at most
    """

    name: str
    items: str = "documents"
    fields: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 100
    probabilities: bool = False
    unit: int = 1

    def write(self, query: str, items: Sequence[str], *, model: str | None, fields: Mapping[str, Any]) -> bytes:
        """The body of a request for the scores of all `items`."""
        body: dict[str, Any] = {"query": query, self.items: list(items), **self.fields, **fields}
        if self.items == "documents":
            body.setdefault("top_n", len(items))
        if model is not None:
            body["model"] = model
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")  # a lone surrogate cannot be written

    def count_units(self, items: int) -> int:
        """What a request with so many items is billed as."""
        return -(-items // self.unit)


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("tei", items="texts", fields={"raw_scores": True, "truncate": True}, batch_size=32),
        Dialect("vllm", fields={"use_activation": False, "truncate_prompt_tokens": -1}),
        Dialect("jina", fields={"return_documents": False}),
        Dialect("cohere", probabilities=True, unit=100),
    )
}


def choose_dialect(name: str, *, host: str, path: str, model: str | None) -> Dialect:
    """The dialect of this name; for "auto" the one that servers of such a URL speak."""
    if name == "auto":
        return DIALECTS[_guess(host, path, model)]
    if name not in DIALECTS:
        raise InputError(f"dialect must be 'auto' or one of {', '.join(map(repr, DIALECTS))}. Got {name!r} instead.")
    return DIALECTS[name]


def _guess(host: str, path: str, model: str | None) -> str:
    for domain, name in (("cohere.com", "cohere"), ("cohere.ai", "cohere"), ("jina.ai", "jina")):
        if host == domain or host.endswith(f".{domain}"):
            return name
    versioned = "/v1/" in path or "/v2/" in path
    return "vllm" if versioned or model is not None else "tei"


@dataclass(frozen=True, slots=True)
class Answer:
    """Scores in the order of the items asked, and what the server says it bills, where it says so."""

    scores: NDArray[np.float64]
    units: int | None


def read_answer(body: bytes, count: int) -> Answer:
    """The scores of `count` items, each given once; a `ValueError` says what is wrong with other answers."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from error
    results = answer.get("results") if isinstance(answer, dict) else answer
    if not isinstance(results, list):
        raise ValueError("it has no list of results")
    scores = np.full(count, np.nan)
    given = np.zeros(count, np.bool_)
    for result in results:
        index, score = _read_result(result, count)
        if given[index]:
            raise ValueError(f"index {index} comes twice")
        given[index], scores[index] = True, score
    if not given.all():
        raise ValueError(f"{given.sum()} of {count} scores came; the first without one is index {given.argmin()}")
    return Answer(scores, _read_units(answer))


def _read_result(result: Any, count: int) -> tuple[int, float]:
    if not isinstance(result, dict):
        raise ValueError(f"wanted an object for each result, got {type(result).__name__}")
    index, score = result.get("index"), result.get("relevance_score", result.get("score"))
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise ValueError(f"wanted an index from 0 to {count - 1}, got {index!r:.40}")
    if not isinstance(score, int | float) or isinstance(score, bool) or not abs(score) <= LARGEST_SCORE:
        raise ValueError(f"wanted a finite number as the score of index {index}, got {score!r:.40}")
    return index, score


def _read_units(answer: Any) -> int | None:
    """Cohere's own count of searches: items that are too long count more than once."""
    place = answer
    for name in ("meta", "billed_units", "search_units"):
        place = place.get(name) if isinstance(place, dict) else None
    return place if isinstance(place, int) and place >= 0 else None


def to_logits(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(p / (1 - p)), at most 16 away from 0; a `ValueError` where a number is no probability."""
    outside = probabilities[(probabilities < 0) | (probabilities > 1)]
    if len(outside):
        raise ValueError(f"wanted probabilities, between 0 and 1, got {outside[0]:g}: give logits=False")
    kept = np.clip(probabilities, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    logits: NDArray[np.float64] = np.log(kept) - np.log1p(-kept)
    return logits
