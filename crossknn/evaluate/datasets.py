"""What strategies are evaluated on: items, queries by split, and which items are relevant to each query."""

from __future__ import annotations

import json
import logging
import lzma
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from crossknn._checks import check_positive, check_seed
from crossknn._imports import import_extra
from crossknn.errors import InputError
from crossknn.evaluate.splits import IrQrels, Listed, Qrels, Skip, Split, Unusable, list_names, make_split
from crossknn.evaluate.zeshel import Contexts, find_documents, read_mentions
from crossknn.items.fields import Fields
from crossknn.items.items import Items
from crossknn.items.readers import MAX_LINE_BYTES, JsonLines
from crossknn.types import Progress

__all__ = ["Dataset", "Split"]

AnyPath = str | PathLike[str]

PSEUDO: Final = "pseudo"  # the split of queries that a model wrote, which some BEIR folders carry
LEARNED: Final = ("train", PSEUDO)  # splits that something may be learned from
ZESHEL_TRAIN: Final = 500  # train queries, one of the paper's three sizes
MARKS: Final = ("[", "]")  # around a mention
QUERY_FIELDS: Final = {"id": str, "text": str, "relevant": list}  # in a folder of scores

logger = logging.getLogger("crossknn")


@dataclass(frozen=True)
class Dataset:
    """Items, and queries by split with their relevance judgments.

    name     what tables and reports call it
    items    what is searched
    splits   the queries by the name of their split, such as "train" and "test"
    skipped  how many records a reader left out, by reason; empty unless it was asked to

    Where test queries have the text of a train query, a warning says how many: what is learned from the one
    would be tested on the other.
    """

    name: str
    items: Items
    splits: Mapping[str, Split]
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InputError(f"a dataset's name must be a string with something in it. Got {self.name!r} instead.")
        if not self.splits:
            raise InputError(f"{self.name}: wanted at least one split of queries, got none.")
        for reason, count in self.skipped.items():
            logger.warning("%s: %d records were left out: %s", self.name, count, reason)
        for name, split in self.splits.items():
            judged = [id_ for judgments in split.judgments for id_ in judgments]
            if len(self.items.rows_of(judged, missing="skip")) < len(judged):
                lost = next(id_ for id_ in judged if id_ not in self.items)
                raise InputError(f"{self.name}: the split {name!r} judges {lost!r}, which is no item's id.")
        self._warn_of_leaks()

    def _warn_of_leaks(self) -> None:
        for learned, tested in product(LEARNED, [name for name in self.splits if name not in LEARNED]):
            if shared := self.shared_texts(learned, tested):
                which = f"{shared} of {len(self.splits[tested])} {tested} queries"
                logger.warning("%s: %s have the text of a %s query", self.name, which, learned)

    def __repr__(self) -> str:
        queries = ", ".join(f"{len(split)} {name}" for name, split in self.splits.items())
        return f"Dataset({self.name!r}, {len(self.items)} items, queries: {queries})"

    def split(self, name: str) -> Split:
        """The queries of one split."""
        if name not in self.splits:
            raise InputError(
                f"{self.name}: wanted the split {name!r}, got only {list_names(self.splits)}. Name one of these."
            )
        return self.splits[name]

    def shared_texts(self, first: str, second: str) -> int:
        """How many queries of the second split have the text of a query of the first; 0 where one does not exist."""
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
        marks: tuple[str, str] = MARKS,
        title_mark: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """What a command line names: a BEIR folder, `zeshel:FOLDER:DOMAIN` or `ir_datasets:NAME`.

        `zeshel:FOLDER:DOMAIN:100` has 100 train queries instead of 500; `seed` and marks are for ZeShEL alone.
        `ir_datasets:NAME` has the splits "train", "dev" and "test" as far as they are there.
        """
        kind, _, name = os.fspath(source).partition(":")
        if kind == "zeshel":
            folder, domain, train = _read_zeshel_name(name)
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

        A split holds the queries that its judgments name, in their order. `splits` says which to read, by default
        all. Where the folder has generated queries (`qgen-queries.jsonl`, `qgen-qrels/train.tsv`), they are the
        split "pseudo", which the paper trains on.

        A judgment of an unknown query or item and a query without relevant items are errors, or with
        `unusable="skip"` left out and counted in `skipped`.
        """
        folder, skip = Path(folder), Skip(unusable)
        if not folder.is_dir():
            raise InputError(f"{folder}: wanted a BEIR folder, got {'a file' if folder.exists() else 'nothing'}.")
        found = _beir_files(folder)
        chosen = list(found) if splits is None else list(splits)
        for name in chosen:
            if name not in found:
                raise InputError(
                    f"{folder}: wanted the split {name!r}, got only {list_names(found)}. Name one of these."
                )
        items = Items.from_path(folder, progress=progress)
        texts: dict[Path, dict[str, str]] = {}
        read = {}
        for name in chosen:
            queries, qrels = found[name]
            if queries not in texts:
                texts[queries] = _read_queries(queries)
            read[name] = make_split(Qrels(qrels), texts[queries], items, skip)
        return cls(folder.resolve().name, items, read, skip.counts)

    @classmethod
    def from_zeshel(
        cls,
        folder: AnyPath,
        domain: str,
        *,
        train: int = ZESHEL_TRAIN,
        seed: int = 0,
        context: int = 50,
        marks: tuple[str, str] = MARKS,
        title_mark: str | None = None,
        unusable: Unusable = "error",
        progress: Progress | None = None,
    ) -> Self:
        """One domain of ZeShEL, from `documents/<domain>.json` and all of `mentions/*.json`.

        Items are the domain's documents, with `title_mark` between title and text where it is given. A query is a
        mention between `marks`, with `context` words of its document on either side. As in the paper, `train` mentions
        drawn at random are the split "train" and the others "test"; of two sizes with the same seed the larger train
        split holds the smaller one.

        A mention of, or in, an unknown document is an error, or with `unusable="skip"` left out and counted.
        """
        check_positive("train", train)
        check_positive("context", context)
        check_seed(seed)
        folder, skip = Path(folder), Skip(unusable)
        documents = find_documents(folder, domain)
        items = Items.from_jsonl(documents, id="document_id", progress=progress)
        source = Items.from_jsonl(documents, id="document_id", text="text")  # mentions count the words of it alone
        if title_mark is not None:
            titles = Items.from_jsonl(documents, id="document_id", text="title").texts
            marked = (f"{title} {title_mark} {text}" for title, text in zip(titles, source.texts, strict=True))
            items = Items(marked, ids=source.ids)
        everything = read_mentions(folder, domain, Contexts(source, context, marks), skip)
        if train >= len(everything):
            raise InputError(
                f"train must be below the number of mentions of {domain}, {len(everything)}, for some must be left "
                f"to test on. Got {train} instead."
            )
        order = np.random.default_rng(seed).permutation(len(everything))
        parts = {"train": np.sort(order[:train]), "test": np.sort(order[train:])}
        return cls(domain, items, {name: everything.take(rows.tolist()) for name, rows in parts.items()}, skip.counts)

    @classmethod
    def from_ir_datasets(cls, name: str, *, splits: Sequence[str] = (), unusable: Unusable = "error") -> Self:
        """A dataset by its name in `ir_datasets`, such as "beir/scifact" with splits "train" and "test".

        Each split is read from `<name>/<split>`, the items from the first of them. Without `splits` the name itself
        is read, and its queries are the split "test".
        """
        library, skip = import_extra("ir_datasets", extra="datasets"), Skip(unusable)
        names = {split: f"{name}/{split}" for split in splits} or {"test": name}
        parts = {split: _load_part(library, full) for split, full in names.items()}
        documents = next(iter(parts.values()))
        items = Items.from_records(
            ({"_id": document.doc_id, "text": document.default_text()} for document in documents.docs_iter()),
            text="text",
        )
        read = {}
        for split, part in parts.items():
            texts = _distinct((query.query_id, query.default_text()) for query in part.queries_iter())
            read[split] = make_split(IrQrels(names[split], part), texts, items, skip)
        return cls(name, items, read, skip.counts)

    @classmethod
    def from_scores(cls, folder: AnyPath) -> Self:
        """The texts of a folder of exact scores, from its `texts.json.xz`; `read_scores` reads the scores themselves.

        Without train scores its first half of test queries is the split "train" and its second half "test".
        """
        folder = Path(folder)
        texts = _read_texts(folder / "texts.json.xz")
        items = Items(texts["items"], ids=texts["item_ids"])
        test = _listed_split(folder, "test", texts["test"], items)
        if (folder / "train_scores.f16.npy").exists():
            splits = {"train": _listed_split(folder, "train", texts["train"], items), "test": test}
        else:
            half = len(test) // 2
            splits = {"train": test.take(range(half)), "test": test.take(range(half, len(test)))}
        return cls(folder.resolve().name, items, splits)


def _read_zeshel_name(name: str) -> tuple[str, str, int]:
    """Folder, domain and how many train queries."""
    rest, _, train = name.rpartition(":")
    if ":" not in rest or not train.isdecimal():
        rest, train = name, str(ZESHEL_TRAIN)
    folder, _, domain = rest.rpartition(":")
    if not folder or not domain:
        raise InputError(f"wanted zeshel:FOLDER:DOMAIN, such as zeshel:data/zeshel:yugioh. Got 'zeshel:{name}'.")
    return folder, domain, int(train)


def _find_ir_splits(name: str) -> list[str]:
    """Those of the usual splits that ir_datasets has under a name; none where the name itself has judgments."""
    library = import_extra("ir_datasets", extra="datasets")
    if _load_ir(library, name).has_qrels():
        return []
    found = []
    for split in ("train", "dev", "test"):
        with suppress(InputError):
            _load_ir(library, f"{name}/{split}")
            found.append(split)
    return found


def _beir_files(folder: Path) -> dict[str, tuple[Path, Path]]:
    """The files of queries and judgments by the name of their split."""
    queries = _file(folder, "queries.jsonl")
    found: dict[str, tuple[Path, Path]] = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        name = path.name.removesuffix(".gz").removesuffix(".tsv")
        if path.name in (f"{name}.tsv", f"{name}.tsv.gz"):
            found.setdefault(name, (queries, path))
    if not found:
        raise InputError(f"{folder / 'qrels'}: wanted a file <split>.tsv with judgments, got none.")
    if (folder / "qgen-qrels").is_dir():
        found.setdefault(PSEUDO, (_file(folder, "qgen-queries.jsonl"), _file(folder / "qgen-qrels", "train.tsv")))
    return found


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise InputError(f"{folder}: wanted {name} or {name}.gz in it, got neither. Check that it is the right folder.")


def _read_queries(path: Path) -> dict[str, str]:
    source = JsonLines(path, Fields("_id", ("text",)), errors="strict", max_line_bytes=MAX_LINE_BYTES)
    texts: dict[str, str] = {}
    lines: dict[str, int] = {}
    for id_, text, at in source:
        if id_ in texts:
            raise source.error(
                at, f"wanted every query id once, got {id_!r} again, first at {source.place(lines[id_])}."
            )
        if not text.strip():
            raise source.error(at, f"wanted text, got none for query {id_!r}.")
        texts[id_], lines[id_] = text, at
    return texts


def _load_ir(library: Any, name: str) -> Any:
    try:
        return library.load(name)
    except KeyError as error:
        raise InputError(f"wanted the name of a dataset that ir_datasets knows, got {name!r}.") from error


def _load_part(library: Any, name: str) -> Any:
    part = _load_ir(library, name)
    for what in ("docs", "queries", "qrels"):
        if not getattr(part, f"has_{what}")():
            raise InputError(f"{name}: wanted a dataset of ir_datasets with {what}, got one without. Name its splits.")
    return part


def _distinct(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for id_, text in pairs:
        if id_ in texts:
            raise InputError(f"wanted every query id once, got {id_!r} again.")
        texts[id_] = text
    return texts


def _read_texts(path: Path) -> dict[str, Any]:
    try:
        with lzma.open(path) as file:
            texts = json.load(file)
        lists = {name: texts[name] for name in ("items", "item_ids", "test")} | {"train": texts.get("train", [])}
        queries = [*lists["test"], *lists["train"]]
        if not all(isinstance(query[name], kind) for query in queries for name, kind in QUERY_FIELDS.items()):
            raise TypeError("a query without a string as id and text and a list of what is relevant")
    except FileNotFoundError as error:
        raise InputError(f"{path}: wanted the texts of a folder of scores, got nothing: it does not exist.") from error
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: wanted items and queries as JSON, got something else ({error!r}).") from error
    return lists


def _listed_split(folder: Path, name: str, queries: list[dict[str, Any]], items: Items) -> Split:
    """Every query, for each has its line of scores: none may be left out."""
    source = Listed(f"{folder / 'texts.json.xz'}: {name}", queries)
    for at, query in enumerate(queries):
        if not query["relevant"]:
            raise source.error(at, f"wanted a relevant item for every query, got none for {query['id']!r}.")
    texts = _distinct((query["id"], query["text"]) for query in queries)
    return make_split(source, texts, items, Skip("error", advice="Mend it."))
