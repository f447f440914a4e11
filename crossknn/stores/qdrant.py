"""A Qdrant collection, on a server, in the client's local mode or in a shard of Qdrant Edge, opened for search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive, invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.items.fields import BOOL, FLOAT, INT, LIST, STRING
from crossknn.items.filters import ID, RANGES, Comparison, Logic, condition_of
from crossknn.stores.base import NO_VECTORS, StoreSearch, check_all_found, store_errors
from crossknn.stores.items import StoreItems, TextFields
from crossknn.types import Mask, Proposal, Rows, Vectors, VectorSearch

READ_POINTS: Final = 2_000  # of one page
WRITE_POINTS: Final = 1_000  # whose vectors are written at once
PRODUCTS: Final = {"dot": "Dot", "cosine": "Cosine"}  # distances that are inner products, of unit vectors the latter
RANGE_NAMES: Final = {"lt": "lt", "le": "lte", "gt": "gt", "ge": "gte"}
MAX_EXACT_INTEGER: Final = 2**53  # Qdrant compares numbers as floats
NOTHING: Final[dict[str, Any]] = {"must": [{"has_id": []}]}  # a filter that no point meets

PointId = int | str
Result = TypeVar("Result")


class Point(NamedTuple):
    """What was read of a point."""

    id: PointId
    payload: Mapping[str, Any]
    vector: Sequence[float] | None


class Engine(Protocol):
    """What Qdrant's client and an edge shard both can do; filters are as in Qdrant's REST interface."""

    matches_booleans: bool

    def vector(self, name: str) -> tuple[int, str]:
        """Dimensions and distance ("dot", …) of a named vector; `KeyError` if there is none."""

    def scroll(self, offset: PointId | None, payload: bool | list[str]) -> tuple[list[Point], PointId | None]:
        """A page of points, by id, and where the next one begins."""

    def retrieve(self, ids: list[PointId], *, payload: list[str] | bool = False, vector: str | None) -> list[Point]:
        """These points, in any order, without those that do not exist."""

    def query(
        self, vectors: Vectors, name: str, n: int, filters: list[dict[str, Any]], *, exact: bool, ef: int | None
    ) -> list[list[tuple[PointId, float]]]:
        """For each vector the ids and scores of the best `n` points that meet its filter."""

    def add_vector(self, name: str, dim: int) -> None:
        """Add a named vector, compared by inner product, to the schema."""

    def write_vectors(self, name: str, ids: list[PointId], vectors: Vectors) -> None:
        """Set this named vector of points."""

    def count(self, name: str) -> int:
        """How many points have this named vector."""


class QdrantStore(StoreSearch):
    """Search in a Qdrant collection, over the points it has when this is made.

    Filters by field and the rows that are not wanted again are part of each query, so that Qdrant applies them. Texts
    are read when they are needed; ids and fields are held in memory.

    Args:
        client: A `qdrant_client.QdrantClient`, of a server or in local mode, or a `qdrant_edge.EdgeShard`.
        collection: Its name; an edge shard has none.
        text: The payload's field with the text, or several, which are joined by a space.
        id: A field of the payload that holds the items' ids; by default they are the points'.
        fields: Of the payload, to keep for filters and hits; by default all.
        vector: The name of the vector to search, if it has one. It must be compared by dot product, or by cosine.
        exact: Compare with every vector, instead of using Qdrant's HNSW index.
        ef: Of Qdrant's search (`hnsw_ef`).
        write_columns: Allow `with_columns` to add a named vector to the collection, with the prior's latent factors and
            biases, so that the whole posterior mean is searched by Qdrant. Otherwise the rows that it proposes are
            ordered by it.
    """

    def __init__(
        self,
        client: Any,
        collection: str | None = None,
        *,
        text: str | Sequence[str] = "text",
        id: str | None = None,
        fields: Sequence[str] | None = None,
        vector: str = "",
        exact: bool = False,
        ef: int | None = None,
        write_columns: bool = False,
    ) -> None:
        super().__init__()
        if ef is not None:
            check_positive("ef", ef)
        self._name = collection or "edge shard"
        self._engine = _open_engine(client, collection)
        self._vector, self._exact, self._ef, self._write_columns = vector, exact, ef, write_columns
        self.dim, self._distance = self._read_schema()
        self._id = id
        self._text = TextFields(text)
        self._point_ids: list[PointId] = []
        self._kept = fields
        self.items = StoreItems.of_store(self._read_records(), self._read_texts)
        self._rows = {point: row for row, point in enumerate(self._point_ids)}

    def with_columns(self, *columns: NDArray[Any]) -> VectorSearch:
        """The same search with columns, each (items, width), appended to every vector.

        With `write_columns` they are stored as another named vector of the points, which later searches use again.
        """
        if not self._write_columns:
            return super().with_columns(*columns)
        self._check_columns(columns)
        values = np.concatenate(columns, axis=1).astype(np.float32)
        digest = blake2b(repr((self._vector, self._point_ids)).encode() + values.tobytes(), digest_size=8)
        augmented = copy(self)
        augmented._cache, augmented._distance = NO_VECTORS, "dot"
        augmented._vector, augmented.dim = f"crossknn_{digest.hexdigest()}", self.dim + values.shape[1]
        with self._errors():
            try:
                self._engine.vector(augmented._vector)
            except KeyError:
                self._engine.add_vector(augmented._vector, augmented.dim)
            if self._engine.count(augmented._vector) < len(self):
                self._write(augmented._vector, values)
        return augmented

    def _write(self, name: str, columns: Vectors) -> None:
        for start in range(0, len(self), WRITE_POINTS):
            rows = np.arange(start, min(start + WRITE_POINTS, len(self)))
            vectors = np.concatenate([self._read_vectors(rows), columns[rows]], axis=1)
            self._engine.write_vectors(name, self._ids_of(rows), vectors)

    def _nearest(self, queries: Vectors, n: int, exclude: Sequence[Rows], allowed: Mask | None) -> list[Proposal]:
        condition = self._filter_of(allowed)
        filters = [self._without(condition, rows) for rows in exclude]
        with self._errors():
            found = self._engine.query(queries, self._vector, n, filters, exact=self._exact, ef=self._ef)
        # Qdrant normalizes both vectors of a cosine, and returns items' vectors so.
        norms = np.linalg.norm(queries, axis=1) if self._distance == "cosine" else np.ones(len(queries))
        return [self._propose(points, float(norm)) for points, norm in zip(found, norms, strict=True)]

    def _propose(self, points: list[tuple[PointId, float]], norm: float) -> Proposal:
        known = [(self._rows[id_], norm * score) for id_, score in points if id_ in self._rows]  # others are new
        rows, estimates = zip(*known, strict=True) if known else ((), ())
        return Proposal(np.array(rows, np.int64), np.array(estimates, np.float32))

    def _filter_of(self, allowed: Mask | None) -> dict[str, Any]:
        """Qdrant's filter for a mask: its conditions where Qdrant has them, else ids, whichever are fewer."""
        if allowed is None:
            return {}
        condition = condition_of(allowed, self.items)
        if (
            condition is not None
            and (pushed := to_filter(condition, self._point_ids_of, booleans=self._engine.matches_booleans)) is not None
        ):
            return pushed
        rows = np.flatnonzero(allowed)
        if 2 * len(rows) <= len(allowed):
            return {"must": [{"has_id": self._ids_of(rows)}]}
        return {"must_not": [{"has_id": self._ids_of(np.flatnonzero(~np.asarray(allowed)))}]}

    def _without(self, condition: dict[str, Any], rows: Rows) -> dict[str, Any]:
        if not len(rows):
            return condition
        return {"must": [condition] if condition else [], "must_not": [{"has_id": self._ids_of(rows)}]}

    def _point_ids_of(self, ids: Sequence[Any]) -> list[PointId]:
        return self._ids_of(self.items.rows_of(ids, missing="skip"))

    def _read_vectors(self, rows: Rows) -> Vectors:
        with self._errors():
            points = self._engine.retrieve(self._ids_of(rows), vector=self._vector)
        found = {point.id: point.vector for point in points if point.vector is not None}
        check_all_found(self._name, len(found), len(rows))
        return np.array([found[id_] for id_ in self._ids_of(rows)], np.float32).reshape(-1, self.dim)

    def _read_texts(self, rows: Rows) -> list[str]:
        with self._errors():
            points = self._engine.retrieve(self._ids_of(rows), payload=self._text.names, vector=None)
        found = {point.id: point.payload for point in points}
        distinct = {self._point_ids[row] for row in rows.tolist()}
        check_all_found(self._name, len(found), len(distinct))
        return [self._text.read(found[self._point_ids[row]], row) for row in rows.tolist()]

    def _ids_of(self, rows: Rows) -> list[PointId]:
        return [self._point_ids[row] for row in rows.tolist()]

    def _read_records(self) -> Iterator[dict[str, Any]]:
        """Ids and fields of all points."""
        wanted: bool | list[str] = True
        if self._kept is not None:
            wanted = [*self._kept, *([] if self._id is None else [self._id])]
        used = {*self._text.names, self._id}
        for point in self._scroll(wanted):
            fields = {name: value for name, value in point.payload.items() if name not in used}
            self._point_ids.append(point.id)
            yield {**fields, ID: self._item_id(point)}

    def _item_id(self, point: Point) -> Any:
        if self._id is None:
            return str(point.id)
        if self._id not in point.payload:
            raise InputError(f"The point {point.id!r} of {self._name!r} has no field {self._id!r}, named by `id`.")
        return point.payload[self._id]

    def _scroll(self, payload: bool | list[str]) -> Iterator[Point]:
        offset: PointId | None = None
        while True:
            with self._errors():
                points, offset = self._engine.scroll(offset, payload)
            yield from points
            if offset is None:
                return

    def _read_schema(self) -> tuple[int, str]:
        with self._errors():
            try:
                dim, distance = self._engine.vector(self._vector)
            except KeyError as error:
                raise InputError(f"{self._name!r} has no vector named {self._vector!r}: {error.args[0]}.") from error
        if distance not in PRODUCTS:
            raise InputError(
                f"{self._name!r} compares vectors by {distance}. It must be dot product or cosine: crossknn searches "
                "the largest inner products."
            )
        return dim, distance

    def _errors(self) -> AbstractContextManager[None]:
        return store_errors("Qdrant", self._name)


