"""The HTTP API of a service as a FastAPI app, its reference page /docs, and the files of the search page."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from html import escape
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from crossknn import __version__
from crossknn.serve import schemas
from crossknn.serve.event_stream import EVENT_STREAM, Emit, EventStream
from crossknn.serve.http_errors import HttpError, encode_json
from crossknn.serve.middleware import Exchange, RequestMiddleware
from crossknn.serve.service import Service
from crossknn.types import Scores

if TYPE_CHECKING:
    from crossknn.serve.mcp import McpOverHttp

PAGE: Final = Path(__file__).parent / "page"  # the search page
PAGE_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PAGE_FILES: Final = {path.name: path for path in PAGE.iterdir() if path.suffix in PAGE_TYPES}
PROMETHEUS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": schemas.ErrorResponse, "description": description}
    for status, description in {
        400: "Invalid request.",
        401: "Missing or wrong API key.",
        413: "Body, text or list above its limit.",
        421: "Host name that the server does not answer to.",
        422: "Missing or unknown field, or a value of the wrong type.",
        429: "Too many requests. Retry after Retry-After seconds.",
        500: "The scorer failed on this request.",
        503: "Not ready. Retry after Retry-After seconds.",
    }.items()
}
SEARCH_STREAM: Final = {
    "description": "The best items; with `stream`, an event `hits` after each round, and `done` with the whole answer "
    "(or `error`), each with such an object as its data.",
    "content": {
        EVENT_STREAM: {
            "schema": {
                "description": "An event; its data is JSON.",
                "type": "object",
                "properties": {"event": {"enum": ["hits", "done", "error"]}, "data": {"type": "string"}},
                "required": ["event", "data"],
            }
        }
    },
}
DOCS_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: HTTP API</title>
<link rel="icon" href="/page/icon.svg">
<link rel="stylesheet" href="/page/page.css">
</head>
<body>
<main>
<h1>{title}: HTTP API</h1>
<p>{description} <a href="/openapi.json">OpenAPI schema</a>, <a href="/">search page</a>.</p>
{routes}
</main>
</body>
</html>
"""


def make_app(service: Service) -> FastAPI:
    """The API as an ASGI app, which starts the service at its startup and closes it at its shutdown."""
    agents = _mcp_over_http(service) if service.settings.mcp else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with nullcontext() if agents is None else agents.run():
            yield
        service.close()

    app = FastAPI(
        title="crossknn",
        version=__version__,
        description="k-nearest-neighbor search when the similarity is a cross-encoder.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(RequestMiddleware, settings=service.settings, metrics=service.metrics)
    for kind in (RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _raise_to_middleware)
    _add_search(app, service)
    _add_scores(app, service)
    _add_status(app, service)
    _add_pages(app)
    if agents is not None:
        app.router.routes.append(Route("/mcp", agents, methods=["POST"]))
    return app


def _mcp_over_http(service: Service) -> McpOverHttp:
    from crossknn.serve.mcp import McpOverHttp

    return McpOverHttp(service)


async def _raise_to_middleware(_: Request, error: Exception) -> Response:
    """In place of FastAPI's own error responses: the middleware turns every exception into a response."""
    raise error


def _add_search(app: FastAPI, service: Service) -> None:
    @app.post("/search", response_model=schemas.SearchResponse, responses={**ERRORS, 200: SEARCH_STREAM})
    async def search(
        request: Request, body: Annotated[schemas.SearchRequest, Body(openapi_examples=schemas.SEARCH_EXAMPLES)]
    ) -> Response:
        """Find the items of highest cross-encoder score for each query, within a budget of calls.

        With `stream`, the best items so far are sent after each round, as server-sent events.
        """
        start = time.monotonic()
        exchange: Exchange = request.scope["exchange"]
        exchange.private_log_fields["queries"] = body.all_queries

        def log(response: schemas.SearchResponse) -> schemas.SearchResponse:
            exchange.log_fields["calls"] = sum(result["calls"] for result in response["results"])
            exchange.log_fields["stopped"] = response["results"][0]["stopped"]
            return response

        def work(cancelled: Event) -> schemas.SearchResponse:
            return log(service.search(body, request_id=exchange.request_id, start=start, cancelled=cancelled))

        def emit_rounds(cancelled: Event, emit: Emit) -> None:
            rounds = service.stream(body, request_id=exchange.request_id, start=start, cancelled=cancelled)
            for final, response in rounds:
                emit("done" if final else "hits", log(response))

        if body.stream:
            return _respond_events(service, request, emit_rounds)
        return await _respond(service, request, work)


def _add_scores(app: FastAPI, service: Service) -> None:
    async def score_pairs(
        request: Request, queries: list[str], items: list[str], response: Callable[[Scores, str], object]
    ) -> Response:
        """Score pairs and respond with `response(scores, request_id)`."""
        exchange: Exchange = request.scope["exchange"]
        exchange.private_log_fields["queries"] = list(dict.fromkeys(queries))
        exchange.log_fields["calls"] = len(items)

        def work(cancelled: Event) -> object:
            return response(service.score(queries, items, cancelled=cancelled), exchange.request_id)

        return await _respond(service, request, work)

    @app.post("/score", response_model=schemas.ScoreResponse, responses=ERRORS)
    async def score(
        request: Request, body: Annotated[schemas.ScoreRequest, Body(openapi_examples=schemas.SCORE_EXAMPLES)]
    ) -> Response:
        """Score pairs; the raw scores come back in the order given."""
        return await score_pairs(
            request, *body.queries_and_items, lambda scores, id_: {"scores": scores.tolist(), "request_id": id_}
        )

    @app.post("/v1/score", response_model=schemas.VllmScores, responses=ERRORS)
    async def vllm_score(
        request: Request,
        body: Annotated[schemas.VllmScoreRequest, Body(openapi_examples=schemas.VLLM_SCORE_EXAMPLES)],
    ) -> Response:
        """Score pairs, in vLLM's format: one query with each item, or as many queries as items."""
        model = service.scorer.fingerprint
        return await score_pairs(
            request, *body.queries_and_items, lambda scores, id_: body.response(scores, request_id=id_, model=model)
        )

    async def rerank(
        request: Request, body: Annotated[schemas.RerankRequest, Body(openapi_examples=schemas.RERANK_EXAMPLES)]
    ) -> Response:
        """Rank texts by score, in the formats of text-embeddings-inference, Jina, Cohere, vLLM and infinity."""
        about = {"model": service.scorer.fingerprint, "api_version": "1" if "/v1/" in request.url.path else "2"}
        return await score_pairs(
            request,
            [body.query] * len(body.items),
            body.items,
            lambda scores, id_: body.response(scores, request_id=id_, **about),
        )

    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        app.post(path, response_model=list[schemas.RankedText] | schemas.RankedDocuments, responses=ERRORS)(rerank)


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=dict[str, str])
    async def healthz() -> Response:
        """Liveness: the process is running."""
        return JSONResponse({"status": "alive"})

    @app.get("/readyz", response_model=dict[str, str], responses={503: ERRORS[503]})
    async def readyz() -> Response:
        """Readiness: requests are answered."""
        service.check_ready()
        return JSONResponse({"status": "ready"})

    @app.get("/info", response_model=schemas.Info, responses={401: ERRORS[401]})
    def info() -> Response:
        """The index and models that are served, the strategies on offer, limits and defaults."""
        return JSONResponse(service.info())

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}, 401: ERRORS[401]})
    def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.as_text(), media_type=PROMETHEUS_TYPE)


