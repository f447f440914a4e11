"""Queries of a split with their relevance judgments, from BEIR's qrels, from ir_datasets and from ZeShEL's mentions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from crossknn._checks import check_choice, check_positive
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.items.readers import Fields, JsonLines, TextSource, describe

Unusable = Literal["error", "skip"]
Judgment = tuple[str, str, int, str]  # query id, item id, relevance, place in the source

MENTION_FIELDS: Final = {
    **dict.fromkeys(("mention_id", "context_document_id", "label_document_id", "text", "corpus"), str),
    **dict.fromkeys(("start_index", "end_index"), int),
}


@dataclass(frozen=True)
class Split:
    """Queries in order, each with its relevance judgments by item id.

    An item without a judgment, or with one of 0 or less, is not relevant. Every query has a relevant item.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    judgments: tuple[Mapping[str, int], ...] = field(repr=False)

    def __post_init__(self) -> None:
        sizes = len(self.ids), len(self.texts), len(self.judgments)
        if not sizes[0] or len(set(sizes)) > 1:
            raise InputError(
                "a split must have at least one query, and an id, a text and judgments for each, "
                f"got {sizes[0]} ids, {sizes[1]} texts and {sizes[2]} judgments."
            )
        id_, count = Counter(self.ids).most_common(1)[0]
        if count > 1:
            raise InputError(f"query ids must be distinct, got {id_!r} {count} times.")
        for id_, text, relevant in zip(self.ids, self.texts, self.relevant, strict=True):
            if not text.strip():
                raise InputError(f"every query must have text; query {id_!r} has none.")
            if not relevant:
                raise InputError(f"every query must have a relevant item; query {id_!r} has none.")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def relevant(self) -> list[list[str]]:
        """The ids of each query's relevant items."""
        return [[id_ for id_, relevance in judged.items() if relevance > 0] for judged in self.judgments]

    def first(self, n: int) -> Split:
        """The first `n` queries, or all if there are fewer."""
        check_positive("n", n)
        return self.take(range(min(n, len(self))))

    def take(self, places: Iterable[int]) -> Split:
        """The queries at these places, in their order."""
        chosen = list(places)
        columns = (tuple(column[place] for place in chosen) for column in (self.ids, self.texts, self.judgments))
        return Split(*columns)  # type: ignore[arg-type]


class UnusableRecords:
    """Raises the errors of unusable records, or counts them by reason."""

    def __init__(self, policy: Unusable, *, advice: str = 'Correct it, or pass unusable="skip" to skip it.') -> None:
        check_choice("unusable", policy, ("error", "skip"))
        self._policy, self._advice = policy, advice
        self.counts: dict[str, int] = {}

    def add(self, reason: str, error: InputError | str) -> None:
        """Raise the error, or count its reason."""
        if self._policy == "error":
            raise InputError(f"{error} {self._advice}")
        self.counts[reason] = self.counts.get(reason, 0) + 1


def read_beir_qrels(path: Path) -> Iterator[Judgment]:
    """Judgments of a BEIR file: query id, item id and relevance, tab-separated, after a header line."""
    source = TextSource(path)
    for line in source.lines():
        fields = line.rstrip("\r\n").split("\t")
        is_integer = fields[-1].strip().removeprefix("-").isdecimal()
        if not line.strip() or (source.line == 1 and not is_integer):
            continue
        if len(fields) != 3 or not fields[0] or not fields[1] or not is_integer:
            found = describe(line.rstrip())
            raise source.error(source.line, f"a judgment must be query id, item id and integer, by tabs, got {found}.")
        yield fields[0], fields[1], int(fields[2]), source.place(source.line)