def to_filter(
    condition: Comparison | Logic, ids_of: Callable[[Sequence[Any]], list[PointId]], *, booleans: bool = True
) -> dict[str, Any] | None:
    """Conditions as a filter of Qdrant's REST interface; None where Qdrant has none that means the same.

    Args:
        ids_of: The points of items' ids, without unknown ones.
        booleans: Whether booleans can be matched.
    """
    if isinstance(condition, Comparison):
        return None if condition.kind == BOOL and not booleans else _compare(condition, ids_of)
    parts = [to_filter(part, ids_of, booleans=booleans) for part in condition.parts]
    if None in parts:
        return None
    if condition.operator == "not":
        return {"must_not": parts}
    return {"must" if condition.operator == "and" else "should": parts}


def _compare(comparison: Comparison, ids_of: Callable[[Sequence[Any]], list[PointId]]) -> dict[str, Any] | None:
    name, kind, operator, values = comparison.field, comparison.kind, comparison.operator, comparison.values
    inverse = operator == "not_in"
    if name == ID:
        return None if operator in RANGES else {"must_not" if inverse else "must": [{"has_id": ids_of(values)}]}
    exact = all(abs(value) <= MAX_EXACT_INTEGER for value in values if kind == INT)
    if kind not in (STRING, INT, FLOAT, BOOL, LIST) or not exact or "." in name or "[" in name:
        return None  # dates are strings there, and points and brackets lead into objects
    if operator in RANGES:
        bounds = {RANGE_NAMES[operator]: values[0]}
        return None if kind == STRING else {"must": [{"key": name, "range": bounds}]}
    if inverse and kind == LIST:
        return None  # Qdrant does not tell an empty list from none
    if not values:
        return {"must_not": [{"is_empty": {"key": name}}]} if inverse else NOTHING
    if kind in (STRING, INT, LIST):
        match: dict[str, Any] = {"key": name, "match": {"any": list(values)}}
    elif kind == BOOL:
        match = {"should": [{"key": name, "match": {"value": value}} for value in values]}
    else:
        match = {"should": [{"key": name, "range": {"gte": value, "lte": value}} for value in values]}
    return {"must_not": [match, {"is_empty": {"key": name}}]} if inverse else {"must": [match]}


