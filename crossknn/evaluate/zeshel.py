"""Mentions of the ZeShEL data as queries: each in its context, with the document that it means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from crossknn.errors import InputError
from crossknn.evaluate.splits import Skip, Split, list_names
from crossknn.items.fields import Fields, describe
from crossknn.items.items import Items
from crossknn.items.readers import MAX_LINE_BYTES, JsonLines

MENTION_FIELDS: Final = {
    "mention_id": str,
    "context_document_id": str,
    "label_document_id": str,
    "start_index": int,
    "end_index": int,
    "text": str,
    "corpus": str,
}


def find_documents(folder: Path, domain: str) -> Path:
    """The file with the documents of a domain."""
    path = folder / "documents" / f"{domain}.json"
    if not path.is_file():
        known = sorted(path.stem for path in (folder / "documents").glob("*.json"))
        raise InputError(f"{folder}: wanted the documents of the domain {domain!r}, got those of {list_names(known)}.")
    return path


class Contexts:
    """Mentions as queries: marked, between the words around them."""

    def __init__(self, documents: Items, words: int, marks: tuple[str, str]) -> None:
        self._documents, self._words, self._marks = documents, words, marks

    def __contains__(self, document: object) -> bool:
        return document in self._documents

    def query(self, mention: Mapping[str, Any]) -> str:
        """Positions are those of words between white space, the last one included."""
        words = self._documents.text(self._documents.row(mention["context_document_id"])).split()
        start, stop = mention["start_index"], mention["end_index"] + 1
        found = " ".join(words[start:stop]) if 0 <= start < stop else ""
        if found != mention["text"]:
            raise ValueError(f"wanted the mention {mention['text']!r} at words {start} to {stop - 1}, got {found!r}.")
        before, after = words[max(0, start - self._words) : start], words[stop : stop + self._words]
        return " ".join([*before, self._marks[0], found, self._marks[1], *after])


def read_mentions(folder: Path, domain: str, contexts: Contexts, skip: Skip) -> Split:
    """All mentions of the domain, in the order of the files' names."""
    files = sorted((folder / "mentions").glob("*.json"))
    if not files:
        raise InputError(f"{folder / 'mentions'}: wanted files <split>.json with mentions, got none.")
    texts, labels, corpora = {}, {}, set()
    for source, mention in _mentions(files):
        id_, label = mention["mention_id"], mention["label_document_id"]
        corpora.add(mention["corpus"])
        if mention["corpus"] != domain:
            continue
        if id_ in texts:
            raise source.error(source.line, f"wanted every mention id once, got {id_!r} again.")
        lost = [document for document in (label, mention["context_document_id"]) if document not in contexts]
        if lost:
            error = source.error(source.line, f"wanted documents of {domain}, got the id {lost[0]!r}.")
            skip.note("mentions of or in unknown documents", error)
            continue
        try:
            texts[id_], labels[id_] = contexts.query(mention), label
        except ValueError as error:
            raise source.error(source.line, str(error)) from error
    if not texts:
        raise InputError(
            f"{folder / 'mentions'}: wanted mentions of {domain!r}, got those of {list_names(sorted(corpora))}."
        )
    return Split(tuple(texts), tuple(texts.values()), tuple({label: 1} for label in labels.values()))


def _mentions(files: Iterable[Path]) -> Iterator[tuple[JsonLines, Mapping[str, Any]]]:
    """Every mention with the file it is from, its fields checked."""
    for path in files:
        source = JsonLines(path, Fields("mention_id"), errors="strict", max_line_bytes=MAX_LINE_BYTES)
        for mention in source.records():
            for name, kind in MENTION_FIELDS.items():
                if type(mention.get(name)) is not kind:
                    wanted = "a string" if kind is str else "a whole number"
                    raise source.error(
                        source.line, f"wanted {wanted} in field {name!r}, got {describe(mention.get(name))}."
                    )
            yield source, mention
