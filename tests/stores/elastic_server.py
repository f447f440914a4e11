"""A double of Elasticsearch and of OpenSearch on this machine: it checks each request by schema, and answers it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import numpy as np

from tests.stores import elastic_schemas

TYPES = {
    "text": "text",
    "lang": "text",
    "lang.keyword": "keyword",
    "size": "long",
    "rate": "double",
    "free": "boolean",
    "tags": "keyword",
}
VECTOR_TYPES = {"elasticsearch": "dense_vector", "opensearch": "knn_vector"}


class ElasticServer(ThreadingHTTPServer):
    """One index, `articles`; `faults` take the place of answers, and `paths`, `headers` and `bodies` are kept."""

    daemon_threads = True

    def __init__(self, engine: str, documents: dict[str, dict[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine, self.documents = engine, documents
        self.search_schema = jsonschema.Draft202012Validator(elastic_schemas.search_schema(engine))
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[Any] = []
        self.faults: list[tuple[int, Any]] = []
        self.scrolls: dict[str, list[dict[str, Any]]] = {}
        self.cleared = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, target: str, lines: list[Any], content_type: str) -> tuple[int, Any]:
        url = urlsplit(target)
        if self.faults:
            return self.faults.pop(0)
        if url.path.startswith("/articles/"):
            handler = {
                "_search": self.search,
                "_msearch": self.multi_search,
                "_mget": self.multi_get,
                "_field_caps": self.field_caps,
            }.get(url.path.removeprefix("/articles/"))
        elif url.path == "/_search/scroll":
            handler = self.clear_scroll if method == "DELETE" else self.scroll
        else:
            handler = None
        if handler is None:
            return 404, {"error": {"type": "index_not_found_exception", "reason": f"no such {url.path}"}, "status": 404}
        wanted = "application/x-ndjson" if handler == self.multi_search else "application/json"
        if content_type != wanted:
            return 406, {"error": f"Content-Type header [{content_type}] is not supported"}
        try:
            return 200, handler(lines, parse_qs(url.query))
        except jsonschema.ValidationError as error:
            reason = f"{error.json_path}: {error.message}"[:300]
            return 400, {"error": {"type": "parsing_exception", "reason": reason}, "status": 400}

    def field_caps(self, lines: list[Any], options: dict[str, list[str]]) -> Any:
        jsonschema.validate(lines[0], elastic_schemas.FIELD_CAPS)
        assert options == {"fields": ["*"]}
        types = {**TYPES, "vector": VECTOR_TYPES[self.engine], "_id": "_id"}
        return {"indices": ["articles"], "fields": {name: {type_: {"type": type_}} for name, type_ in types.items()}}

    def multi_get(self, lines: list[Any], _: Any) -> Any:
        jsonschema.validate(lines[0], elastic_schemas.MULTI_GET)
        docs = []
        for one in lines[0]["docs"]:
            found = one["_id"] in self.documents
            source = {"_source": self.source(one["_id"], one.get("_source", True))} if found else {}
            docs.append({"_index": "articles", "_id": one["_id"], "found": found, **source})
        return {"docs": docs}

    def multi_search(self, lines: list[Any], options: dict[str, list[str]]) -> Any:
        for header in lines[::2]:
            jsonschema.validate(header, elastic_schemas.MULTI_SEARCH_HEADER)
        return {"took": 1, "responses": [self.search([body], {}) for body in lines[1::2]]}

    def search(self, lines: list[Any], options: dict[str, list[str]]) -> Any:
        (body,) = lines
        self.search_schema.validate(body)
        scores = self.evaluate(body["query"]) if "query" in body else {}
        if "knn" in body:
            for id_, score in self.nearest(body["knn"]["field"], body["knn"], body["knn"]["query_vector"]).items():
                scores[id_] = scores.get(id_, 0.0) + score
        ordered = sorted(scores, key=lambda id_: -scores[id_]) if body.get("sort") != ["_doc"] else [*self.documents]
        hits = [self.hit(id_, scores[id_], body) for id_ in ordered]
        size = body.get("size", 10)
        answer = {"timed_out": False, "_shards": {"total": 1, "failed": 0}, "hits": {"hits": hits[:size]}}
        if "scroll" in options:
            answer["_scroll_id"] = f"s{len(self.paths)}"
            self.scrolls[answer["_scroll_id"]] = hits[size:]
            self.page = size
        return answer

    def scroll(self, lines: list[Any], _: Any) -> Any:
        jsonschema.validate(lines[0], elastic_schemas.SCROLL)
        id_ = lines[0]["scroll_id"]
        hits, self.scrolls[id_] = self.scrolls[id_][: self.page], self.scrolls[id_][self.page :]
        return {"_scroll_id": id_, "timed_out": False, "_shards": {"failed": 0}, "hits": {"hits": hits}}

    def clear_scroll(self, lines: list[Any], _: Any) -> Any:
        jsonschema.validate(lines[0], elastic_schemas.CLEAR_SCROLL)
        for id_ in lines[0]["scroll_id"]:
            del self.scrolls[id_]
            self.cleared += 1
        return {"succeeded": True, "num_freed": len(lines[0]["scroll_id"])}

    def hit(self, id_: str, score: float, body: dict[str, Any]) -> dict[str, Any]:
        hit: dict[str, Any] = {"_index": "articles", "_id": id_, "_score": score}
        if body.get("_source", True) is not False:
            hit["_source"] = self.source(id_, body.get("_source", True))
        if "fields" in body:
            if self.engine == "opensearch" and "vector" in body["fields"]:
                raise jsonschema.ValidationError("KNN Vector do not support fields search")
            hit["fields"] = {name: self.documents[id_][name] for name in body["fields"] if name in self.documents[id_]}
        return hit

    def source(self, id_: str, wanted: Any) -> dict[str, Any]:
        source = dict(self.documents[id_])
        if self.engine == "elasticsearch":
            source.pop("vector", None)  # as 9.2 does
        if isinstance(wanted, dict):
            return {name: value for name, value in source.items() if name not in wanted["excludes"]}
        return {name: value for name, value in source.items() if wanted is True or name in wanted}

    def nearest(self, field: str, options: dict[str, Any], vector: list[float]) -> dict[str, float]:
        """As the engines do with unit or any vectors and inner products: scores above 0."""
        allowed = self.evaluate(options["filter"]) if "filter" in options else self.documents
        products = {id_: float(np.dot(vector, self.documents[id_][field])) for id_ in allowed}
        best = sorted(products, key=lambda id_: -products[id_])[: options["k"]]
        boost = options.get("boost", 1.0)
        return {id_: boost * (products[id_] + 1 if products[id_] >= 0 else 1 / (1 - products[id_])) for id_ in best}

    def evaluate(self, query: dict[str, Any]) -> dict[str, float]:
        """The documents that meet a query, and their scores."""
        ((name, value),) = query.items()
        if name == "bool":
            return self.combine(value)
        if name == "knn":
            ((field, options),) = value.items()
            return self.nearest(field, options, options["vector"])
        if name in ("match", "multi_match"):
            text = value["query"] if name == "multi_match" else next(iter(value.values()))["query"]
            fields = value["fields"] if name == "multi_match" else [*value]
            words = set(text.lower().split())
            found = {
                id_: sum(1.0 + len(word) / 10 for field in fields for word in words & set(str(one[field]).split()))
                for id_, one in self.documents.items()
            }
            return {id_: score for id_, score in found.items() if score}
        if name == "ids":
            return dict.fromkeys(self.documents.keys() & {*value["values"]}, 1.0)
        return {id_: 1.0 for id_, one in self.documents.items() if self.holds(name, value, id_, one)}

    def combine(self, parts: dict[str, Any]) -> dict[str, float]:
        def listed(name: str) -> list[dict[str, Any]]:
            given = parts.get(name, [])
            return given if isinstance(given, list) else [given]

        found = dict.fromkeys(self.documents, 0.0)
        for one in listed("must"):
            scores = self.evaluate(one)
            found = {id_: score + scores[id_] for id_, score in found.items() if id_ in scores}
        for name in ("filter", "must_not"):
            for met in map(self.evaluate, listed(name)):
                found = {id_: score for id_, score in found.items() if (id_ in met) == (name == "filter")}
        should = [self.evaluate(one) for one in listed("should")]
        if should and not {"must", "filter"} & {*parts}:
            found = {id_: score for id_, score in found.items() if any(id_ in scores for scores in should)}
        return {id_: score + sum(scores.get(id_, 0.0) for scores in should) for id_, score in found.items()}

    def holds(self, name: str, value: Any, id_: str, document: dict[str, Any]) -> bool:
        if name in ("match_all", "match_none"):
            return name == "match_all"
        field = value["field"] if name == "exists" else next(iter(value))
        assert TYPES[field] != "text", "a text field is matched by its words"
        found = document.get(field.removesuffix(".keyword"))
        present = found is not None and found != []
        if name == "exists" or not present:
            return name == "exists" and present
        if name == "terms":
            return any(one in value[field] for one in (found if isinstance(found, list) else [found]))
        tests = {"lt": found.__lt__, "lte": found.__le__, "gt": found.__gt__, "gte": found.__ge__}
        return all(tests[one](type(found)(bound)) for one, bound in value[field].items())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ElasticServer

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"])).decode()
        content_type = self.headers["content-type"]
        ndjson = content_type == "application/x-ndjson"
        assert not ndjson or data.endswith("\n")
        lines = [json.loads(line) for line in (data.splitlines() if ndjson else [data])]
        self.server.paths.append(self.path)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.bodies.append(lines)
        status, answer = self.server.answer(self.command, self.path, lines, content_type)
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_DELETE = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def running(engine: str, documents: dict[str, dict[str, Any]]) -> Iterator[ElasticServer]:
    """A server of this engine until the end of the block."""
    server = ElasticServer(engine, documents)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
