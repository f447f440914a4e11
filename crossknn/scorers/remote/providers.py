"""Rerank servers: how each provider's requests are written, its responses parsed, and its use billed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_choice
from crossknn.scorers.remote.responses import MAX_SCORE, Response, describe_shape, load_json, read_count, read_tokens

MIN_PROBABILITY = 1e-7  # logit -16; float32 probabilities hardly come nearer to 1 than that to 0
RESULT_LISTS = ("results", "data", "rankings", "scores")  # fields of responses
SCORE_FIELDS = ("relevance_score", "score", "logit")  # of each result


@dataclass(frozen=True, slots=True)
class Provider:
    """One kind of rerank server.

    Attributes:
        name: The dialect's name.
        query_field: The request's field for the query,
        items_field: and for the texts of the items.
        top_field: The field for the number of results, where all must be asked for.
        form: How the two are written: as "texts"; as "objects" with a text each; with a "list" of one query; or as
            "pairs", a list of queries as long as that of the items, so that one request has several queries.
        fields: Constant fields of every request.
        batch_size: The default number of items per request.
        probabilities: Whether it always returns probabilities.
        items_per_unit: How many items are billed as one unit.
        domains: Where hosts speak this dialect,
        paths: or ends of a URL's path that tell it.
    """

    name: str
    query_field: str = "query"
    items_field: str = "documents"
    top_field: str | None = None
    form: Literal["texts", "objects", "list", "pairs"] = "texts"
    fields: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 100
    probabilities: bool = False
    items_per_unit: int = 1
    domains: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def request_body(
        self, queries: Sequence[str], items: Sequence[str], *, model: str | None, fields: Mapping[str, Any]
    ) -> bytes:
        """The JSON of a request for the scores of these pairs, which have one query unless `form` is "pairs"."""
        query: Any = queries[0]
        texts: list[Any] = list(items)
        if self.form == "objects":
            query, texts = {"text": query}, [{"text": text} for text in texts]
        elif self.form == "list":
            query = [query]
        elif self.form == "pairs":
            query = list(queries)
        body: dict[str, Any] = {self.query_field: query, self.items_field: texts, **self.fields, **fields}
        if self.top_field is not None:
            body.setdefault(self.top_field, len(items))
        if model is not None:
            body["model"] = model
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")  # lone surrogates have no encoding

    def billed_units(self, items: int) -> int:
        """The expected bill of a request with this many items."""
        return -(-items // self.items_per_unit)


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider("tei", items_field="texts", fields={"raw_scores": True, "truncate": True}, batch_size=32),
        Provider("vllm", top_field="top_n", fields={"use_activation": False, "truncate_prompt_tokens": -1}),
        Provider(
            "vllm-score",
            query_field="text_1",
            items_field="text_2",
            form="pairs",
            fields={"use_activation": False, "truncate_prompt_tokens": -1},
            batch_size=1_000,
            paths=("/score",),
        ),
        Provider("jina", top_field="top_n", fields={"return_documents": False}, domains=("jina.ai",)),
        Provider(
            "cohere", top_field="top_n", probabilities=True, items_per_unit=100, domains=("cohere.com", "cohere.ai")
        ),
        Provider("voyage", top_field="top_k", domains=("voyageai.com",)),
        Provider(
            "mixedbread",
            items_field="input",
            top_field="top_k",
            domains=("mixedbread.com", "mixedbread.ai"),
            paths=("/reranking",),
        ),
        Provider("nim", items_field="passages", form="objects", domains=("nvidia.com",), paths=("/ranking",)),
        Provider("deepinfra", query_field="queries", form="list", domains=("deepinfra.com",)),
    )
}


def choose_provider(dialect: str, *, host: str, path: str, model: str | None) -> Provider:
    """The provider of this name; for "auto" the one that the URL suggests."""
    check_choice("dialect", dialect, ("auto", *PROVIDERS))
    if dialect != "auto":
        return PROVIDERS[dialect]
    for provider in PROVIDERS.values():
        if any(host == domain or host.endswith(f".{domain}") for domain in provider.domains):
            return provider
    for provider in PROVIDERS.values():
        if provider.paths and path.rstrip("/").endswith(provider.paths):
            return provider
    versioned = "/v1/" in path or "/v2/" in path
    return PROVIDERS["vllm" if versioned or model is not None else "tei"]


def parse_response(body: bytes, count: int) -> Response:
    """The scores of a request's `count` items in order, and what the server says it billed.

    Raises:
        ValueError: What is wrong with the response.
    """
    response = load_json(body)
    scores = np.full(count, np.nan)
    unscored: dict[int, str] = {}
    seen: set[int] = set()
    for result in _find_results(response, count):
        index, score = _parse_result(result, count)
        if index in seen:
            raise ValueError(f"index {index} occurs twice")
        seen.add(index)
        if score is None or np.isnan(score):
            unscored[index] = f"returned {'null' if score is None else 'NaN'}"
        else:
            scores[index] = score
    missing = sorted(set(range(count)) - seen)
    if missing:
        raise ValueError(f"{len(missing)} of {count} scores are missing, the first at index {missing[0]}")
    units = read_count(response, "meta", "billed_units", "search_units")  # Cohere: long items count more than once
    return Response(scores, unscored, units=units, tokens=read_tokens(response))


def _find_results(response: Any, count: int) -> list[Any]:
    """The list of results, wherever it stands; bare numbers are those of the items in order."""
    name = None
    results = response
    if isinstance(response, dict):
        name = next((name for name in RESULT_LISTS if name in response), None)
        results = response.get(name)
    if not isinstance(results, list):
        raise ValueError(f"no list of results, but {describe_shape(response)}")
    if name != "scores":
        return results
    if len(results) != count:
        raise ValueError(f"{len(results)} scores for {count} items")
    return [{"index": index, "score": score} for index, score in enumerate(results)]


def _parse_result(result: Any, count: int) -> tuple[int, float | None]:
    """The index and the score of a result; None or NaN is a score that the server could not compute."""
    if not isinstance(result, dict):
        raise ValueError(f"each result must be an object, got {type(result).__name__}")
    index = result.get("index")
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise ValueError(f"each index must be between 0 and {count - 1}, got {index!r:.40}")
    name = next((name for name in SCORE_FIELDS if name in result), None)
    if name is None:
        raise ValueError(f"the result of index {index} has no score, but is {describe_shape(result)}")
    score = result[name]
    if score is None or (isinstance(score, float) and np.isnan(score)):
        return index, score
    if not isinstance(score, int | float) or isinstance(score, bool) or not abs(score) <= MAX_SCORE:
        raise ValueError(f"the score of index {index} must be a finite number, got {score!r:.40}")
    return index, score


def to_logits(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(p / (1 - p)), clipped to ±16; `ValueError` if a number is not a probability."""
    outside = probabilities[(probabilities < 0) | (probabilities > 1)]
    if len(outside):
        raise ValueError(f"probabilities must be between 0 and 1, got {outside[0]:g}; set `logits` to False")
    clipped = np.clip(probabilities, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    logits: NDArray[np.float64] = np.log(clipped) - np.log1p(-clipped)
    return logits
