"""A rerank server on this machine that speaks each dialect as strictly as the real ones, and breaks on demand."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Score = Callable[[str, list[str]], Sequence[float]]
Fault = Callable[["Handler"], None]
Server = TypeVar("Server", bound="RerankServer")

PATHS = {
    "tei": "/rerank",
    "vllm": "/v1/rerank",
    "vllm-score": "/score",
    "jina": "/v1/rerank",
    "cohere": "/v2/rerank",
    "voyage": "/v1/rerank",
    "mixedbread": "/v1/reranking",
    "nim": "/v1/ranking",
    "deepinfra": "/v1/inference/Qwen/Qwen3-Reranker-0.6B",
}
NEEDED = {
    "tei": {"query", "texts"},
    "vllm": {"query", "documents"},
    "vllm-score": {"text_1", "text_2"},
    "mixedbread": {"model", "query", "input"},
    "nim": {"query", "passages"},
    "deepinfra": {"queries", "documents"},
}
KNOWN = {
    "tei": {"query", "texts", "raw_scores", "truncate", "return_text"},
    "vllm": {"model", "query", "documents", "top_n", "use_activation", "truncate_prompt_tokens"},
    "jina": {"model", "query", "documents", "top_n", "return_documents"},
    "vllm-score": {"model", "text_1", "text_2", "use_activation", "truncate_prompt_tokens"},
    "cohere": {"model", "query", "documents", "top_n", "max_tokens_per_doc"},
    "voyage": {"model", "query", "documents", "top_k", "return_documents", "truncation"},
    "mixedbread": {"model", "query", "input", "top_k", "return_input", "rank_fields"},
    "nim": {"model", "query", "passages", "truncate"},
    "deepinfra": {"model", "queries", "documents", "instruction"},
}
RAW = ("jina", "voyage", "mixedbread", "nim", "deepinfra")  # as this server is set up


def lengths(query: str, items: list[str]) -> list[float]:
    """Raw scores that are easy to know: from -8 to 8, by the lengths of both texts."""
    return [math.sin(len(query) + 3.7 * len(item)) * 8 for item in items]


class RerankServer(ThreadingHTTPServer):
    """Keeps what it was sent in `bodies`, `headers` and `paths`; each of `faults` takes the place of one answer."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, dialect: str = "tei", score: Score = lengths, *, key: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.dialect, self.score, self.key = dialect, score, key
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.faults: list[Fault] = []
        self.delay = 0.0
        self.in_flight = self.max_in_flight = self.connections = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{PATHS[self.dialect]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no news here."""

    def answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        """The status and the answer of a healthy server."""
        needed = NEEDED.get(self.dialect, {"model", "query", "documents"})
        if not needed <= set(body) <= KNOWN[self.dialect]:
            return 422, {"message": f"expected {sorted(needed)}, got {sorted(body)}"}
        queries, items = read_pairs(body)
        if self.dialect == "tei" and len(items) > 32:
            return 413, {
                "error": f"batch size {len(items)} > maximum allowed batch size 32",
                "error_type": "Validation",
            }
        raw = body.get("raw_scores", not body.get("use_activation", True)) or self.dialect in RAW
        found = [float(self.score(query, [item])[0]) for query, item in zip(queries, items, strict=True)]
        scores = [score if raw else 1 / (1 + math.exp(-score)) for score in found]
        ranked = sorted(enumerate(scores), key=lambda pair: -pair[1])
        if self.dialect == "tei":
            return 200, [{"index": index, "score": score} for index, score in ranked]
        if self.dialect == "deepinfra":
            return 200, {"scores": scores, "input_tokens": 7}
        if self.dialect == "nim":
            return 200, {"rankings": [{"index": index, "logit": score} for index, score in ranked]}
        if self.dialect in ("vllm-score", "mixedbread"):
            data = [{"index": index, "object": "score", "score": score} for index, score in ranked]
            return 200, {"object": "list", "data": data[: body.get("top_k")]}
        if self.dialect == "voyage":
            data = [{"index": index, "relevance_score": score} for index, score in ranked[: body["top_k"]]]
            return 200, {"object": "list", "data": data, "usage": {"total_tokens": 26}}
        results = [{"index": index, "relevance_score": score} for index, score in ranked[: body["top_n"]]]
        return 200, {"id": "x", "results": results, "meta": {"api_version": {"version": "2"}}}


def read_pairs(body: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The pairs of a request in any dialect."""
    if "text_1" in body:
        return body["text_1"], body["text_2"]
    if "passages" in body:
        items = [passage["text"] for passage in body["passages"]]
        return [body["query"]["text"]] * len(items), items
    items = next(body[name] for name in ("texts", "documents", "input") if name in body)
    query = body["queries"][0] if "queries" in body else body["query"]
    return [query] * len(items), items


class Handler(BaseHTTPRequestHandler):
    server: RerankServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_POST(self) -> None:
        self.body = body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.headers.append(dict(self.headers))
            server.paths.append(self.path)
            server.in_flight += 1
            server.max_in_flight = max(server.max_in_flight, server.in_flight)
            fault = server.faults.pop(0) if server.faults else None
        try:
            time.sleep(server.delay)
            if fault is not None:
                fault(self)
            elif server.key is not None and self.headers["authorization"] != f"Bearer {server.key}":
                self.reply(401, {"message": f"invalid api token: {self.headers['authorization']}"})
            else:
                answer(self)
        finally:
            with server.lock:
                server.in_flight -= 1

    def reply(self, status: int, answer: Any, **headers: str) -> None:
        """Send it, as JSON unless it is bytes."""
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


def answer(handler: Handler) -> None:
    """Do as a healthy server does."""
    handler.reply(*handler.server.answer(handler.body))


def refuse(status: int, answer: Any = b"not now", **headers: str) -> Fault:
    """Answer with this status."""
    return lambda handler: handler.reply(status, answer, **headers)


def respond(answer: Any) -> Fault:
    """Answer 200 with something else than scores."""
    return refuse(200, answer)


def hang(seconds: float) -> Fault:
    """Do not answer for so long, and hang up then."""

    def fault(handler: Handler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return fault


def hang_up(handler: Handler) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True
    handler.connection.shutdown(2)


def hang_up_midway(handler: Handler) -> None:
    """Close the connection within the answer."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'[{"index": 0, ')
    hang_up(handler)


def drip(handler: Handler) -> None:
    """Send a byte now and then, for ever as it seems."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" ")
        time.sleep(0.05)
    hang_up(handler)


def drip_headers(handler: Handler) -> None:
    """Send a header now and then, without an end."""
    handler.send_response(200)
    for number in range(40):
        handler.send_header(f"x-{number}", "y")
        handler.flush_headers()
        time.sleep(0.05)
    hang_up(handler)


@contextmanager
def serving(dialect: str = "tei", score: Score = lengths, *, key: str | None = None) -> Iterator[RerankServer]:
    """A server for as long as the block lasts."""
    with running(RerankServer(dialect, score, key=key)) as server:
        yield server


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """The same of a server of another kind."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
