"""JSON of damaged or crafted files: what Python's reader lets through is refused, and types are checked."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TypedDict

import pytest

from crossknn.storage.json_values import MAX_DEPTH, parse_json, read_as


@pytest.mark.parametrize("value", [None, True, 0, -(2**63), 1.5e300, "ä😀", [], {"a": [{"b": None}]}])
def test_values_are_read(value):
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e400",
        b"1" + b"0" * 400,
        b"9223372036854775808",
        b"1" * 5000,
        b'{"a": 1, "a": 1}',
        b'["\\ud800"]',
        b'{"\\udfff": 1}',
        b'"\xff"',
        '"a"'.encode("utf-16"),
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_the_rest_is_refused(text):
    with pytest.raises(ValueError):
        parse_json(text)


class Numbers(TypedDict):
    count: int
    losses: list[float]


@dataclass(frozen=True)
class Part:
    name: str
    share: float | None


@dataclass(frozen=True)
class Whole:
    part: Part
    numbers: Numbers | None
    seconds: Mapping[str, float]
    done: bool = False
    notes: list[str] = field(default_factory=list)


WHOLE = Whole(Part("a", 0.5), {"count": 1, "losses": [0.1]}, {"fit": 1.0}, done=True, notes=["b"])


@pytest.mark.parametrize("whole", [WHOLE, Whole(Part("", None), None, {})])
def test_a_dataclass_is_read_back(whole):
    assert read_as(Whole, json.loads(json.dumps(asdict(whole)))) == whole


def test_defaults_may_be_missing_and_integers_are_numbers():
    assert read_as(Whole, {"part": {"name": "a", "share": 1}, "numbers": None, "seconds": {}}) == Whole(
        Part("a", 1.0), None, {}
    )


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (["part"], None, "part"),
        (["part"], [], "part"),
        (["part", "name"], 3, "part.name"),
        (["part", "share"], "1", "part.share"),
        (["part", "share"], True, "part.share"),
        (["part", "more"], 1, "'more' is unknown in .*part"),
        (["numbers", "count"], 1.0, "numbers.count"),
        (["numbers", "count"], True, "numbers.count"),
        (["numbers", "losses"], {}, "numbers.losses"),
        (["numbers", "losses"], [0.1, None], r"numbers.losses\[1\]"),
        (["numbers"], {"count": 1}, "'losses' is missing in .*numbers"),
        (["seconds", "fit"], "fast", r"seconds\['fit'\]"),
        (["done"], 1, "done"),
    ],
)
def test_a_wrong_type_is_named(path, value, named):
    content = json.loads(json.dumps(asdict(WHOLE)))
    target = content
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    with pytest.raises(ValueError, match=named):
        read_as(Whole, content)
