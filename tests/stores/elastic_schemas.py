"""JSON schemas of the requests that crossknn sends, after the specifications that the two engines publish.

Written from `elastic/elasticsearch-specification` (SearchRequestBody, KnnSearch, MultiSearch, MultiGet, FieldCaps,
Scroll, ClearScroll) and `opensearch-project/opensearch-api-specification` (_core.search, KnnQuery, _core.mget, …): the
parts that are used, closed, so that a misspelled or misplaced property is an error.
"""

from typing import Any

NUMBER, STRING, BOOL = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
STRINGS = {"type": "array", "items": STRING}
POSITIVE = {"type": "integer", "minimum": 1, "maximum": 10_000}
VECTOR = {"type": "array", "items": NUMBER, "minItems": 1}
SCALAR = {"type": ["string", "number", "boolean"]}
QUERY = {"$ref": "#/$defs/query"}
QUERIES = {"anyOf": [QUERY, {"type": "array", "items": QUERY}]}


def closed(needed: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    properties = {**needed, **optional}
    return {"type": "object", "properties": properties, "required": [*needed], "additionalProperties": False}


def one_field(value: dict[str, Any]) -> dict[str, Any]:
    """An object with one property, the name of a field."""
    return {"type": "object", "additionalProperties": value, "minProperties": 1, "maxProperties": 1}


SOURCE = {"anyOf": [BOOL, STRING, STRINGS, closed({}, includes=STRINGS, excludes=STRINGS)]}
KNN_SECTION = closed(
    {"field": STRING, "query_vector": VECTOR, "k": POSITIVE, "num_candidates": POSITIVE}, filter=QUERIES, boost=NUMBER
)
KNN_QUERY = one_field(closed({"vector": VECTOR, "k": POSITIVE}, filter=QUERY, boost=NUMBER))
CLAUSES = {
    "bool": closed(
        {}, must=QUERIES, should=QUERIES, filter=QUERIES, must_not=QUERIES, minimum_should_match={"type": "integer"}
    ),
    "terms": one_field({"type": "array", "items": SCALAR}),
    "range": one_field(closed({}, lt=SCALAR, lte=SCALAR, gt=SCALAR, gte=SCALAR)),
    "exists": closed({"field": STRING}),
    "ids": closed({"values": STRINGS}),
    "match": one_field(closed({"query": STRING})),
    "multi_match": closed({"query": STRING, "fields": STRINGS}, type={"enum": ["best_fields", "most_fields"]}),
    "match_all": closed({}),
    "match_none": closed({}),
}


def search_schema(engine: str) -> dict[str, Any]:
    """The body of `_search`, and of each search of `_msearch`."""
    clauses = {**CLAUSES, **({"knn": KNN_QUERY} if engine == "opensearch" else {})}
    sections = {"knn": KNN_SECTION} if engine == "elasticsearch" else {}
    size = {"type": "integer", "minimum": 0, "maximum": 10_000}
    body = closed({}, query=QUERY, size=size, sort=STRINGS, fields=STRINGS, _source=SOURCE, **sections)
    query = {"oneOf": [closed({name: schema}) for name, schema in clauses.items()]}
    return {**body, "$defs": {"query": query}}


MULTI_SEARCH_HEADER = closed({}, index=STRING)
MULTI_GET = closed({"docs": {"type": "array", "minItems": 1, "items": closed({"_id": STRING}, _source=SOURCE)}})
SCROLL = closed({"scroll_id": STRING}, scroll=STRING)
CLEAR_SCROLL = closed({"scroll_id": {"anyOf": [STRING, STRINGS]}})
FIELD_CAPS = closed({})
