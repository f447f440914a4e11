"""The HTTP API of a service."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Final

from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from crossknn import __version__
from crossknn.serve.docs_page import write_docs
from crossknn.serve.http_errors import HttpError
from crossknn.serve.middleware import RequestMiddleware
from crossknn.serve.schemas import (
    RERANK_EXAMPLES,
    SCORE_EXAMPLES,
    SEARCH_EXAMPLES,
    RerankRequest,
    ScoreRequest,
    SearchRequest,
)
from crossknn.serve.schemas import (
    DocumentsRanked,
    ErrorAnswer,
    Info,
    ScoreAnswer,
    SearchAnswer,
    TextRanked,
    rerank_answer,
)
from crossknn.serve.service import Service
from crossknn.types import Scores

PAGE: Final = Path(__file__).parent / "page"
PAGE_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorAnswer, "description": what}
    for status, what in {
        400: "A request that cannot be used.",
        401: "A missing or wrong API key.",
        413: "A body or text past its limit.",
        421: "A name that the server is not called by.",
        422: "A body of another shape.",
        429: "Too many requests: come back after Retry-After seconds.",
        500: "The scorer failed on this request.",
        503: "Not ready: come back after Retry-After seconds.",
    }.items()
}
KINDS: Final = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def make_app(service: Service) -> FastAPI:
    """The API as an ASGI app; the service is started with it and closed at its end."""

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="crossknn",
        version=__version__,
        description="k-nearest-neighbour search when the similarity is a cross-encoder.",
        lifespan=live,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(RequestMiddleware, settings=service.settings, metrics=service.metrics)
    app.add_exception_handler(RequestValidationError, _refuse_shape)
    app.add_exception_handler(HTTPException, _refuse_http)
    _add_search(app, service)
    _add_scores(app, service)
    _add_reports(app, service)
    _add_page(app)
    return app


def _add_search(app: FastAPI, service: Service) -> None:
    @app.post("/search", response_model=SearchAnswer, responses=ERRORS)
    async def search(
        request: Request, body: Annotated[SearchRequest, Body(openapi_examples=SEARCH_EXAMPLES)]
    ) -> Response:
        """The items of highest score for each query, within a budget of calls."""
        began, passage = time.monotonic(), request.scope["passage"]
        passage.texts["queries"] = body.asked

        def work(cancelled: Event) -> SearchAnswer:
            results, strategy, current = service.search(body, began=began, cancelled=cancelled)
            passage.facts["calls"] = sum(result["calls"] for result in results)
            passage.facts["stopped"] = results[0]["stopped"]
            return {
                "results": results,
                "strategy": repr(strategy),
                "index": current.identity,
                "request_id": passage.request_id,
            }

        return await _answer(service, request, work)


def _add_scores(app: FastAPI, service: Service) -> None:
    async def score_texts(
        request: Request, queries: list[str], items: list[str], shape: Callable[[Scores, str], object]
    ) -> Response:
        """The scores of pairs, in the shape that `shape(scores, request_id)` gives them."""
        passage = request.scope["passage"]
        passage.texts["queries"] = list(dict.fromkeys(queries))
        passage.facts["calls"] = len(items)
        return await _answer(
            service,
            request,
            lambda cancelled: shape(service.score(queries, items, cancelled=cancelled), passage.request_id),
        )

    @app.post("/score", response_model=ScoreAnswer, responses=ERRORS)
    async def score(request: Request, body: Annotated[ScoreRequest, Body(openapi_examples=SCORE_EXAMPLES)]) -> Response:
        """The raw scores of pairs, in the order given."""
        return await score_texts(
            request, *body.both_sides, lambda scores, id_: {"scores": scores.tolist(), "request_id": id_}
        )

    async def rerank(
        request: Request, body: Annotated[RerankRequest, Body(openapi_examples=RERANK_EXAMPLES)]
    ) -> Response:
        """Texts by their score, as rerank servers answer: text-embeddings-inference, Jina, Cohere and vLLM."""
        queries, model = [body.query] * len(body.items), service.scorer.fingerprint
        return await score_texts(
            request, queries, body.items, lambda scores, id_: rerank_answer(body, scores, request_id=id_, model=model)
        )

    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        app.post(path, response_model=list[TextRanked] | DocumentsRanked, responses=ERRORS)(rerank)


def _add_reports(app: FastAPI, service: Service) -> None:
    """The routes that tell about the server."""

    @app.get("/healthz", response_model=dict[str, str])
    async def healthz() -> Response:
        """Whether the process lives."""
        return JSONResponse({"status": "alive"})

    @app.get("/readyz", response_model=dict[str, str], responses={503: ERRORS[503]})
    async def readyz() -> Response:
        """Whether requests are answered."""
        service.check_ready()
        return JSONResponse({"status": "ready"})

    @app.get("/info", response_model=Info, responses={401: ERRORS[401]})
    def info() -> Response:
        """What is served, and what may be asked."""
        return JSONResponse(service.info())

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, 401: ERRORS[401]})
    def metrics() -> Response:
        """Numbers for Prometheus."""
        return Response(service.metrics.as_text(), media_type=METRICS_TYPE)


def _add_page(app: FastAPI) -> None:
    """The pages for people."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _page_file("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(write_docs(app.openapi()))

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        return _page_file(name)


def _page_file(name: str) -> Response:
    path = PAGE / name
    if path.suffix not in PAGE_TYPES or path.parent != PAGE or not path.is_file():
        raise HttpError(404, "not_found", "there is no such page.")
    return FileResponse(path, media_type=PAGE_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


async def _answer(service: Service, request: Request, work: Callable[[Event], Any]) -> Response:
    """What `work` gives, as JSON, when its turn has come; it ends early where the client leaves."""
    service.check_ready()

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    def write(cancelled: Event) -> bytes:
        return json.dumps(work(cancelled), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    return Response(await service.queue.run(write, left), media_type="application/json")


async def _refuse_shape(request: Request, error: Exception) -> Response:
    """What is wrong with a body: the field, what was wanted, what came."""
    problems = error.errors() if isinstance(error, RequestValidationError) else []
    refusal = HttpError(422, "bad_shape", "; ".join(map(_describe, problems[:3])) or "the body cannot be read.")
    return _refused(request, refusal)


def _describe(problem: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in problem["loc"] if part != "body") or "the body"
    given = problem.get("input")
    came = f". Got {given!a:.80}" if isinstance(given, str | int | float | bool | None) else ""
    return f"{place}: {problem['msg']}{came}"


async def _refuse_http(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else ""
    return _refused(request, HttpError(status, KINDS.get(status, "bad_request"), detail))


def _refused(request: Request, refusal: HttpError) -> Response:
    body = refusal.body(request.scope["passage"].request_id)
    return JSONResponse(body, refusal.status, refusal.headers)
