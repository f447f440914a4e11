"""An index of Elasticsearch or OpenSearch, opened as a store of texts and vectors and as a first stage."""

from __future__ import annotations

import json
import logging
import os
import threading
from base64 import b64encode
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, Final, Self
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from crossknn._checks import check_choice, check_range, invalid
from crossknn.encoders.base import check_vectors
from crossknn.errors import InputError, ScorerError, StoreError
from crossknn.items.filters import condition_of
from crossknn.items.items import Items
from crossknn.retrievers.base import BaseRetriever
from crossknn.scorers.remote.client import PLAIN_HEADERS, HttpClient
from crossknn.scorers.remote.cost import CostTracker, Usage
from crossknn.stores.base import StoreSearch, check_all_found
from crossknn.stores.elastic_filter import ids_query, to_query
from crossknn.stores.items import StoreItems, TextFields
from crossknn.types import EMPTY_PROPOSAL, Encoder, Mask, Proposal, Rows, Vectors
from crossknn.vectors.ranking import order_rows

ENGINES: Final = ("elasticsearch", "opensearch")
KEY_VARIABLES: Final = {"elasticsearch": "ELASTIC_API_KEY", "opensearch": "OPENSEARCH_API_KEY"}
MAX_WINDOW: Final = 10_000  # hits of a request, and candidates of a kNN search, that both engines allow by default
HYBRID_NEIGHBORS: Final = 1_000  # nearest vectors that count in a hybrid search, or n
READ_DOCUMENTS: Final = 1_000  # of one page
READ_VECTORS: Final = 500  # documents whose vectors are read by one request
SCROLL: Final = "5m"  # for which the engine keeps the place between two pages
MAX_RESPONSE: Final = 2**26  # bytes
TIMEOUT, RETRIES = 60.0, 3
CLEAR_TIMEOUT: Final = 5.0  # seconds to free a scroll, which expires anyway

logger = logging.getLogger("crossknn")

Hits = list[dict[str, Any]]