def _open_engine(client: Any, collection: str | None) -> Engine:
    if type(client).__name__ == "EdgeShard":
        return EdgeEngine(client)
    models = import_extra("qdrant_client", extra="qdrant").models
    if not callable(getattr(client, "query_batch_points", None)):
        raise invalid("client", "a QdrantClient or an EdgeShard", client)
    if not isinstance(collection, str) or not collection:
        raise invalid("collection", "the name of a collection", collection)
    return ClientEngine(client, collection, models)


class ClientEngine:
    """A collection behind Qdrant's client."""

    matches_booleans = True

    def __init__(self, client: Any, collection: str, models: Any) -> None:
        self._client, self._collection, self._models = client, collection, models

    def vector(self, name: str) -> tuple[int, str]:
        vectors = self._client.get_collection(self._collection).config.params.vectors
        named = vectors if isinstance(vectors, dict) else {"": vectors} if vectors else {}
        if name not in named:
            raise KeyError(f"it has {', '.join(map(repr, named)) or 'none'}")
        return named[name].size, str(named[name].distance.value).lower()

    def scroll(self, offset: PointId | None, payload: bool | list[str]) -> tuple[list[Point], PointId | None]:
        points, following = self._client.scroll(
            self._collection, offset=offset, limit=READ_POINTS, with_payload=payload, with_vectors=False
        )
        return [Point(point.id, point.payload or {}, None) for point in points], following

    def retrieve(self, ids: list[PointId], *, payload: list[str] | bool = False, vector: str | None) -> list[Point]:
        points = self._client.retrieve(self._collection, ids, with_payload=payload, with_vectors=_wanted_vector(vector))
        return [Point(point.id, point.payload or {}, _pick_vector(point.vector, vector)) for point in points]

    def query(
        self, vectors: Vectors, name: str, n: int, filters: list[dict[str, Any]], *, exact: bool, ef: int | None
    ) -> list[list[tuple[PointId, float]]]:
        models = self._models
        requests = [
            models.QueryRequest(
                query=vector.tolist(),
                using=name or None,
                limit=n,
                filter=models.Filter.model_validate(filter_) if filter_ else None,
                params=models.SearchParams(exact=exact, hnsw_ef=ef) if exact or ef else None,
            )
            for vector, filter_ in zip(vectors, filters, strict=True)
        ]
        found = self._client.query_batch_points(self._collection, requests=requests)
        return [[(point.id, point.score) for point in one.points] for one in found]

    def add_vector(self, name: str, dim: int) -> None:
        models = self._models
        config = models.DenseVectorNameConfig(dense=models.DenseVectorConfig(size=dim, distance=models.Distance.DOT))
        self._client.create_vector_name(self._collection, name, config)

    def write_vectors(self, name: str, ids: list[PointId], vectors: Vectors) -> None:
        points = [
            self._models.PointVectors(id=id_, vector={name: vector.tolist()})
            for id_, vector in zip(ids, vectors, strict=True)
        ]
        self._client.update_vectors(self._collection, points)

    def count(self, name: str) -> int:
        has = self._models.Filter(must=[self._models.HasVectorCondition(has_vector=name)])
        return int(self._client.count(self._collection, count_filter=has, exact=True).count)