def _add_pages(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_html(app.openapi()))

    @app.get("/", include_in_schema=False)
    async def search_page() -> Response:
        return await page_file("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        path = PAGE_FILES.get(name)
        if path is None:
            raise HttpError(404, "not_found", "no such page.")
        return FileResponse(path, media_type=PAGE_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})


async def _respond(service: Service, request: Request, work: Callable[[Event], Any]) -> Response:
    """Run `work` from the queue and respond with its result as JSON; it is cancelled if the client disconnects."""
    service.check_ready()

    def write(cancelled: Event) -> bytes:
        return encode_json(work(cancelled))

    content = await service.queue.run(write, partial(_disconnected, request))
    return Response(content, media_type="application/json")


def _respond_events(service: Service, request: Request, work: Callable[[Event, Emit], None]) -> Response:
    """Run `work` from the queue and respond with the events that it emits; it is cancelled as any other."""
    service.check_ready()

    def run(work: Callable[[Event], None]) -> Awaitable[None]:
        return service.queue.run(work, partial(_disconnected, request))

    return EventStream(run, work, request_id=request.scope["exchange"].request_id)


async def _disconnected(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def docs_html(schema: Mapping[str, Any]) -> str:
    """Every route of an OpenAPI schema with its description, example requests and responses, as an HTML page."""
    info = schema["info"]
    routes = "\n".join(
        part
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
        for part in _route_html(method.upper(), path, route)
    )
    return DOCS_PAGE.format(title=escape(info["title"]), description=escape(info["description"]), routes=routes)


def _route_html(method: str, path: str, route: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section>\n<h2><code>{method} {escape(path)}</code></h2>\n<p>{escape(route.get('description', ''))}</p>"
    content = route.get("requestBody", {}).get("content", {}).get("application/json", {})
    for name, example in content.get("examples", {}).items():
        body = json.dumps(example["value"], indent=2, ensure_ascii=False)
        yield f"<h3>{escape(name)}</h3>\n<pre><code>{escape(body)}</code></pre>"
    responses = "".join(
        f"<dt>{status}</dt><dd>{escape(response['description'])}</dd>"
        for status, response in route["responses"].items()
    )
    yield f"<dl>{responses}</dl>\n</section>"
