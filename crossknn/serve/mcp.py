"""The service as tools for agents, by the Model Context Protocol: `search`, `explain` and `get`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from threading import Event
from typing import Annotated, Any, Final, NotRequired, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import Field, FiniteFloat, JsonValue
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict  # pydantic accepts typing's only from Python 3.12

from crossknn import __version__
from crossknn.errors import CrossKnnError
from crossknn.items.fields import fields_as_json
from crossknn.serve.http_errors import HttpError, check_size, http_error_of
from crossknn.serve.schemas import CallResponse, FilterChoice, SearchRequest
from crossknn.serve.service import Service

T = TypeVar("T")
READ_ONLY: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

Query = Annotated[str, Field(min_length=1, description="What to find, in natural language.")]
Ids = Annotated[list[str], Field(min_length=1, fail_fast=True, description="Ids of items, as `search` returns them.")]
K = Annotated[int | None, Field(ge=1, description="Number of hits; 10 by default.")]
Budget = Annotated[
    int | None,
    Field(ge=1, description="Items that the cross-encoder may score; 100 by default. More find more and take longer."),
]
Deadline = Annotated[FiniteFloat | None, Field(gt=0, description="Seconds, after which the best hits so far return.")]
Filter = Annotated[FilterChoice | None, Field(description="Only these items are found: by field, or by id.")]


class FoundItem(TypedDict):
    """An item; `score` is the cross-encoder's raw score, higher is better; null if the deadline came before it."""

    id: str
    score: float | None
    text: str
    fields: dict[str, JsonValue]


class SearchAnswer(TypedDict):
    """`expected_recall` is the share of the best items that the search expects to have found; null if unknown.

    `stopped` is why it ended before its budget, such as "deadline".
    """

    hits: list[FoundItem]
    calls: int
    expected_recall: float | None
    stopped: str | None


class ItemExplanation(TypedDict):
    """`rank` is that of the score among all items scored for the query, from 1.

    The rest is known of items that the search scored itself: in which round, proposed by what, with which estimate of
    the score, and the rank by each retriever, null where it was not retrieved.
    """

    id: str
    score: float
    rank: int
    scored_by_search: bool
    round: NotRequired[int]
    proposed_by: NotRequired[str]
    estimate: NotRequired[float | None]
    ranks: NotRequired[dict[str, int | None]]


class Explanation(TypedDict):
    items: list[ItemExplanation]
    calls: int
    rounds: int


class StoredItem(TypedDict):
    id: str
    text: str
    fields: dict[str, JsonValue]


