"""`Items`: what is searched. Ids, rows and texts, and how one is found from another."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from crossknn._checks import check_choice
from crossknn.errors import InputError
from crossknn.items import readers
from crossknn.items.readers import MAX_LINE_BYTES, Errors, Fields, Source, as_id, describe
from crossknn.items.string_column import BLOCK, Column, Lookup, Strings, hash_ids, map_columns, write_columns
from crossknn.types import Mask, Progress, Rows

__all__ = ["Items", "Strings"]

logger = logging.getLogger("crossknn")

Empty = Literal["keep", "skip", "error"]
AnyPath = str | PathLike[str]

BLOCK_CHARS: Final = 2**23  # what a block of records may hold together, besides having at most BLOCK of them


@dataclass(frozen=True, slots=True)
class _Gathered:
    """The records of a source in columns."""

    ids: Strings
    texts: Strings
    hashes: NDArray[np.int64]
    places: NDArray[np.int64]
    empty_texts: int


def _gather(source: Source, *, empty: Empty, errors: Errors, progress: Progress | None) -> _Gathered:
    """Read all records, one block of Python objects at a time."""
    check_choice("errors", errors, ("strict", "replace"))
    check_choice("empty", empty, ("keep", "skip", "error"))
    ids, texts, hashes, places = Column(), Column(), [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    screen = _Screen(source, empty)
    step = f"read {Path(source.name).name}"
    for block in _blocks(screen.pass_on()):
        at = [record[2] for record in block]
        block_ids = _encodable([record[0] for record in block], at, source, errors)
        ids.append(block_ids)
        texts.append(_encodable([record[1] for record in block], at, source, errors))
        hashes.append(hash_ids(block_ids))
        places.append(np.array(at, np.int64))
        if progress is not None:
            progress(step, source.done, max(source.total, source.done))
    if progress is not None:
        progress(step, max(source.total, source.done), max(source.total, source.done))
    screen.log()
    kept = screen.empty if empty == "keep" else 0
    return _Gathered(ids.finish(), texts.finish(), np.concatenate(hashes), np.concatenate(places), kept)


def _blocks(records: Iterator[readers.Record]) -> Iterator[list[readers.Record]]:
    """Runs of records, bounded in number and in characters."""
    block: list[readers.Record] = []
    chars = 0
    for record in records:
        block.append(record)
        chars += len(record[1])
        if len(block) == BLOCK or chars > BLOCK_CHARS:
            yield block
            block, chars = [], 0
    if block:
        yield block


class _Screen:
    """Decides what becomes of records without text, and counts them."""

    def __init__(self, source: Source, empty: Empty) -> None:
        self._source, self._policy = source, empty
        self.empty = 0
        self._first = -1

    def pass_on(self) -> Iterator[readers.Record]:
        for record in self._source:
            text = record[1]
            if (text and not text.isspace()) or self._note(record[0], record[2]):
                yield record

    def _note(self, id_: str, at: int) -> bool:
        """Count a record without text; True if it stays."""
        if self._policy == "error":
            raise self._source.error(
                at, f'wanted text, got none for id {id_!r}. Give it text, or pass empty="keep" or empty="skip".'
            )
        self.empty += 1
        self._first = at if self.empty == 1 else self._first
        return self._policy == "keep"

    def log(self) -> None:
        if self.empty:
            what, level = ("kept", logging.WARNING) if self._policy == "keep" else ("skipped", logging.INFO)
            first = self._source.place(self._first)
            logger.log(
                level,
                '%d items without text were %s (empty="%s"), the first at %s',
                self.empty,
                what,
                self._policy,
                first,
            )


def _encodable(block: list[str], at: Sequence[int], source: Source, errors: Errors) -> list[str]:
    """The block without lone surrogates, which UTF-8 cannot hold: an error, or U+FFFD in their place."""
    try:
        "".join(block).encode()
    except UnicodeEncodeError:
        return [_encodable_one(value, place, source, errors) for value, place in zip(block, at, strict=True)]
    return block


def _encodable_one(value: str, at: int, source: Source, errors: Errors) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        if errors == "replace":
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        raise source.error(
            at,
            f"wanted whole characters, got the lone surrogate \\u{ord(value[error.start]):04x} at character "
            f'{error.start}. Mend the text, or pass errors="replace".',
        ) from error
    return value


class Items:
    """What is searched: ids ↔ rows ↔ texts. Never changes once made.

    `Items(["one text", "another"])` numbers the items "0", "1", …; `ids=` gives them names. A row is the
    position of an item in the order in which it was given. Integers are taken as ids and become strings.
    """

    def __init__(self, texts: Iterable[str], *, ids: Iterable[str | int] | None = None) -> None:
        self._fill(readers.Pairs(texts, ids))

    @classmethod
    def from_dict(cls, texts: Mapping[str, str]) -> Self:
        """Items from a mapping of ids to texts, in its order."""
        if not isinstance(texts, Mapping):
            raise InputError(f"from_dict takes a mapping of ids to texts. Got {describe(texts)} instead.")
        return cls(texts.values(), ids=texts.keys())

    @classmethod
    def from_records(
        cls,
        records: Iterable[Mapping[str, Any]],
        *,
        id: str = "_id",
        text: str | Sequence[str] = ("title", "text"),
        join: str = " ",
        empty: Empty = "keep",
        errors: Errors = "strict",
    ) -> Self:
        """Items from mappings with an id and one or several text fields, BEIR's by default."""
        return cls._load(readers.Mappings(records, Fields.of(id, text, join)), empty=empty, errors=errors)

    @classmethod
    def from_jsonl(
        cls,
        path: AnyPath,
        *,
        id: str = "_id",
        text: str | Sequence[str] = ("title", "text"),
        join: str = " ",
        empty: Empty = "keep",
        errors: Errors = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        progress: Progress | None = None,
    ) -> Self:
        """Items from one JSON object per line, BEIR's fields by default; `.gz` is decompressed."""
        fields = Fields.of(id, text, join)
        source = readers.JsonLines(Path(path), fields, errors=errors, max_line_bytes=max_line_bytes)
        return cls._load(source, empty=empty, errors=errors, progress=progress)

    @classmethod
    def from_csv(
        cls,
        path: AnyPath,
        *,
        delimiter: str | None = None,
        quote: str | None = '"',
        id: str | None = None,
        text: str | Sequence[str] | None = None,
        join: str = " ",
        empty: Empty = "keep",
        errors: Errors = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        progress: Progress | None = None,
    ) -> Self:
        """Items from delimited text with a header line.

        By default tabs for a name with `.tsv` and commas otherwise; the id from column `_id`, else `id`; the
        text from those of `title` and `text` that exist. `quote=None` takes quotes as plain characters.
        """
        source = readers.Csv(
            Path(path),
            delimiter=delimiter,
            quote=quote,
            id=id,
            text=text,
            join=join,
            errors=errors,
            max_line_bytes=max_line_bytes,
        )
        return cls._load(source, empty=empty, errors=errors, progress=progress)

    @classmethod
    def from_parquet(
        cls,
        path: AnyPath,
        *,
        id: str | None = None,
        text: str | Sequence[str] | None = None,
        join: str = " ",
        empty: Empty = "keep",
        errors: Errors = "strict",
        progress: Progress | None = None,
    ) -> Self:
        """Items from a Parquet file; only the columns named are read, with the same defaults as for CSV."""
        source = readers.Parquet(Path(path), id=id, text=text, join=join, errors=errors)
        return cls._load(source, empty=empty, errors=errors, progress=progress)

    @classmethod
    def from_lines(
        cls,
        path: AnyPath,
        *,
        errors: Errors = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        progress: Progress | None = None,
    ) -> Self:
        """One item per line, its id the number of the line, from 1; blank lines are skipped but counted."""
        source = readers.Lines(Path(path), errors=errors, max_line_bytes=max_line_bytes)
        return cls._load(source, empty="keep", errors=errors, progress=progress)

    @classmethod
    def from_path(cls, path: AnyPath, **options: Any) -> Self:
        """Items from a file by its suffix, or from a BEIR folder; the options are those of its reader."""
        path = _corpus_in(Path(path))
        name = path.name.lower()
        plain = name.removesuffix(".gz")
        suffix = Path(plain).suffix
        reader = _READERS.get(suffix)
        if reader is None or (suffix == ".parquet" and plain != name):
            known = ", ".join(_READERS)
            raise InputError(
                f"{path}: wanted a file whose name ends in {known} (.gz may follow, but for .parquet), got "
                f"{path.suffix or 'no suffix'!r}. Rename it, or call the reader that fits, such as Items.from_jsonl."
            )
        method = getattr(cls, reader)
        try:
            inspect.signature(method).bind(path, **options)
        except TypeError as error:
            raise InputError(f"{path} is read by Items.{reader}: {error}.") from error
        return method(path, **options)  # type: ignore[no-any-return]

    @classmethod
    def _load(
        cls, source: Source, *, empty: Empty = "keep", errors: Errors = "strict", progress: Progress | None = None
    ) -> Self:
        items = cls.__new__(cls)
        items._fill(source, empty=empty, errors=errors, progress=progress)
        return items

    def _fill(
        self, source: Source, *, empty: Empty = "keep", errors: Errors = "strict", progress: Progress | None = None
    ) -> None:
        gathered = _gather(source, empty=empty, errors=errors, progress=progress)
        if not len(gathered.ids):
            raise InputError(f"{source.name}: wanted at least one item, got none. Check that it is the right input.")
        self._ids, self._texts, self._empty_texts = gathered.ids, gathered.texts, gathered.empty_texts
        self._lookup = Lookup(self._ids, gathered.hashes)  # in the place of the one below
        duplicate = self._lookup.first_duplicate()
        if duplicate is not None:
            first, second = (int(gathered.places[row]) for row in duplicate)
            raise source.error(
                second,
                f"wanted every id once, got {self._ids[duplicate[0]]!r} again, first at {source.place(first)}. "
                "Remove or rename one of the two.",
            )

    @cached_property
    def _lookup(self) -> Lookup:
        """Made when an id is first looked for, since hashes are of one process only."""
        return Lookup(self._ids, np.concatenate([hash_ids(block) for block in self._ids.blocks(BLOCK)]))

    def __getstate__(self) -> dict[str, Any]:
        return {"_ids": self._ids, "_texts": self._texts, "_empty_texts": self._empty_texts}

    def to_parquet(self, path: AnyPath) -> None:
        """Write columns `_id` and `text`, which `Items.from_parquet` reads back as they are."""
        table = pa.table({"_id": self._ids.array, "text": self._texts.array})
        pq.write_table(table, Path(path), row_group_size=8 * BLOCK)

    def to_arrow(self, path: AnyPath) -> None:
        """Write ids and texts as they lie in memory, so that `Items.from_arrow` need not read them."""
        write_columns(Path(path), {"_id": self._ids, "text": self._texts}, {"empty texts": self._empty_texts})

    @classmethod
    def from_arrow(cls, path: AnyPath) -> Self:
        """Items of a file that `to_arrow` wrote, memory-mapped: open at once, and in memory once for all processes."""
        items = cls.__new__(cls)
        columns, facts = map_columns(Path(path), ("_id", "text"))
        items._ids, items._texts = columns
        items._empty_texts = facts.get("empty texts", 0)
        return items

    @property
    def stored_bytes(self) -> int:
        """What ids and texts take in such a file, but for some hundred bytes."""
        return int(self._ids.array.nbytes + self._texts.array.nbytes)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        shown = [*map(repr, self._ids[:3]), *(["…"] if len(self) > 3 else [])]
        return f"Items({len(self)} items, ids {', '.join(shown)})"

    @property
    def ids(self) -> Strings:
        """The id of every row, as a sequence."""
        return self._ids

    @property
    def texts(self) -> Strings:
        """The text of every row, as a sequence; `iter_texts` reads them in blocks."""
        return self._texts

    @property
    def empty_texts(self) -> int:
        """How many items have no text, or only white space."""
        return self._empty_texts

    @cached_property
    def fingerprint(self) -> str:
        """A hash of ids and texts in their order: equal for equal items, wherever they were read from."""
        digest = hashlib.blake2b(b"crossknn items 1", digest_size=16)
        digest.update(len(self).to_bytes(8, "little"))
        self._ids.update(digest)
        self._texts.update(digest)
        return digest.hexdigest()

    def id(self, row: int) -> str:
        """The id of one row."""
        return self.ids_of([row])[0]

    def text(self, row: int) -> str:
        """The text of one row."""
        return self.texts_of([row])[0]

    def ids_of(self, rows: ArrayLike) -> list[str]:
        """The ids of these rows, in their order."""
        return self._ids.take(self._check_rows(rows))

    def texts_of(self, rows: ArrayLike) -> list[str]:
        """The texts of these rows, in their order."""
        return self._texts.take(self._check_rows(rows))

    def iter_texts(self, *, block: int = BLOCK) -> Iterator[list[str]]:
        """All texts in row order, at most `block` at a time."""
        if block < 1:
            raise InputError(f"block must be at least 1. Got {block} instead.")
        return self._texts.blocks(block)

    def row(self, id: str | int) -> int:
        """The row of an id."""
        return int(self.rows_of([id])[0])

    def rows_of(self, ids: Iterable[str | int], *, missing: Literal["error", "skip"] = "error") -> Rows:
        """The rows of these ids, in their order; ids that no item has are an error, or left out."""
        check_choice("missing", missing, ("error", "skip"))
        found = [np.empty(0, np.int64)]
        for block in _id_blocks(ids):
            rows = self._lookup.find(block)
            if missing == "error" and len(rows) and rows.min() < 0:
                lost = block[int(np.argmin(rows))]
                raise InputError(
                    f"wanted the id of an item, got {lost!r}, which none of the {len(self)} items has. "
                    'Check the id; rows_of can leave such ids out with missing="skip".'
                )
            found.append(rows[rows >= 0])
        return np.concatenate(found)

    def __contains__(self, id: object) -> bool:
        wanted = as_id(id)
        return wanted is not None and self._lookup.find([wanted])[0] >= 0

    def mask(self, filter: Collection[str | int] | Callable[[str], bool]) -> Mask:
        """True for the items that a filter lets through: a collection of ids, or a function of an id.

        Ids that no item has are ignored, since access lists often name more than one corpus holds.
        """
        if isinstance(filter, Collection) and not isinstance(filter, str | bytes):
            allowed = np.zeros(len(self), np.bool_)
            allowed[self.rows_of(filter, missing="skip")] = True
            return allowed
        if not callable(filter):
            raise InputError(
                f"filter must be a collection of ids or a function of one id. Got {describe(filter)} instead. "
                "For one id pass a list of it."
            )
        return np.fromiter((bool(filter(id_)) for id_ in self._ids), np.bool_, len(self))

    def _check_rows(self, rows: ArrayLike) -> Rows:
        given = np.asarray(rows)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise InputError(f"rows must be a flat sequence of integers. Got {describe(rows)} instead.")
        if given.size and (given.min() < 0 or given.max() >= len(self)):
            worst = given.min() if given.min() < 0 else given.max()
            raise InputError(f"rows must be between 0 and {len(self) - 1}. Got {worst} instead.")
        return given.astype(np.int64)


def _id_blocks(ids: Iterable[str | int]) -> Iterator[list[str]]:
    """Ids from a user, as strings, a block at a time."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise InputError(f"ids must be a collection of ids. Got {describe(ids)} instead. For one id pass a list of it.")
    rest = iter(ids)
    while block := list(islice(rest, BLOCK)):
        wanted = [as_id(id_) for id_ in block]
        if None in wanted:
            raise InputError(f"ids must be strings or integers. Got {describe(block[wanted.index(None)])} instead.")
        yield [id_ for id_ in wanted if id_ is not None]


_READERS: Final = {
    ".jsonl": "from_jsonl",
    ".ndjson": "from_jsonl",
    ".json": "from_jsonl",
    ".csv": "from_csv",
    ".tsv": "from_csv",
    ".parquet": "from_parquet",
    ".txt": "from_lines",
}


def _corpus_in(path: Path) -> Path:
    """The file to read: the path itself, or the corpus of a BEIR folder."""
    if not path.is_dir():
        if not path.exists():
            readers.CountingFile(path).close()  # says what is wrong; a file that exists may be a pipe, read but once
        return path
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: wanted a file, or a folder that holds corpus.jsonl, got a folder without it.")