class EdgeEngine:
    """A shard of Qdrant Edge, the Rust engine in this process."""

    matches_booleans = False  # its Python interface takes them for integers

    def __init__(self, shard: Any) -> None:
        self._shard, self._edge = shard, import_extra("qdrant_edge", extra="qdrant")

    def vector(self, name: str) -> tuple[int, str]:
        """A shard does not tell its schema: a stored vector, doubled, is compared with itself."""
        has = self._edge.Filter(must=[self._edge.HasVectorCondition(name)])
        points, _ = self._shard.scroll(
            self._edge.ScrollRequest(limit=1, filter=has, with_payload=False, with_vector=_wanted_vector(name))
        )
        if not points:
            raise KeyError("no point has one")
        vector = np.array(_pick_vector(points[0].vector, name), np.float32)
        own: dict[str, Any] = {"must": [{"has_id": [points[0].id]}]}
        score = self.query(2 * vector[None], name, 1, [own], exact=True, ef=None)[0][0][1]
        if np.isclose(score, 2 * vector @ vector, rtol=1e-3):
            return len(vector), "dot"
        return len(vector), "cosine" if np.isclose(score, 1, rtol=1e-3) else "a distance"

    def scroll(self, offset: PointId | None, payload: bool | list[str]) -> tuple[list[Point], PointId | None]:
        request = self._edge.ScrollRequest(offset=offset, limit=READ_POINTS, with_payload=payload, with_vector=False)
        points, following = self._shard.scroll(request)
        return [Point(_edge_id(point.id), point.payload or {}, None) for point in points], following

    def retrieve(self, ids: list[PointId], *, payload: list[str] | bool = False, vector: str | None) -> list[Point]:
        points = self._shard.retrieve(ids, with_payload=payload, with_vector=_wanted_vector(vector))
        return [Point(_edge_id(point.id), point.payload or {}, _pick_vector(point.vector, vector)) for point in points]

    def query(
        self, vectors: Vectors, name: str, n: int, filters: list[dict[str, Any]], *, exact: bool, ef: int | None
    ) -> list[list[tuple[PointId, float]]]:
        edge = self._edge
        found = []
        for vector, filter_ in zip(vectors, filters, strict=True):
            request = edge.QueryRequest(
                query=edge.Query.Nearest(vector.tolist(), using=name or None),
                limit=n,
                filter=self._filter(filter_) if filter_ else None,
                params=edge.SearchParams(exact=exact, hnsw_ef=ef),
            )
            found.append([(_edge_id(point.id), point.score) for point in self._shard.query(request)])
        return found

    def add_vector(self, name: str, dim: int) -> None:
        distance = self._edge.Distance.Dot
        self._shard.update(self._edge.UpdateOperation.create_dense_vector(name, size=dim, distance=distance))

    def write_vectors(self, name: str, ids: list[PointId], vectors: Vectors) -> None:
        points = [
            self._edge.PointVectors(id_, {name: vector.tolist()}) for id_, vector in zip(ids, vectors, strict=True)
        ]
        self._shard.update(self._edge.UpdateOperation.update_vectors(points))

    def count(self, name: str) -> int:
        has = self._edge.Filter(must=[self._edge.HasVectorCondition(name)])
        return int(self._shard.count(self._edge.CountRequest(filter=has, exact=True)))

    def _filter(self, condition: Mapping[str, Any]) -> Any:
        """A filter of the REST interface as the engine's."""
        return self._edge.Filter(**{name: [self._condition(one) for one in parts] for name, parts in condition.items()})

    def _condition(self, one: Mapping[str, Any]) -> Any:
        edge = self._edge
        if "has_id" in one:
            return edge.HasIdCondition(set(one["has_id"]))
        if "is_empty" in one:
            return edge.IsEmptyCondition(one["is_empty"]["key"])
        if "range" in one:
            return edge.FieldCondition(one["key"], range=edge.RangeFloat(**one["range"]))
        if "match" in one:
            match = one["match"]
            return edge.FieldCondition(
                one["key"], match=edge.MatchAny(match["any"]) if "any" in match else edge.MatchValue(match["value"])
            )
        return self._filter(one)


def _wanted_vector(name: str | None) -> bool | list[str]:
    return [name] if name else name is not None


def _pick_vector(vector: Any, name: str | None) -> Sequence[float] | None:
    return vector.get(name or "") if isinstance(vector, dict) else vector


def _edge_id(id_: Any) -> PointId:
    return id_ if isinstance(id_, int) else str(id_)