class Tools:
    """What agents can do with a service. Limits and back-pressure are those of its requests."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def search(
        self, query: Query, k: K = None, budget: Budget = None, deadline: Deadline = None, filter: Filter = None
    ) -> SearchAnswer:
        """Find the items that a cross-encoder scores highest for a query, best first.

        A cross-encoder reads the query and an item together, so ask in full: a question or a sentence is better than
        keywords.
        """
        given = {"query": query, "k": k, "budget": budget, "deadline": deadline, "filter": filter}
        request = SearchRequest.model_validate(given)

        def work(cancelled: Event) -> SearchAnswer:
            found = self._search(request, cancelled)
            hits = [
                FoundItem(id=hit["id"], score=hit["score"], text=hit["text"], fields=hit["fields"])
                for hit in found["hits"]
            ]
            return {
                "hits": hits,
                "calls": found["calls"],
                "expected_recall": found["expected_recall"],
                "stopped": found["stopped"],
            }

        return await self._run(work)

    async def explain(self, query: Query, ids: Ids, budget: Budget = None) -> Explanation:
        """Why a search finds these items, or does not: their scores, and how the search came to them.

        Items that the search did not score are scored now.
        """
        request = SearchRequest.model_validate({"query": query, "budget": budget, "explain": True, "texts": False})

        def work(cancelled: Event) -> Explanation:
            texts = {item["id"]: item["text"] for item in self._items_of(ids)}
            found = self._search(request, cancelled)
            trace = {hit["id"]: hit for hit in found["trace"]}
            others = [id_ for id_ in texts if id_ not in trace]
            scored = self._service.score([query] * len(others), [texts[id_] for id_ in others], cancelled=cancelled)
            scores = {id_: hit["score"] for id_, hit in trace.items()} | dict(zip(others, scored.tolist(), strict=True))
            ranks = {id_: rank for rank, id_ in enumerate(sorted(scores, key=lambda id_: -scores[id_]), 1)}
            items = [_explain(id_, scores[id_], ranks[id_], trace.get(id_)) for id_ in texts]
            return {"items": items, "calls": found["calls"] + len(others), "rounds": found["rounds"]}

        return await self._run(work)

    async def get(self, ids: Ids) -> list[StoredItem]:
        """The texts and fields of items."""
        return await self._run(lambda _: self._items_of(ids))

    def _search(self, request: SearchRequest, cancelled: Event) -> Any:
        response = self._service.search(request, request_id="", start=time.monotonic(), cancelled=cancelled)
        return response["results"][0]

    def _items_of(self, ids: list[str]) -> list[StoredItem]:
        check_size("`ids`", len(ids), self._service.settings.limits.k, "ids")
        items = self._service.live_index.current.searcher.items
        distinct = list(dict.fromkeys(ids))
        rows = items.rows_of(distinct)
        stored = zip(distinct, items.texts_of(rows), items.fields_of(rows), strict=True)
        return [StoredItem(id=id_, text=text, fields=fields_as_json(fields)) for id_, text, fields in stored]

    async def _run(self, work: Callable[[Event], T]) -> T:
        """The result of `work` from the service's queue; an error as one sentence for the agent."""
        try:
            self._service.check_ready()
            return await self._service.queue.run(work, _never)
        except (HttpError, CrossKnnError) as error:
            raise ToolError(http_error_of(error).detail) from error


def make_mcp_server(service: Service) -> MCPServer:
    """An MCP server with the tools of the service."""
    items = service.live_index.current.searcher.items
    title = service.settings.title or "Items"
    fields = ", ".join(f"{name} ({kind})" for name, kind in items.fields.items())
    server = MCPServer(
        "crossknn",
        version=__version__,
        title=title,
        instructions=f"Searches {len(items):,} items ({title}) by the score of a cross-encoder."
        + f" Their fields: {fields}." * bool(fields),
        log_level="WARNING",
    )
    tools = Tools(service)
    for tool in (tools.search, tools.explain, tools.get):
        server.add_tool(tool, annotations=READ_ONLY)
    return server


class McpOverHttp:
    """The tools at a route of a server, whose middleware checks hosts, keys and sizes. Requests have no sessions."""

    def __init__(self, service: Service) -> None:
        server = make_mcp_server(service)
        server.streamable_http_app(  # makes the session manager
            stateless_http=True,
            json_response=True,
            max_request_body_size=service.settings.limits.body_bytes,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        self._sessions = server.session_manager

    def run(self) -> AbstractAsyncContextManager[None]:
        """What must be open while requests are handled."""
        return self._sessions.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._sessions.handle_request(scope, receive, send)


def run_stdio(service: Service) -> None:
    """Serve the agent that started this process, until it closes standard input."""
    service.start()
    try:
        asyncio.run(make_mcp_server(service).run_stdio_async())
    finally:
        service.close()


async def _never() -> None:
    """Nobody disconnects: the protocol cancels the task instead."""
    await asyncio.Event().wait()


def _explain(id_: str, score: float, rank: int, hit: CallResponse | None) -> ItemExplanation:
    explanation: ItemExplanation = {"id": id_, "score": score, "rank": rank, "scored_by_search": hit is not None}
    if hit is not None:
        explanation["round"] = hit["round"]
        explanation["proposed_by"] = hit["proposed_by"]
        explanation["estimate"] = hit["estimate"]
        explanation["ranks"] = hit["ranks"]
    return explanation
