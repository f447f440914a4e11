"""What clients are sent: the shapes, and how hits and scores take them."""

from __future__ import annotations

from typing import Any, NotRequired

import numpy as np
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on only

from crossknn.items.items import Items
from crossknn.search.results import Hit, Hits
from crossknn.serve.schemas import RerankRequest
from crossknn.types import Scores


class HitAnswer(TypedDict):
    id: str
    score: float
    round: int
    proposed_by: str
    ranks: dict[str, int | None]
    text: NotRequired[str]


class TraceAnswer(HitAnswer):
    estimate: float | None
    deviation: float | None


class ResultAnswer(TypedDict):
    query: str
    hits: list[HitAnswer]
    calls: int
    rounds: int
    stopped: str | None
    expected_recall: float | None
    seconds: float
    score_seconds: float
    solve_seconds: float
    trace: NotRequired[list[TraceAnswer]]


class SearchAnswer(TypedDict):
    results: list[ResultAnswer]
    strategy: str
    index: str
    request_id: str


class ScoreAnswer(TypedDict):
    scores: list[float]
    request_id: str


class TextRanked(TypedDict):
    """As text-embeddings-inference answers."""

    index: int
    score: float
    text: NotRequired[str]


class DocumentRanked(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[dict[str, str]]


class DocumentsRanked(TypedDict):
    """As Jina, Cohere and vLLM answer."""

    id: str
    model: str
    results: list[DocumentRanked]
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
    index: IndexInfo
    scorer: str
    encoder: str | None
    strategies: list[dict[str, Any]]
    limits: dict[str, float]
    defaults: dict[str, Any]


class ErrorFacts(TypedDict):
    message: str
    type: str
    request_id: str


class ErrorAnswer(TypedDict):
    error: ErrorFacts


def result_answer(hits: Hits, items: Items, *, explain: bool, texts: bool) -> ResultAnswer:
    """One query's hits, with every call where `explain` asks for them."""
    answer: ResultAnswer = {
        "query": hits.query,
        "hits": _hit_answers(list(hits), items, texts=texts),
        "calls": hits.calls,
        "rounds": hits.rounds,
        "stopped": hits.stopped,
        "expected_recall": None if hits.expected_recall is None else float(hits.expected_recall),
        "seconds": hits.seconds,
        "score_seconds": hits.score_seconds,
        "solve_seconds": hits.solve_seconds,
    }
    if explain:
        calls = list(hits.trace)
        answer["trace"] = [
            {**told, "estimate": hit.estimate, "deviation": hit.deviation}
            for told, hit in zip(_hit_answers(calls, items, texts=texts), calls, strict=True)
        ]
    return answer


def _hit_answers(hits: list[Hit], items: Items, *, texts: bool) -> list[HitAnswer]:
    answers: list[HitAnswer] = [
        {
            "id": hit.id,
            "score": hit.score,
            "round": hit.round,
            "proposed_by": hit.proposed_by,
            "ranks": dict(hit.ranks),
        }
        for hit in hits
    ]
    if texts and hits:
        for answer, text in zip(answers, items.texts_of([hit.row for hit in hits]), strict=True):
            answer["text"] = text
    return answers


def rerank_answer(
    request: RerankRequest, scores: Scores, *, request_id: str, model: str
) -> list[TextRanked] | DocumentsRanked:
    """The best first, in the shape that goes with the request's."""
    order = np.argsort(-scores, kind="stable")[: request.top_n]
    shown = scores if request.wants_logits else 1 / (1 + np.exp(-scores.astype(np.float64)))
    ranked = [(int(place), float(shown[place]), request.items[place]) for place in order]
    if request.texts is not None:
        return [_text_ranked(*one, with_text=request.return_text) for one in ranked]
    return {
        "id": request_id,
        "model": request.model or model,
        "results": [_document_ranked(*one, with_document=request.return_documents) for one in ranked],
        "usage": {"calls": len(scores)},
    }


def _text_ranked(index: int, score: float, text: str, *, with_text: bool) -> TextRanked:
    answer: TextRanked = {"index": index, "score": score}
    return {**answer, "text": text} if with_text else answer


def _document_ranked(index: int, score: float, text: str, *, with_document: bool) -> DocumentRanked:
    answer: DocumentRanked = {"index": index, "relevance_score": score}
    return {**answer, "document": {"text": text}} if with_document else answer