class ElasticStore(StoreSearch):
    """Search in an index of Elasticsearch 8 or later, or OpenSearch 2.4 or later, over its present documents.

    Filters by field and the rows that are not wanted again are part of each kNN search. Texts and vectors are read when
    they are needed; ids and fields are held in memory. Estimates are inner products with the vectors themselves; a
    field compared by cosine must hold vectors of length 1. A search finds 10,000 rows at most.

    Args:
        url: Of the engine, such as `https://localhost:9200`, with a user and a password or without.
        index: Its name, or an alias.
        engine: "elasticsearch" or "opensearch".
        text: The field with the text, or several, which are joined by a space.
        fields: To keep for filters and hits; by default all but the texts and the vectors.
        vector: The field of vectors (`dense_vector` or `knn_vector`); None for an index without.
        api_key: Sent as `Authorization: ApiKey …`; by default that of the environment, `ELASTIC_API_KEY` or
            `OPENSEARCH_API_KEY`.
        num_candidates: Of Elasticsearch's kNN search on each shard; by default 2 n.
        timeout: Seconds for a request.
    """

    def __init__(
        self,
        url: str,
        index: str,
        *,
        engine: str = "elasticsearch",
        text: str | Sequence[str] = "text",
        fields: Sequence[str] | None = None,
        vector: str | None = "vector",
        api_key: str | None = None,
        num_candidates: int | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        super().__init__()
        check_choice("engine", engine, ENGINES)
        if not isinstance(index, str) or not index:
            raise invalid("index", "the name of an index", index)
        if num_candidates is not None:
            check_range("num_candidates", num_candidates, 1, MAX_WINDOW)
        self.name, self.engine, self.vector = index, engine, vector
        self._num_candidates = num_candidates
        self._client = ElasticClient(url, index, engine, api_key, timeout)
        self._text, self._kept = TextFields(text), fields
        self._types = self._client.field_types()
        if vector is not None and vector not in self._types:
            raise InputError(f"The index {index!r} has no field {vector!r}, named by `vector`.")
        with closing(self._read_records()) as records:
            self.items = StoreItems.of_store(records, self._read_texts)
        self.dim = 0
        if vector is not None:
            self.dim = len(self._vectors_of([self.items.id(0)])[0])

    def full_text(self, *, name: str = "bm25") -> ElasticRetriever:
        """The engine's BM25 as a retriever; by its name it takes the place of crossknn's own."""
        return ElasticRetriever(self, name)

    def hybrid(self, encoder: Encoder, *, vector_boost: float = 1.0, name: str = "hybrid") -> ElasticRetriever:
        """BM25 and kNN in one request, scored by their weighted sum, as a retriever.

        Args:
            encoder: Makes query vectors.
            vector_boost: The weight of kNN's score; BM25's is 1.
        """
        return ElasticRetriever(self, name, encoder, vector_boost)

    def find(self, bodies: list[dict[str, Any]]) -> list[tuple[Rows, list[float]]]:
        """The rows and scores of the hits of several searches; documents that are new are left out."""
        found = []
        for hits in self._client.search(bodies):
            rows = self.items._lookup.find([hit["_id"] for hit in hits])
            scores = [float(hit["_score"]) for hit in hits]
            found.append((rows[rows >= 0], [score for score, row in zip(scores, rows, strict=True) if row >= 0]))
        return found

    def conditions(self, allowed: Mask | None, exclude: Rows) -> list[dict[str, Any]]:
        """Filter queries for a mask and for rows that are not wanted."""
        conditions = [] if allowed is None else [self._mask_query(allowed)]
        if len(exclude):
            conditions.append({"bool": {"must_not": [ids_query(self.items.ids_of(exclude))]}})
        return conditions

    def match_query(self, query: str) -> dict[str, Any]:
        """A full-text query over the fields of the text."""
        names = self._text.names
        if len(names) == 1:
            return {"match": {names[0]: {"query": query}}}
        return {"multi_match": {"query": query, "fields": names, "type": "most_fields"}}

    def knn_body(self, query: Vectors, n: int, conditions: list[dict[str, Any]], boost: float = 1.0) -> dict[str, Any]:
        """The part of a search that finds the nearest vectors: a `knn` section, or OpenSearch's query."""
        filter_ = {"filter": {"bool": {"filter": conditions}}} if conditions else {}
        n = min(n, len(self), MAX_WINDOW)
        if self.engine == "opensearch":
            return {"query": {"knn": {self.vector: {"vector": query.tolist(), "k": n, "boost": boost, **filter_}}}}
        candidates = min(max(self._num_candidates or 2 * n, n), MAX_WINDOW)
        section = {"field": self.vector, "query_vector": query.tolist(), "k": n, "num_candidates": candidates}
        return {"knn": {**section, "boost": boost, **filter_}}

    def _mask_query(self, allowed: Mask) -> dict[str, Any]:
        condition = condition_of(allowed, self.items)
        pushed = None if condition is None else to_query(condition, self._types)
        if pushed is not None:
            return pushed
        rows = np.flatnonzero(allowed)
        if 2 * len(rows) <= len(allowed):
            return ids_query(self.items.ids_of(rows))
        return {"bool": {"must_not": [ids_query(self.items.ids_of(np.flatnonzero(~np.asarray(allowed))))]}}

    def _nearest(self, queries: Vectors, n: int, exclude: Sequence[Rows], allowed: Mask | None) -> list[Proposal]:
        bodies = [
            {**self.knn_body(query, n, self.conditions(allowed, rows)), "size": min(n, MAX_WINDOW), "_source": False}
            for query, rows in zip(queries, exclude, strict=True)
        ]
        found = zip(queries, self.find(bodies), strict=True)
        return [Proposal(rows, self.take(rows) @ query) for query, (rows, _) in found]

    def _read_vectors(self, rows: Rows) -> Vectors:
        if self.vector is None:
            raise InputError(f"The index {self.name!r} was opened without vectors: name their field with `vector`.")
        vectors: list[Sequence[float]] = []
        for start in range(0, len(rows), READ_VECTORS):
            vectors += self._vectors_of(self.items.ids_of(rows[start : start + READ_VECTORS]))
        return np.array(vectors, np.float32).reshape(-1, self.dim)

    def _vectors_of(self, ids: list[str]) -> list[Sequence[float]]:
        found = self._client.vectors(ids, str(self.vector))
        check_all_found(self.name, len(found), len(ids))
        for id_ in ids:
            if not found[id_]:
                raise StoreError(
                    f"The document {id_!r} of {self.name!r} has no vector {self.vector!r}: crossknn needs all of them."
                )
        return [found[id_] for id_ in ids]

    def _read_texts(self, rows: Rows) -> list[str]:
        ids = self.items.ids_of(rows)
        found = self._client.documents(list(dict.fromkeys(ids)), self._text.names)
        check_all_found(self.name, len(found), len(set(ids)))
        return [self._text.read(found[id_], row) for id_, row in zip(ids, rows.tolist(), strict=True)]

    def _read_records(self) -> Generator[dict[str, Any], None, None]:
        """Ids and fields of all documents."""
        left_out = [*self._text.names, *([] if self.vector is None else [self.vector])]
        source: Any = {"excludes": left_out} if self._kept is None else list(self._kept) or False
        body = {"query": {"match_all": {}}, "size": READ_DOCUMENTS, "_source": source}
        with closing(self._client.scroll(body)) as hits:
            for hit in hits:
                yield {**hit.get("_source", {}), "_id": hit["_id"]}


class ElasticRetriever(BaseRetriever):
    """Retrieval by the engine's full-text search, or by it and kNN; made by `full_text` and `hybrid`."""

    def __init__(
        self, store: ElasticStore, name: str, encoder: Encoder | None = None, vector_boost: float = 1.0
    ) -> None:
        super().__init__(name)
        self._store, self._encoder, self._boost = store, encoder, vector_boost

    def fit(self, items: Items) -> Self:
        """Check that these are the items of the index."""
        if items is not self._store.items:
            raise InputError(f"the retriever {self.name!r} finds items of an ElasticStore: search in store.items.")
        self.n_items = len(items)
        return self

    def _retrieve(self, queries: Sequence[str], n: int, allowed: Mask | None) -> list[Proposal]:
        if n < 1 or not queries or (allowed is not None and not allowed.any()):
            return [EMPTY_PROPOSAL for _ in queries]
        conditions = self._store.conditions(allowed, EMPTY_PROPOSAL.rows)
        bodies = [self._body(query, n, conditions) for query in queries]
        if self._encoder is not None:
            vectors = check_vectors(self._encoder.encode_queries(queries), queries, dim=self._store.dim)
            bodies = [self._add_knn(*pair, n, conditions) for pair in zip(bodies, vectors, strict=True)]
        return [order_rows(rows, np.array(scores, np.float32)) for rows, scores in self._store.find(bodies)]

    def _body(self, query: str, n: int, conditions: list[dict[str, Any]]) -> dict[str, Any]:
        matched = {"bool": {"must": [self._store.match_query(query)], "filter": conditions}}
        return {"query": matched, "size": min(n, MAX_WINDOW), "_source": False}

    def _add_knn(
        self, body: dict[str, Any], vector: Vectors, n: int, conditions: list[dict[str, Any]]
    ) -> dict[str, Any]:
        nearest = self._store.knn_body(vector, max(n, HYBRID_NEIGHBORS), conditions, self._boost)
        if "knn" in nearest:  # Elasticsearch adds the scores of both
            return {**body, **nearest}
        return {**body, "query": {"bool": {"should": [body["query"], nearest["query"]]}}}


class ElasticClient:
    """The requests that are needed, to one index."""

    def __init__(self, url: str, index: str, engine: str, api_key: str | None, timeout: float) -> None:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise invalid("url", "the address of a server, such as http://localhost:9200", url)
        self._base, self._index, self._timeout = parts, index, timeout
        key = api_key or os.environ.get(KEY_VARIABLES[engine])
        self._headers = dict(PLAIN_HEADERS)
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        elif key:
            self._headers["authorization"] = f"ApiKey {key}"
        hint = f"Set `api_key` or the environment variable {KEY_VARIABLES[engine]}."
        self._hints = {401: hint, 403: hint, 404: "Check the address and the name of the index."}
        self._engine = engine
        self._clients: dict[tuple[str, str], HttpClient] = {}

    def field_types(self) -> dict[str, str]:
        """The type of every field; none for one that has several."""
        fields = self._send("_field_caps?fields=*", {})["fields"]
        return {name: next(iter(types)) for name, types in fields.items() if len(types) == 1}

    def search(self, bodies: list[dict[str, Any]]) -> list[Hits]:
        """The hits of several searches, by one request."""
        if not bodies:
            return []
        lines = [line for body in bodies for line in ({}, body)]
        return [self._hits_of(one) for one in self._send("_msearch", lines)["responses"]]

    def documents(self, ids: list[str], names: list[str]) -> dict[str, dict[str, Any]]:
        """These fields of the documents of these ids, without those that do not exist."""
        if not ids:
            return {}
        found = self._send("_mget", {"docs": [{"_id": id_, "_source": names} for id_ in ids]})["docs"]
        return {one["_id"]: one.get("_source", {}) for one in found if one.get("found")}

    def vectors(self, ids: list[str], name: str) -> dict[str, Sequence[float]]:
        """The vectors of the documents of these ids, empty for documents without.

        Elasticsearch 9.2 leaves vectors out of sources, and OpenSearch has none in `fields`.
        """
        if self._engine == "opensearch":
            return {id_: source.get(name, ()) for id_, source in self.documents(ids, [name]).items()}
        body = {"query": ids_query(ids), "size": len(ids), "fields": [name], "_source": False}
        return {hit["_id"]: hit.get("fields", {}).get(name, ()) for hit in self.search([body])[0]}

    def scroll(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """All hits of a search, page by page, as they were when it began; closing it frees the engine's memory."""
        response, id_ = self._send(f"_search?scroll={SCROLL}", {**body, "sort": ["_doc"]}), None
        try:
            while hits := self._hits_of(response):
                id_ = response["_scroll_id"]
                yield from hits
                response = self._send("/_search/scroll", {"scroll": SCROLL, "scroll_id": id_})
        finally:
            self._clear_scroll(response.get("_scroll_id", id_))

    def _clear_scroll(self, id_: str | None) -> None:
        if id_ is None:
            return
        try:
            self._send("/_search/scroll", {"scroll_id": [id_]}, method="DELETE")
        except StoreError as error:
            logger.info("A scroll was not cleared, and expires in %s: %s", SCROLL, error)

    def _hits_of(self, response: dict[str, Any]) -> Hits:
        if "error" in response:
            reason = json.dumps(response["error"], ensure_ascii=False)[:300]
            raise StoreError(f"The index {self._index!r} refused a search: {reason}.")
        shards = response.get("_shards", {})
        if shards.get("failed") or response.get("timed_out"):
            failed = f"{shards.get('failed', 0)} of {shards.get('total', '?')} shards failed"
            raise StoreError(f"The index {self._index!r} gave part of the hits: {failed}. Try again.")
        return list(response["hits"]["hits"])

    def _send(self, target: str, body: Any, *, method: str = "POST") -> Any:
        several = isinstance(body, list)
        data = "".join(json.dumps(one) + "\n" for one in body) if several else json.dumps(body)
        try:
            client = self._client(target, method, several=several)
            response = client.post(data.encode(), Usage(), threading.Event())
            return json.loads(response)
        except ScorerError as error:
            raise StoreError(str(error)) from error
        except ValueError as error:
            raise StoreError(f"The server of the index {self._index!r} sent no JSON. Check its address.") from error

    def _client(self, target: str, method: str, *, several: bool) -> HttpClient:
        if (method, target) not in self._clients:
            path, _, query = target.partition("?")
            path = path if path.startswith("/") else f"/{quote(self._index, safe=',*-')}/{path}"
            host = self._base.netloc.rpartition("@")[2]
            url = self._base._replace(netloc=host, path=self._base.path.rstrip("/") + path, query=query)
            headers = {**self._headers, **({"content-type": "application/x-ndjson"} if several else {})}
            clears = method == "DELETE"
            self._clients[method, target] = HttpClient(
                url,
                headers,
                timeout=min(self._timeout, CLEAR_TIMEOUT) if clears else self._timeout,
                retries=0 if clears else RETRIES,
                costs=CostTracker(None, None, None),
                hints=self._hints,
                min_response_bytes=MAX_RESPONSE,
                method=method,
            )
        return self._clients[method, target]
