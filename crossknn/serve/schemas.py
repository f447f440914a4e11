"""Schemas of requests and responses, and the conversion of hits and scores to responses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    FiniteFloat,
    JsonValue,
    Tag,
    model_validator,
)
from typing_extensions import TypedDict  # pydantic accepts typing's only from Python 3.12

from crossknn.errors import InputError
from crossknn.search.results import Hits
from crossknn.search.searcher import Searcher
from crossknn.strategies.registry import STRATEGIES
from crossknn.types import Scores

SEARCH_EXAMPLES: Any = {
    "one query": {"value": {"query": "a machine for making coffee", "k": 3, "budget": 50}},
    "two queries": {"value": {"queries": ["a machine for making coffee", "a large cat"], "k": 3}},
    "one query, the best so far after each round": {"value": {"query": "a large cat", "stream": True}},
    "a strategy with settings": {
        "value": {"query": "a large cat", "strategy": {"name": "axn", "rounds": 5, "mix": 0.8}, "deadline": 2.0}
    },
    "with a filter": {"value": {"query": "a large cat", "k": 1, "filter": {"prefix": "n"}, "explain": True}},
    "with a filter by field": {
        "value": {"query": "a large cat", "filter": {"part_of_speech": "noun", "words": {"not_in": ["tiger", "lion"]}}}
    },
}
SCORE_EXAMPLES: Any = {
    "a query and items": {"value": {"query": "a large cat", "items": ["tiger", "espresso maker"]}},
    "pairs": {"value": {"pairs": [["a large cat", "tiger"], ["a machine for making coffee", "espresso maker"]]}},
}
RERANK_EXAMPLES: Any = {
    "text-embeddings-inference": {"value": {"query": "a large cat", "texts": ["tiger", "mouse"], "raw_scores": True}},
    "Jina, Cohere, vLLM": {
        "value": {"model": "any", "query": "a large cat", "documents": ["tiger", {"text": "mouse"}], "top_n": 1}
    },
}
VLLM_SCORE_EXAMPLES: Any = {
    "a query and items": {"value": {"queries": "a large cat", "documents": ["tiger", "espresso maker"]}},
    "pairs": {
        "value": {"text_1": ["a large cat", "a drink"], "text_2": ["tiger", "espresso"], "use_activation": False}
    },
}


def _check_strategy_name(name: str) -> str:
    if name not in STRATEGIES:
        raise ValueError(f"Input should be one of {', '.join(STRATEGIES)}")
    return name


def _list_strategy_names(schema: dict[str, Any]) -> None:
    schema["enum"] = list(STRATEGIES)


StrategyName = Annotated[str, AfterValidator(_check_strategy_name), Field(json_schema_extra=_list_strategy_names)]
Text = Annotated[str, Field(min_length=1)]
# Lists stop at their first error: a request may have millions of them.
Texts = Annotated[list[Text], Field(min_length=1, fail_fast=True)]
# Rerank servers take empty texts: a passage of a document may be empty, and the list keeps its places.
MaybeEmptyTexts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2, fail_fast=True)]
DOCUMENTS_PER_SEARCH_UNIT = 100  # what Cohere bills as one
MAX_FIELDS = 100  # of an object; clients of other servers send some that are ignored


def _require_one_group(schema: dict[str, Any], model: type[Any]) -> None:
    if model.one_of:
        schema["oneOf"] = [{"required": list(group)} for group in model.one_of]


class RequestModel(BaseModel, strict=True, json_schema_extra=_require_one_group):
    """No type conversion; unknown fields are ignored; exactly one of the groups of fields in `one_of` must be given."""

    one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, fields: object) -> object:
        if isinstance(fields, dict) and len(fields) > MAX_FIELDS:
            raise ValueError(f"must have at most {MAX_FIELDS} fields")
        return fields

    @model_validator(mode="after")
    def _check_one_of(self) -> Self:
        names = dict.fromkeys(name for group in self.one_of for name in group)
        given = tuple(name for name in names if getattr(self, name) is not None)
        if self.one_of and given not in self.one_of:
            raise ValueError(f"must have either {' or '.join(' and '.join(group) for group in self.one_of)}")
        return self


class StrategyWithSettings(RequestModel, extra="allow"):
    """A strategy and its settings, as /info lists them."""

    __pydantic_extra__: dict[str, Any]  # JSON, which needs no second check of its type

    name: StrategyName


StrategyChoice = Annotated[
    Annotated[StrategyName, Tag("name")] | Annotated[StrategyWithSettings, Tag("settings")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "settings"),
]


class IdFilter(RequestModel, extra="forbid"):
    """Only items with these ids, or whose ids begin with the prefix, are found."""

    one_of = (("ids",), ("prefix",))

    ids: Annotated[list[str], Field(fail_fast=True)] | None = None
    prefix: str | None = None


FieldConditions = Annotated[
    dict[str, Any],
    Field(
        description="Only items whose fields meet all conditions are found: a value, a list of values, or operators "
        "(eq, ne, in, not_in, lt, le, gt, ge) for each field; and, or and not combine conditions. Fields named ids or "
        'prefix stand within {"and": […]}.',
        examples=[
            {"section": "utils", "size": {"lt": 5000}},
            {"or": [{"section": ["utils", "io"]}, {"not": {"released": {"lt": "2024-01-01"}}}]},
        ],
    ),
]
FilterChoice = Annotated[
    Annotated[IdFilter, Tag("ids")] | Annotated[FieldConditions, Tag("fields")],
    Discriminator(
        lambda value: (
            "ids"
            if isinstance(value, IdFilter) or (isinstance(value, dict) and {"ids", "prefix"} & value.keys())
            else "fields"
        )
    ),
]


class SearchRequest(RequestModel, extra="forbid"):
    """One query, or several that are searched together."""

    one_of = (("query",), ("queries",))

    query: Text | None = None
    queries: Texts | None = None
    k: int | None = Field(
        None, ge=1, description="Hits per query; 10 by default, or a smaller budget, or the server's limit."
    )
    budget: int | None = Field(
        None, ge=1, description="Cross-encoder calls per query; 100 by default, or the server's limit."
    )
    strategy: StrategyChoice | None = Field(None, description="Search strategy; by default chosen for the index.")
    filter: FilterChoice | None = Field(None, description="Only these items are found: by field, or by id.")
    deadline: FiniteFloat | None = Field(None, gt=0, description="Seconds, after which the best hits so far return.")
    rank_by: Literal["score", "fused"] = "score"
    stop_at: FiniteFloat | None = Field(None, gt=0, le=1, description="Expected recall of the top k to stop at.")
    min_score: FiniteFloat | None = Field(None, description="Leave out hits of a lower score.")
    min_probability: FiniteFloat | None = Field(
        None, gt=0, le=1, description="Leave out hits that are less likely relevant; needs a server with a calibration."
    )
    diversity: FiniteFloat = Field(
        0, ge=0, le=1, description="Weight of unlikeness in the order of hits: maximal marginal relevance."
    )
    stream: bool = Field(False, description="Send the best items so far after each round; one query only.")
    explain: bool = Field(False, description="Also return every scored item, in order of the calls.")
    texts: bool = Field(True, description="Return the items' texts.")
    fields: bool = Field(True, description="Return the items' fields.")
    highlight: bool = Field(False, description="Return where words of the query stand in the texts of hits.")

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream and self.query is None:
            raise ValueError("`stream` needs `query`: one query at a time")
        return self

    @property
    def all_queries(self) -> list[str]:
        return [self.query] if self.query is not None else list(self.queries or ())

    @property
    def strategy_and_settings(self) -> tuple[str, dict[str, Any]] | None:
        """The strategy's name and settings; None for the default strategy."""
        if self.strategy is None or isinstance(self.strategy, str):
            return None if self.strategy is None else (self.strategy, {})
        return self.strategy.name, dict(self.strategy.__pydantic_extra__)


