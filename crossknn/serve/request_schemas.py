"""What clients send."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, model_validator

SEARCH_EXAMPLES: Any = {
    "one query": {"value": {"query": "a machine for making coffee", "k": 3, "budget": 50}},
    "two queries": {"value": {"queries": ["a machine for making coffee", "a large cat"], "k": 3}},
    "a strategy with settings": {
        "value": {"query": "a large cat", "strategy": {"name": "axn", "rounds": 5, "mix": 0.8}, "deadline": 2.0}
    },
    "among some ids": {"value": {"query": "a large cat", "k": 1, "filter": {"prefix": "n"}, "explain": True}},
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

StrategyName = Literal["posterior", "rerank", "axn", "anncur", "adacur", "tour", "gar", "exact"]
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]


def _one_of(*fields: list[str]) -> ConfigDict:
    """The schema says that exactly one of these groups of fields must be given."""
    groups: list[JsonValue] = [{"required": list[JsonValue](group)} for group in fields]
    return ConfigDict(json_schema_extra={"oneOf": groups})


class Strict(BaseModel):
    """Nothing is converted, and a field that is not known is an error."""

    model_config = ConfigDict(strict=True, extra="forbid")


class StrategyWithSettings(Strict):
    """A strategy and its settings, as /info lists them."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    name: StrategyName


class Filter(Strict):
    """What may be found: items with these ids, or whose ids begin with the prefix."""

    model_config = _one_of(["ids"], ["prefix"])

    ids: list[str] | None = None
    prefix: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.ids is None) == (self.prefix is None):
            raise ValueError("a filter must have ids or a prefix, one of the two")
        return self


class SearchRequest(Strict):
    """One query, or several that are searched side by side."""

    model_config = _one_of(["query"], ["queries"])

    query: Text | None = None
    queries: Texts | None = None
    k: int | None = Field(None, ge=1, description="Hits per query. By default 10, if as many are allowed.")
    budget: int | None = Field(
        None, ge=1, description="Cross-encoder calls per query. By default 100, if as many are allowed."
    )
    strategy: StrategyName | StrategyWithSettings | None = Field(None, description="By default what fits the index.")
    filter: Filter | None = None
    deadline: FiniteFloat | None = Field(None, gt=0, description="Seconds; then the best so far come back.")
    rank_by: Literal["score", "fused"] = "score"
    stop_at: FiniteFloat | None = Field(None, gt=0, le=1, description="End when so much of the top k is expected.")
    explain: bool = Field(False, description="Give every item that was scored, in the order of the calls.")
    texts: bool = Field(True, description="Give the items' texts.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.query is None) == (self.queries is None):
            raise ValueError("a search must have a query or queries, one of the two")
        return self

    @property
    def asked(self) -> list[str]:
        return [self.query] if self.query is not None else list(self.queries or ())

    @property
    def named(self) -> tuple[StrategyName, dict[str, Any]] | None:
        """The strategy's name and its settings; None where the request names none."""
        if self.strategy is None or isinstance(self.strategy, str):
            return None if self.strategy is None else (self.strategy, {})
        return self.strategy.name, dict(self.strategy.__pydantic_extra__)


class ScoreRequest(Strict):
    """A query and items, or pairs."""

    model_config = _one_of(["query", "items"], ["pairs"])

    query: Text | None = None
    items: Texts | None = None
    pairs: Annotated[list[Annotated[list[Text], Field(min_length=2, max_length=2)]], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = (self.query is not None, self.items is not None, self.pairs is not None)
        if given not in ((True, True, False), (False, False, True)):
            raise ValueError("scores must be asked for with query and items, or with pairs")
        return self

    @property
    def both_sides(self) -> tuple[list[str], list[str]]:
        if self.pairs is not None:
            return [query for query, _ in self.pairs], [item for _, item in self.pairs]
        items = self.items or []
        return [self.query or ""] * len(items), items


class Document(BaseModel):
    """A document that is more than a text; its other fields are ignored."""

    model_config = ConfigDict(strict=True)

    text: Text


class RerankRequest(BaseModel):
    """The shapes that rerank servers take: `texts` as text-embeddings-inference has them, `documents` as the others.

    Fields that are not known are ignored, so that existing clients work.
    """

    model_config = ConfigDict(strict=True, **_one_of(["texts"], ["documents"]))

    query: Text
    texts: Texts | None = None
    documents: Annotated[list[Text | Document], Field(min_length=1)] | None = None
    top_n: int | None = Field(None, ge=1)
    return_text: bool = False
    return_documents: bool = False
    raw_scores: bool = Field(False, description="Logits instead of probabilities.")
    use_activation: bool | None = Field(None, description="vLLM's word for it: false gives logits.")
    model: str | None = Field(None, description="Not looked at: there is one model.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.texts is None) == (self.documents is None):
            raise ValueError("what is reranked must be in texts or in documents, one of the two")
        return self

    @property
    def items(self) -> list[str]:
        if self.texts is not None:
            return self.texts
        return [one if isinstance(one, str) else one.text for one in self.documents or ()]

    @property
    def wants_logits(self) -> bool:
        return self.raw_scores or self.use_activation is False
