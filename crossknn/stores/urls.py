"""Stores by URL: `qdrant://host/collection`, `lancedb:///folder/table`, `elasticsearch://host/index`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from crossknn._checks import invalid
from crossknn._imports import import_extra

if TYPE_CHECKING:
    from crossknn.stores.base import StoreSearch

PORTS: Final = {"qdrant": 6333, "elasticsearch": 9200, "opensearch": 9200}
SCHEMES: Final = (*PORTS, "lancedb")
EXPECTED: Final = (
    "qdrant://host[:port]/collection, qdrant:///folder/collection, lancedb:///folder/table, "
    "elasticsearch://host[:port]/index or opensearch://host[:port]/index, with ?tls=true where needed"
)


def open_store(
    url: str,
    *,
    text: str | Sequence[str] = "text",
    id: str | None = None,
    fields: Sequence[str] | None = None,
    vector: str | None = None,
) -> StoreSearch:
    """The store that a URL names; options are those of its class, whose defaults hold for None.

    `vector="none"` opens an index of Elasticsearch or OpenSearch without vectors.
    Keys come from the environment: `QDRANT_API_KEY`, `ELASTIC_API_KEY`, `OPENSEARCH_API_KEY`.
    """
    parts = urlsplit(url) if isinstance(url, str) else None
    folder, _, name = unquote(parts.path).rpartition("/") if parts is not None else ("", "", "")
    if parts is None or parts.scheme not in SCHEMES or not name or parts.query not in ("", "tls=true"):
        raise invalid("url", EXPECTED, without_password(url))
    given: dict[str, Any] = {"text": text, "fields": fields}
    given |= {key: value for key, value in {"id": id, "vector": vector}.items() if value is not None}
    if parts.scheme == "lancedb":
        from crossknn.stores.lance import LanceStore

        return LanceStore(parts.netloc + folder or "/", name, **given)
    if parts.scheme == "qdrant":
        from crossknn.stores.qdrant import QdrantStore

        return QdrantStore(_qdrant_client(parts, folder), name, **given)
    from crossknn.stores.elastic import ElasticStore

    if id is not None:
        raise invalid("id", "left out: the ids are those of the documents", id)
    if vector == "none":
        given["vector"] = None
    return ElasticStore(_address(parts, folder), name, engine=parts.scheme, **given)


def without_password(url: str) -> str:
    """The URL without user and password, for messages and files."""
    parts = urlsplit(url) if isinstance(url, str) else None
    return repr(url) if parts is None else parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _address(parts: SplitResult, folder: str) -> str:
    if not parts.hostname:
        raise invalid("url", EXPECTED, without_password(parts.geturl()))
    port = "" if parts.port else f":{PORTS[parts.scheme]}"
    return f"{'https' if parts.query else 'http'}://{parts.netloc}{port}{folder}"


def _qdrant_client(parts: SplitResult, folder: str) -> Any:
    client = import_extra("qdrant_client", extra="qdrant").QdrantClient
    if not parts.netloc:
        return client(path=folder)
    return client(url=_address(parts, folder), api_key=os.environ.get("QDRANT_API_KEY"))