class ScoreRequest(RequestModel, extra="forbid"):
    """A query and items, or pairs."""

    one_of = (("query", "items"), ("pairs",))

    query: Text | None = None
    items: Texts | None = None
    pairs: Annotated[list[Pair], Field(min_length=1, fail_fast=True)] | None = None

    @property
    def queries_and_items(self) -> tuple[list[str], list[str]]:
        if self.pairs is not None:
            return [query for query, _ in self.pairs], [item for _, item in self.pairs]
        items = self.items or []
        return [self.query or ""] * len(items), items


class VllmScoreRequest(RequestModel):
    """A query with each of several items, or as many queries as items, under any of vLLM's names for the two.

    Unknown fields are ignored, so that existing clients work.
    """

    one_of = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))

    queries: str | MaybeEmptyTexts | None = None
    documents: str | MaybeEmptyTexts | None = None
    items: str | MaybeEmptyTexts | None = None
    text_1: str | MaybeEmptyTexts | None = None
    text_2: str | MaybeEmptyTexts | None = None
    data_1: str | MaybeEmptyTexts | None = None
    data_2: str | MaybeEmptyTexts | None = None
    use_activation: bool | None = Field(None, description="False returns logits instead of probabilities.")
    model: str | None = Field(None, description="Ignored: the server has one model.")

    @property
    def queries_and_items(self) -> tuple[list[str], list[str]]:
        """As many queries as items."""
        names = next(group for group in self.one_of if all(getattr(self, name) is not None for name in group))
        queries, items = ([value] if isinstance(value, str) else value for value in (getattr(self, n) for n in names))
        if len(queries) not in (1, len(items)):
            raise InputError(
                f"`{names[0]}` must be one text or as many as `{names[1]}` ({len(items)}), got {len(queries)}."
            )
        return queries * (len(items) // len(queries)), items

    def response(self, scores: Scores, *, request_id: str, model: str) -> VllmScores:
        """The scores in the order given."""
        values = _activate(scores, logits=self.use_activation is False)
        return {
            "id": request_id,
            "object": "list",
            "created": int(datetime.now(UTC).timestamp()),
            "model": self.model or model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(values)],
            "usage": _usage(scores),
        }


