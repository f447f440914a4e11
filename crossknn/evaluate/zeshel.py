"""Mentions of the ZeShEL data as queries: each in its context, with the document it refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from crossknn.errors import InputError
from crossknn.evaluate.splits import Split, UnusableRecords, list_names
from crossknn.items.items import Items
from crossknn.items.readers import Fields, JsonLines, describe

MENTION_FIELDS: Final = {
    "mention_id": str,
    "context_document_id": str,
    "label_document_id": str,
    "start_index": int,
    "end_index": int,
    "text": str,
    "corpus": str,
}


class MentionContext(NamedTuple):
    """How a mention becomes a query: marked, between `words` words on either side of it in its document."""

    documents: Items
    words: int
    marks: tuple[str, str]

    def query(self, mention: Mapping[str, Any]) -> str:
        """The query of a mention, whose positions count words between white space, the last one included."""
        words = self.documents.text(self.documents.row(mention["context_document_id"])).split()
        start, stop = mention["start_index"], mention["end_index"] + 1
        found = " ".join(words[start:stop]) if 0 <= start < stop else ""
        if found != mention["text"]:
            raise ValueError(f"the mention {mention['text']!r} is not at words {start} to {stop - 1}: got {found!r}.")
        before, after = words[max(0, start - self.words) : start], words[stop : stop + self.words]
        return " ".join([*before, self.marks[0], found, self.marks[1], *after])


def find_documents(folder: Path, domain: str) -> Path:
    """The file with the documents of a domain."""
    path = folder / "documents" / f"{domain}.json"
    if not path.is_file():
        known = sorted(path.stem for path in (folder / "documents").glob("*.json"))
        raise InputError(f"{folder}: there are no documents of the domain {domain!r}, only of {list_names(known)}.")
    return path


def read_mentions(folder: Path, domain: str, context: MentionContext, unusable: UnusableRecords) -> Split:
    """All mentions of the domain, in the order of the files' names."""
    files = sorted((folder / "mentions").glob("*.json"))
    if not files:
        raise InputError(f"{folder / 'mentions'}: there are no files <split>.json with mentions.")
    texts, labels, domains = {}, {}, set()
    for source, mention in _read_records(files):
        id_, label = mention["mention_id"], mention["label_document_id"]
        domains.add(mention["corpus"])
        if mention["corpus"] != domain:
            continue
        if id_ in texts:
            raise source.error(source.line, f"mention ids must be distinct, got {id_!r} again.")
        unknown = [id_ for id_ in (label, mention["context_document_id"]) if id_ not in context.documents]
        if unknown:
            error = source.error(source.line, f"{domain} has no document with the id {unknown[0]!r}.")
            unusable.add("mentions of or in unknown documents", error)
            continue
        try:
            texts[id_], labels[id_] = context.query(mention), label
        except ValueError as error:
            raise source.error(source.line, str(error)) from error
    if not texts:
        known = list_names(sorted(domains))
        raise InputError(f"{folder / 'mentions'}: there are no mentions of {domain!r}, only of {known}.")
    return Split(tuple(texts), tuple(texts.values()), tuple({label: 1} for label in labels.values()))


def _read_records(files: Iterable[Path]) -> Iterator[tuple[JsonLines, Mapping[str, Any]]]:
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
