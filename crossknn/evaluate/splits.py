"""Queries with their relevance judgments, and how judgments become the queries of a split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from crossknn._checks import check_positive
from crossknn.errors import InputError
from crossknn.items.fields import describe
from crossknn.items.items import Items
from crossknn.items.readers import MAX_LINE_BYTES, Source, TextSource

Unusable = Literal["error", "skip"]
Judged = tuple[str, str, int, int]  # query id, item id, relevance, place


@dataclass(frozen=True)
class Split:
    """Queries in their order, each with what is known about items: an item's id and how relevant it is.

    An item without a judgment, or with one of 0 or less, is not relevant. Every query has a relevant item.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    judgments: tuple[Mapping[str, int], ...] = field(repr=False)

    def __post_init__(self) -> None:
        sizes = len(self.ids), len(self.texts), len(self.judgments)
        if not sizes[0] or len(set(sizes)) > 1:
            raise InputError(
                "a split must have at least one query, and an id, a text and judgments for each. "
                f"Got {sizes[0]}, {sizes[1]} and {sizes[2]} instead."
            )
        id_, count = Counter(self.ids).most_common(1)[0]
        if count > 1:
            raise InputError(f"every query must have its own id. {id_!r} comes {count} times.")
        for id_, text, judged in zip(self.ids, self.texts, self.judgments, strict=True):
            if not text.strip():
                raise InputError(f"every query must have text. Query {id_!r} has none.")
            if not any(relevance > 0 for relevance in judged.values()):
                raise InputError(f"every query must have a relevant item. Query {id_!r} has none.")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def relevant(self) -> list[list[str]]:
        """The ids of each query's relevant items."""
        return [[id_ for id_, relevance in judged.items() if relevance > 0] for judged in self.judgments]

    def first(self, n: int) -> Split:
        """The first `n` queries, or all where there are fewer."""
        check_positive("n", n)
        return Split(self.ids[:n], self.texts[:n], self.judgments[:n])

    def take(self, places: Iterable[int]) -> Split:
        """The queries at these places, in their order."""
        chosen = list(places)
        columns = (tuple(column[place] for place in chosen) for column in (self.ids, self.texts, self.judgments))
        return Split(*columns)  # type: ignore[arg-type]


class Skip:
    """Decides what becomes of unusable records, and counts them."""

    def __init__(self, policy: Unusable, *, advice: str = 'Mend it, or pass unusable="skip" to leave it out.') -> None:
        if policy not in ("error", "skip"):
            raise InputError(f"unusable must be 'error' or 'skip'. Got {policy!r} instead.")
        self._policy, self._advice = policy, advice
        self.counts: dict[str, int] = {}

    def note(self, reason: str, error: InputError) -> None:
        """Raise the error, or count its reason."""
        if self._policy == "error":
            raise InputError(f"{error} {self._advice}")
        self.counts[reason] = self.counts.get(reason, 0) + 1


class Qrels(TextSource):
    """The judgments of a BEIR file: query id, item id and relevance between tabs, after a header line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, errors="strict", max_line_bytes=MAX_LINE_BYTES)

    def judgments(self) -> Iterator[Judged]:
        for line in self.lines():
            fields = line.rstrip("\r\n").split("\t")
            if not line.strip() or (self.line == 1 and not _is_whole(fields[-1])):
                continue
            if len(fields) != 3 or not fields[0] or not fields[1] or not _is_whole(fields[2]):
                raise self.error(
                    self.line,
                    "wanted a query's id, an item's id and a whole number between tabs, "
                    f"got {describe(line.rstrip())}. Mend the line.",
                )
            yield fields[0], fields[1], int(fields[2]), self.line


class IrQrels(Source):
    """The judgments of one dataset of `ir_datasets`. Places count from 0."""

    def __init__(self, name: str, dataset: Any) -> None:
        self.name, self._dataset = name, dataset

    def place(self, at: int) -> str:
        return f"{self.name}: judgment {at}"

    def judgments(self) -> Iterator[Judged]:
        for at, qrel in enumerate(self._dataset.qrels_iter()):
            yield str(qrel.query_id), str(qrel.doc_id), int(qrel.relevance), at


class Listed(Source):
    """The judgments in a list of queries, each with the ids of what is relevant. Places count queries from 0."""

    def __init__(self, name: str, queries: list[dict[str, Any]]) -> None:
        self.name, self._queries = name, queries

    def place(self, at: int) -> str:
        return f"{self.name}: query {at}"

    def judgments(self) -> Iterator[Judged]:
        for at, query in enumerate(self._queries):
            for item in query["relevant"]:
                yield query["id"], str(item), 1, at


def make_split(source: Qrels | IrQrels | Listed, texts: Mapping[str, str], items: Items, skip: Skip) -> Split:
    """The queries that are judged, in the order of their first judgments."""
    judged = list(source.judgments())
    if not judged:
        raise InputError(f"{source.name}: wanted at least one judgment, got none. Check that it is the right input.")
    usable = _usable(judged, source, texts, items, skip)
    by_query: dict[str, dict[str, int]] = {}
    for query, item, relevance, at in usable:
        known = by_query.setdefault(query, {})
        if known.setdefault(item, relevance) != relevance:
            raise source.error(
                at,
                f"wanted one judgment of item {item!r} for query {query!r}, "
                f"got {known[item]} before and {relevance} here.",
            )
    return _split_of(source, texts, by_query, skip)


def _usable(
    judged: list[Judged], source: Source, texts: Mapping[str, str], items: Items, skip: Skip
) -> Iterator[Judged]:
    """The judgments whose query and item exist."""
    complete = len(items.rows_of([item for _, item, _, _ in judged], missing="skip")) == len(judged)
    for judgment in judged:
        query, item, _, at = judgment
        if query not in texts:
            skip.note("judgments of unknown queries", source.error(at, f"wanted a known query, got the id {query!r}."))
        elif not complete and item not in items:
            skip.note("judgments of unknown items", source.error(at, f"wanted a known item, got the id {item!r}."))
        else:
            yield judgment


def _split_of(source: Source, texts: Mapping[str, str], by_query: Mapping[str, Mapping[str, int]], skip: Skip) -> Split:
    kept = []
    for query, judged in by_query.items():
        if any(relevance > 0 for relevance in judged.values()):
            kept.append(query)
        else:
            error = InputError(f"{source.name}: wanted a relevant item for every query, got none for {query!r}.")
            skip.note("queries without relevant items", error)
    if not kept:
        raise InputError(f"{source.name}: wanted at least one query with a relevant item, got none.")
    return Split(tuple(kept), tuple(texts[query] for query in kept), tuple(by_query[query] for query in kept))


def list_names(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(map(repr, names)) or "none"


def _is_whole(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()