class RerankDocument(RequestModel):
    """A document with fields; those other than `text` are ignored."""

    text: str


class RerankRequest(RequestModel):
    """`texts` as in text-embeddings-inference, or `documents` as in Jina, Cohere, vLLM and infinity.

    Unknown fields are ignored, so that existing clients work.
    """

    one_of = (("texts",), ("documents",))

    query: str
    texts: MaybeEmptyTexts | None = None
    documents: Annotated[list[str | RerankDocument], Field(min_length=1, fail_fast=True)] | None = None
    top_n: int | None = Field(None, ge=1)
    return_text: bool = False
    return_documents: bool = False
    raw_scores: bool = Field(False, description="Return logits instead of probabilities.")
    use_activation: bool | None = Field(None, description="vLLM's name for it: false returns logits.")
    model: str | None = Field(None, description="Ignored: the server has one model.")

    @property
    def items(self) -> list[str]:
        if self.texts is not None:
            return self.texts
        return [document if isinstance(document, str) else document.text for document in self.documents or ()]

    def response(
        self, scores: Scores, *, request_id: str, model: str, api_version: str
    ) -> list[RankedText] | RankedDocuments:
        """The ranking by score, highest first, in the dialect of the request."""
        order = np.argsort(-scores, kind="stable")[: self.top_n].tolist()
        values = _activate(scores, logits=self.raw_scores or self.use_activation is False)
        items = self.items
        if self.texts is not None:
            texts = [RankedText(index=place, score=values[place]) for place in order]
            for text in texts if self.return_text else ():
                text["text"] = items[text["index"]]
            return texts
        documents = [RankedDocument(index=place, relevance_score=values[place]) for place in order]
        for document in documents if self.return_documents else ():
            document["document"] = {"text": items[document["index"]]}
        units = -(-len(scores) // DOCUMENTS_PER_SEARCH_UNIT)
        return {
            "id": request_id,
            "object": "rerank",
            "model": self.model or model,
            "results": documents,
            "usage": _usage(scores),
            "meta": {"api_version": {"version": api_version}, "billed_units": {"search_units": units}},
        }


def _activate(scores: Scores, *, logits: bool) -> list[float]:
    """The scores as they are, or as probabilities."""
    values: list[float] = (scores if logits else 1 / (1 + np.exp(-scores.astype(np.float64)))).tolist()
    return values


def _usage(scores: Scores) -> dict[str, int]:
    """What clients expect of it; tokens are not counted."""
    return {"calls": len(scores), "prompt_tokens": 0, "total_tokens": 0}


class CallResponse(TypedDict):
    """A scored item."""

    id: str
    score: float | None  # null for a hit that a deadline left unscored
    probability: float | None  # null without a calibration
    round: int
    proposed_by: str
    estimate: float | None
    deviation: float | None
    ranks: dict[str, int | None]
    text: NotRequired[str]


class HitResponse(CallResponse):
    fields: NotRequired[dict[str, JsonValue]]
    matches: NotRequired[list[tuple[int, int]]]  # start and end in code points


class QueryResponse(TypedDict):
    query: str
    hits: list[HitResponse]
    calls: int
    rounds: int
    rounds_reason: str | None
    stopped: str | None
    expected_recall: float | None
    seconds: float
    score_seconds: float
    solve_seconds: float
    trace: NotRequired[list[CallResponse]]


class SearchResponse(TypedDict):
    results: list[QueryResponse]
    strategy: str
    index: str
    request_id: str


class ScoreResponse(TypedDict):
    scores: list[float]
    request_id: str


class RankedText(TypedDict):
    """As text-embeddings-inference responds."""

    index: int
    score: float
    text: NotRequired[str]


class RankedDocument(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[dict[str, str]]


class RankedDocuments(TypedDict):
    """As Jina, Cohere, vLLM and infinity respond."""

    id: str
    object: Literal["rerank"]
    model: str
    results: list[RankedDocument]
    usage: dict[str, int]
    meta: dict[str, dict[str, str | int]]  # Cohere's


class VllmScore(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class VllmScores(TypedDict):
    """As vLLM responds."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[VllmScore]
    usage: dict[str, int]


class IndexInfo(TypedDict):
    identity: str
    dim: int | None
    prior: bool
    factors: str | None
    calls: int | None


class Info(TypedDict):
    version: str
    items: int
    fields: dict[str, str]
    index: IndexInfo
    scorer: str
    encoder: str | None
    title: str
    example_queries: list[str]
    strategies: list[dict[str, Any]]
    limits: dict[str, float]
    defaults: dict[str, Any]


class ErrorDetail(TypedDict):
    message: str
    type: str
    request_id: str


class ErrorResponse(TypedDict):
    error: ErrorDetail


def query_response(hits: Hits, searcher: Searcher, request: SearchRequest) -> QueryResponse:
    """`hits.to_dict()` with what the request wants of it: the texts of all items or of none, and their matches.

    Only a search that is over has a trace.
    """
    explain = request.explain and hits.final
    response: Any = hits.to_dict(trace=explain)
    for call in response.get("trace", ()):
        del call["fields"]
    if request.texts and explain:
        texts = searcher.items.texts_of([hit.row for hit in hits.trace])
        for call, text in zip(response["trace"], texts, strict=True):
            call["text"] = text
    if request.highlight:
        found = searcher.matches(hits.query, [hit.text for hit in hits])
        for hit, matches in zip(response["hits"], found, strict=True):
            hit["matches"] = matches
    if not request.texts:
        for entry in (*response["hits"], *response.get("trace", ())):
            del entry["text"]
    if not request.fields:
        for entry in response["hits"]:
            del entry["fields"]
    result: QueryResponse = response
    return result