def make_split(
    name: str, judgments: Iterable[Judgment], texts: Mapping[str, str], items: Items, unusable: UnusableRecords
) -> Split:
    """The judged queries, in the order of their first judgments; errors name the source."""
    judgments = list(judgments)
    if not judgments:
        raise InputError(f"{name}: there are no judgments. Check that it is the right input.")
    by_query: dict[str, dict[str, int]] = {}
    for query, item, relevance, place in _known_judgments(judgments, texts, items, unusable):
        known = by_query.setdefault(query, {})
        if known.setdefault(item, relevance) != relevance:
            both = f"{known[item]} before and {relevance} here"
            raise InputError(f"{place}: item {item!r} is judged twice for query {query!r}: {both}.")
    kept = []
    for query, judged in by_query.items():
        if any(relevance > 0 for relevance in judged.values()):
            kept.append(query)
        else:
            unusable.add("queries without relevant items", f"{name}: query {query!r} has no relevant item.")
    if not kept:
        raise InputError(f"{name}: no query has a relevant item.")
    return Split(tuple(kept), tuple(texts[query] for query in kept), tuple(by_query[query] for query in kept))


def _known_judgments(
    judgments: list[Judgment], texts: Mapping[str, str], items: Items, unusable: UnusableRecords
) -> Iterator[Judgment]:
    """The judgments whose query and item exist."""
    complete = len(items.rows_of([item for _, item, _, _ in judgments], missing="skip")) == len(judgments)
    for query, item, relevance, place in judgments:
        if query not in texts:
            unusable.add("judgments of unknown queries", f"{place}: there is no query with the id {query!r}.")
        elif not complete and item not in items:
            unusable.add("judgments of unknown items", f"{place}: there is no item with the id {item!r}.")
        else:
            yield query, item, relevance, place


def read_mentions(
    folder: Path, domain: str, documents: Items, *, context: int, marks: tuple[str, str], unusable: UnusableRecords
) -> Split:
    """All ZeShEL mentions of the domain, in the order of the files' names, each in the context of its document."""
    files = sorted((folder / "mentions").glob("*.json"))
    if not files:
        raise InputError(f"{folder / 'mentions'}: there are no files <split>.json with mentions.")
    texts, labels, domains = {}, {}, set()
    for source, mention in _read_mention_records(files):
        id_, label, place = mention["mention_id"], mention["label_document_id"], mention["context_document_id"]
        domains.add(mention["corpus"])
        if mention["corpus"] != domain:
            continue
        if id_ in texts:
            raise source.error(source.line, f"mention ids must be distinct, got {id_!r} again.")
        if unknown := [document for document in (label, place) if document not in documents]:
            error = source.error(source.line, f"{domain} has no document with the id {unknown[0]!r}.")
            unusable.add("mentions of or in unknown documents", error)
            continue
        try:
            texts[id_] = _mark_mention(mention, documents.text(documents.row(place)).split(), context, marks)
        except ValueError as error:
            raise source.error(source.line, str(error)) from error
        labels[id_] = label
    if not texts:
        known = list_names(sorted(domains))
        raise InputError(f"{folder / 'mentions'}: there are no mentions of {domain!r}, only of {known}.")
    return Split(tuple(texts), tuple(texts.values()), tuple({label: 1} for label in labels.values()))


def _read_mention_records(files: Iterable[Path]) -> Iterator[tuple[JsonLines, Mapping[str, Any]]]:
    """Every mention with its file, its fields checked."""
    for path in files:
        source = JsonLines(path, Fields("mention_id"))
        for mention in source.records():
            for name, kind in MENTION_FIELDS.items():
                if type(mention.get(name)) is not kind:
                    expected = "a string" if kind is str else "an integer"
                    found = describe(mention.get(name))
                    raise source.error(source.line, f"field {name!r} must be {expected}, got {found}.")
            yield source, mention


def _mark_mention(mention: Mapping[str, Any], words: list[str], context: int, marks: tuple[str, str]) -> str:
    """The mention between marks and `context` words on either side; its positions count words, the last included."""
    start, stop = mention["start_index"], mention["end_index"] + 1
    found = " ".join(words[start:stop]) if 0 <= start < stop else ""
    if found != mention["text"]:
        raise ValueError(f"the mention {mention['text']!r} is not at words {start} to {stop - 1}: got {found!r}.")
    before, after = words[max(0, start - context) : start], words[stop : stop + context]
    return " ".join([*before, marks[0], found, marks[1], *after])


def list_names(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(map(repr, names)) or "none"
