"""Datasets to evaluate strategies on: items, queries by split, and relevance judgments."""

from __future__ import annotations

import json
import logging
import lzma
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from crossknn._checks import check_positive, check_seed, invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.evaluate.splits import (
    Split,
    Unusable,
    UnusableRecords,
    list_names,
    make_split,
    read_beir_qrels,
    read_mentions,
)
from crossknn.items.items import Items
from crossknn.items.readers import BUFFER_BYTES, Fields, JsonLines, UnpackedLimit
from crossknn.types import Progress

__all__ = ["Dataset", "Split"]

AnyPath = str | PathLike[str]

PSEUDO: Final = "pseudo"  # the split of generated queries that some BEIR folders have
TRAINING_SPLITS: Final = ("train", PSEUDO)
ZESHEL_TRAIN_QUERIES: Final = 500  # one of the paper's three sizes
MENTION_MARKS: Final = ("[", "]")
QUERY_FIELDS: Final = {"id": str, "text": str, "relevant": list}  # in a folder of scores

logger = logging.getLogger("crossknn")


@dataclass(frozen=True)
class Dataset:
    """Items, and queries by split with their relevance judgments.

    A warning counts the test queries that have the text of a train query. `skipped` has the number of skipped records
    by reason.
    """

    name: str
    items: Items
    splits: Mapping[str, Split]
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise invalid("name", "a nonempty string", self.name)
        if not self.splits:
            raise InputError(f"{self.name}: a dataset must have at least one split of queries.")
        for reason, count in self.skipped.items():
            logger.warning("%s: %d records were skipped: %s", self.name, count, reason)
        for name, split in self.splits.items():
            judged = [id_ for judgments in split.judgments for id_ in judgments]
            if len(self.items.rows_of(judged, missing="skip")) < len(judged):
                unknown = next(id_ for id_ in judged if id_ not in self.items)
                raise InputError(f"{self.name}: the split {name!r} judges {unknown!r}, which is no item's id.")
        for learned, tested in product(TRAINING_SPLITS, [name for name in self.splits if name not in TRAINING_SPLITS]):
            if shared := self.shared_texts(learned, tested):
                which = f"{shared} of {len(self.splits[tested])} {tested} queries"
                logger.warning("%s: %s have the text of a %s query", self.name, which, learned)

    def __repr__(self) -> str:
        queries = ", ".join(f"{len(split)} {name}" for name, split in self.splits.items())
        return f"Dataset({self.name!r}, {len(self.items)} items, queries: {queries})"

    def split(self, name: str) -> Split:
        """The queries of one split."""
        return self.splits[_check_split(self.name, name, self.splits)]

    def shared_texts(self, first: str, second: str) -> int:
        """How many queries of the second split have the text of a query of the first; 0 if one does not exist."""
        if first not in self.splits or second not in self.splits:
            return 0
        known = set(self.splits[first].texts)
        return sum(text in known for text in self.splits[second].texts)

    @classmethod
    def open(
        cls,
        source: AnyPath,
        *,
        seed: int = 0,
        marks: tuple[str, str] = MENTION_MARKS,
        title_mark: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """The dataset that a command line names: a BEIR folder, `zeshel:FOLDER:DOMAIN` or `ir_datasets:NAME`.

        `zeshel:FOLDER:DOMAIN:100` has 100 train queries instead of 500; `seed`, `marks` and `title_mark` are those of
        `from_zeshel`. `ir_datasets:NAME` has those of the splits train, dev and test that exist.
        """
        kind, _, name = os.fspath(source).partition(":")
        if kind == "zeshel":
            folder, domain, train = _parse_zeshel_name(name)
            return cls.from_zeshel(
                folder, domain, train=train, seed=seed, marks=marks, title_mark=title_mark, progress=progress
            )
        if kind == "ir_datasets":
            return cls.from_ir_datasets(name, splits=_find_ir_splits(name))
        return cls.from_beir(source, progress=progress)

    @classmethod
    def from_beir(
        cls,
        folder: AnyPath,
        *,
        splits: Sequence[str] | None = None,
        unusable: Unusable = "error",
        progress: Progress | None = None,
    ) -> Self:
        """A folder with `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`; each may be `.gz`.

        A split holds the judged queries, in the order of their judgments. Generated queries (`qgen-queries.jsonl`,
        `qgen-qrels/train.tsv`), if there are any, are the split "pseudo", which the paper trains on.

        Args:
            splits: Which to read; by default all.
            unusable: Whether judgments of unknown queries or items and queries without relevant items are an error or
                skipped, and counted in `skipped`.
        """
        folder, records = Path(folder), UnusableRecords(unusable)
        files = _find_beir_files(folder)
        chosen = [_check_split(str(folder), name, files) for name in (files if splits is None else splits)]
        items, read_queries, read = Items.from_path(folder, progress=progress), cache(_read_queries), {}
        for name in chosen:
            queries, qrels = files[name]
            read[name] = make_split(str(qrels), read_beir_qrels(qrels), read_queries(queries), items, records)
        return cls(folder.resolve().name, items, read, records.counts)

    @classmethod
    def from_zeshel(
        cls,
        folder: AnyPath,
        domain: str,
        *,
        train: int = ZESHEL_TRAIN_QUERIES,
        seed: int = 0,
        context: int = 50,
        marks: tuple[str, str] = MENTION_MARKS,
        title_mark: str | None = None,
        unusable: Unusable = "error",
        progress: Progress | None = None,
    ) -> Self:
        """One domain of ZeShEL, from `documents/<domain>.json` and all of `mentions/*.json`.

        Items are the domain's documents, queries its mentions. As in the paper, `train` random mentions are the split
        "train" and the others "test"; with the same seed, a larger train split contains a smaller one.

        Args:
            context: Words of the document on either side of a mention.
            marks: Tokens around a mention.
            title_mark: Token between a document's title and text.
            unusable: Whether a mention of or in an unknown document is an error or skipped.
        """
        check_positive("train", train)
        check_positive("context", context)
        check_seed(seed)
        folder, records = Path(folder), UnusableRecords(unusable)
        documents = _find_documents(folder, domain)
        items = Items.from_jsonl(documents, id="document_id", progress=progress)
        bodies = Items.from_jsonl(
            documents, id="document_id", text="text", fields=()
        )  # mentions count words without the title
        if title_mark is not None:
            titles = Items.from_jsonl(documents, id="document_id", text="title", fields=()).texts
            marked = (f"{title} {title_mark} {text}" for title, text in zip(titles, bodies.texts, strict=True))
            items = Items(marked, ids=bodies.ids)
        mentions = read_mentions(folder, domain, bodies, context=context, marks=marks, unusable=records)
        if train >= len(mentions):
            raise invalid("train", f"below the number of mentions of {domain} ({len(mentions)})", train)
        order = np.random.default_rng(seed).permutation(len(mentions))
        parts = {"train": np.sort(order[:train]), "test": np.sort(order[train:])}
        return cls(domain, items, {name: mentions.take(rows.tolist()) for name, rows in parts.items()}, records.counts)

    @classmethod
    def from_ir_datasets(cls, name: str, *, splits: Sequence[str] = (), unusable: Unusable = "error") -> Self:
        """A dataset by its name in `ir_datasets`, such as "beir/scifact" with splits "train" and "test".

        Each split is read from `<name>/<split>`, the items from the first of them. Without `splits` the name itself
        is read, and its queries are the split "test".
        """
        records, names = UnusableRecords(unusable), {split: f"{name}/{split}" for split in splits} or {"test": name}
        parts = {split: _load_ir(full, needed=("docs", "queries", "qrels")) for split, full in names.items()}
        documents = next(iter(parts.values()))
        items = Items.from_records(
            ({"_id": document.doc_id, "text": document.default_text()} for document in documents.docs_iter()),
            text="text",
        )
        read = {}
        for split, part in parts.items():
            texts = _distinct((query.query_id, query.default_text()) for query in part.queries_iter())
            judgments = (
                (str(qrel.query_id), str(qrel.doc_id), int(qrel.relevance), f"{names[split]}: judgment {at}")
                for at, qrel in enumerate(part.qrels_iter())
            )
            read[split] = make_split(names[split], judgments, texts, items, records)
        return cls(name, items, read, records.counts)

    @classmethod
    def from_scores(cls, folder: AnyPath, *, max_unpacked_bytes: int | None = None) -> Self:
        """The texts of a folder of exact scores, from its `texts.json.xz`; `read_scores` reads the scores themselves.

        Without train scores, the first half of the test queries is the split "train" and the second half "test".
        The file may unpack to `max_unpacked_bytes`, by default 100 times its size and at least 1 GiB.
        """
        folder = Path(folder)
        texts = _read_texts(folder / "texts.json.xz", max_unpacked_bytes)
        items = Items(texts["items"], ids=texts["item_ids"])
        test = _listed_split(folder, "test", texts["test"], items)
        if (folder / "train_scores.f16.npy").exists():
            splits = {"train": _listed_split(folder, "train", texts["train"], items), "test": test}
        else:
            half = len(test) // 2
            splits = {"train": test.take(range(half)), "test": test.take(range(half, len(test)))}
        return cls(folder.resolve().name, items, splits)


def _check_split(source: str, name: str, known: Iterable[str]) -> str:
    if name not in known:
        raise InputError(f"{source}: there is no split {name!r}, only {list_names(known)}.")
    return name


def _parse_zeshel_name(name: str) -> tuple[str, str, int]:
    """Folder, domain and number of train queries."""
    rest, _, train = name.rpartition(":")
    if ":" not in rest or not train.isdecimal():
        rest, train = name, str(ZESHEL_TRAIN_QUERIES)
    folder, _, domain = rest.rpartition(":")
    if not folder or not domain:
        raise InputError(f"expected zeshel:FOLDER:DOMAIN, such as zeshel:data/zeshel:yugioh, got 'zeshel:{name}'.")
    return folder, domain, int(train)


def check_source(source: AnyPath, splits: Iterable[str]) -> None:
    """Raise `InputError` where `Dataset.open` would find no folder or no such split, without reading it.

    What lies behind `ir_datasets:` is known once it is opened.
    """
    kind, _, name = os.fspath(source).partition(":")
    if kind == "ir_datasets":
        return
    if kind == "zeshel":
        place, domain, _ = _parse_zeshel_name(name)
        _find_documents(Path(place), domain)
        return
    files = _find_beir_files(Path(source))
    for split in splits:
        _check_split(str(source), split, files)


def _find_documents(folder: Path, domain: str) -> Path:
    """The documents of one domain of ZeShEL."""
    documents = folder / "documents" / f"{domain}.json"
    if not documents.is_file():
        known = list_names(sorted(path.stem for path in documents.parent.glob("*.json")))
        raise InputError(f"{folder}: there are no documents of the domain {domain!r}, only of {known}.")
    return documents


def _find_ir_splits(name: str) -> list[str]:
    """Those of the usual splits that ir_datasets has under a name; none if the name itself has judgments."""
    if _load_ir(name).has_qrels():
        return []
    found = []
    for split in ("train", "dev", "test"):
        with suppress(InputError):
            _load_ir(f"{name}/{split}")
            found.append(split)
    return found


def _find_beir_files(folder: Path) -> dict[str, tuple[Path, Path]]:
    """The files of queries and judgments by the name of their split."""
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is not a BEIR folder but a file' if folder.exists() else 'does not exist'}.")
    queries = _find_file(folder, "queries.jsonl")
    found: dict[str, tuple[Path, Path]] = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        name = path.name.removesuffix(".gz").removesuffix(".tsv")
        if path.name in (f"{name}.tsv", f"{name}.tsv.gz"):
            found.setdefault(name, (queries, path))
    if not found:
        raise InputError(f"{folder / 'qrels'}: there is no file <split>.tsv with judgments.")
    if (folder / "qgen-qrels").is_dir():
        generated = _find_file(folder, "qgen-queries.jsonl"), _find_file(folder / "qgen-qrels", "train.tsv")
        found.setdefault(PSEUDO, generated)
    return found


def _find_file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError(f"{folder}: has neither {name} nor {name}.gz. Check that it is the right folder.")


def _read_queries(path: Path) -> dict[str, str]:
    source = JsonLines(path, Fields("_id", ("text",)))
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    for id_, text, at in source:
        if id_ in texts:
            raise source.error(
                at, f"query ids must be distinct, got {id_!r} again, first at {source.place(lines[id_])}."
            )
        if not text.strip():
            raise source.error(at, f"query {id_!r} has no text.")
        texts[id_], lines[id_] = text, at
    return texts


def _load_ir(name: str, *, needed: Sequence[str] = ()) -> Any:
    library = import_extra("ir_datasets", extra="datasets")
    try:
        part = library.load(name)
    except KeyError as error:
        raise InputError(f"ir_datasets has no dataset {name!r}.") from error
    for what in needed:
        if not getattr(part, f"has_{what}")():
            raise InputError(f"{name}: this dataset of ir_datasets has no {what}. Name its splits.")
    return part


def _distinct(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for id_, text in pairs:
        if id_ in texts:
            raise InputError(f"query ids must be distinct, got {id_!r} again.")
        texts[id_] = text
    return texts


def _read_texts(path: Path, max_unpacked_bytes: int | None) -> dict[str, Any]:
    limit, content = UnpackedLimit(str(path), max_unpacked_bytes), bytearray()
    try:
        with lzma.open(path) as file:
            while block := file.read(BUFFER_BYTES):
                content += block
                limit.check(len(content), packed=path.stat().st_size)
        texts = json.loads(content)
        lists = {name: texts[name] for name in ("items", "item_ids", "test")} | {"train": texts.get("train", [])}
        queries = [*lists["test"], *lists["train"]]
        if not all(isinstance(query[name], kind) for query in queries for name, kind in QUERY_FIELDS.items()):
            raise TypeError("every query needs an id and a text that are strings, and a list of relevant items")
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: the texts of a folder of scores do not exist.") from error
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is not a JSON file of items and queries ({error!r}).") from error
    return lists


def _listed_split(folder: Path, name: str, queries: list[dict[str, Any]], items: Items) -> Split:
    """All queries: each has its row of scores, so none may be skipped."""
    source = f"{folder / 'texts.json.xz'}: {name}"
    for at, query in enumerate(queries):
        if not query["relevant"]:
            raise InputError(f"{source}: query {at}: query {query['id']!r} has no relevant item.")
    texts = _distinct((query["id"], query["text"]) for query in queries)
    judgments = (
        (query["id"], str(item), 1, f"{source}: query {at}")
        for at, query in enumerate(queries)
        for item in query["relevant"]
    )
    return make_split(source, judgments, texts, items, UnusableRecords("error", advice="Correct the file."))
