"""`Items`: the corpus. Ids, rows and texts, and the lookups between them."""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from crossknn._checks import check_choice, check_positive, invalid
from crossknn.errors import InputError
from crossknn.items import arrow_file, readers, string_column, tables
from crossknn.items.field_order import FieldOrder, map_orders, write_orders
from crossknn.items.fields import FieldColumn, concat_fields
from crossknn.items.readers import MAX_LINE_BYTES, WRITTEN_ITEMS, Errors, Record, Source, TextOptions, as_id, wrong_type
from crossknn.items.string_column import BLOCK_STRINGS, IdLookup, StringColumn, StringColumnBuilder
from crossknn.storage.atomic import disk_errors, replace_file
from crossknn.types import Filter, Mask, Progress, Rows

logger = logging.getLogger("crossknn")
_NO_ROWS: Final = np.empty(0, np.int64)

Empty = Literal["keep", "skip", "error"]
AnyPath = str | PathLike[str]

STRINGS: Final = ("_id", "text")  # names of the columns in files, beside fields
SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
CANNOT_WRITE: Final = "the items cannot be written"
BLOCK_CHARS: Final = 2**23  # in a block of records, besides at most BLOCK_STRINGS of them
READERS: Final = {
    ".jsonl": "from_jsonl",
    ".ndjson": "from_jsonl",
    ".json": "from_jsonl",
    ".csv": "from_csv",
    ".tsv": "from_csv",
    ".parquet": "from_parquet",
    ".txt": "from_lines",
}


class Items:
    """The corpus to search: ids, rows, texts and fields; immutable.

    A row is the position of an item in the order in which it was given.

    Args:
        texts: One string per item.
        ids: Distinct strings or integers, which become strings; by default "0", "1", …
        fields: Further columns by name, such as `{"section": […]}`: strings, numbers, booleans, dates or lists of
            strings, one value per item; None where an item has none.
    """

    def __init__(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str | int] | None = None,
        fields: Mapping[str, Iterable[Any]] | None = None,
    ) -> None:
        self._fill(readers.TextsAndIds(texts, ids, fields))

    @classmethod
    def from_dict(cls, texts: Mapping[str, str]) -> Self:
        """Items from a mapping of ids to texts, in its order."""
        if not isinstance(texts, Mapping):
            raise wrong_type("texts", "a mapping of ids to texts", texts)
        return cls(texts.values(), ids=texts.keys())

    @classmethod
    def from_records(
        cls,
        records: Iterable[Mapping[str, Any]],
        *,
        id: str | None = None,
        text: str | Sequence[str] = ("title", "text"),
        join: str = " ",
        fields: Sequence[str] | None = None,
        empty: Empty = "keep",
        errors: Errors = "strict",
    ) -> Self:
        """Items from mappings with an id and one or several text fields; other options as for `from_jsonl`."""
        return cls._load(readers.Mappings(records, errors, id=id, text=text, join=join, fields=fields), empty)

    @classmethod
    def from_jsonl(
        cls,
        path: AnyPath,
        *,
        id: str | None = None,
        text: str | Sequence[str] = ("title", "text"),
        join: str = " ",
        fields: Sequence[str] | None = None,
        empty: Empty = "keep",
        errors: Errors = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        max_unpacked_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Items from a file with one JSON object per line, by default with the fields of BEIR; may be gzipped.

        The id is the field `_id`, else `id`. Several text fields are joined by `join`. All other fields are kept, or
        those that `fields` names, `[]` for none. Items without text are kept, skipped or an error, as `empty` says.
        Bytes that are not UTF-8 are an error, or with `errors="replace"` U+FFFD. `progress` gets the bytes read.
        A compressed file may unpack to `max_unpacked_bytes`, by default 100 times its size and at least 1 GiB.
        """
        options = TextOptions(errors=errors, max_line_bytes=max_line_bytes, max_unpacked_bytes=max_unpacked_bytes)
        names: readers.FieldOptions = {"id": id, "text": text, "join": join, "fields": fields}
        source = readers.JsonLines(Path(path), names, **options)
        return cls._load(source, empty, progress)

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
        fields: Sequence[str] | None = None,
        empty: Empty = "keep",
        errors: Errors = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        max_unpacked_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Items from delimited text with a header line; other options as for `from_jsonl`.

        By default the delimiter is a tab for `.tsv` and a comma otherwise, the id is column `_id`, else `id`, and the
        text is joined from the columns `title` and `text`, as far as they exist. `quote=None`: quotes are characters.
        The types of the other columns are inferred from all their values.
        """
        source = readers.Csv(
            Path(path),
            delimiter=delimiter,
            quote=quote,
            fields={"id": id, "text": text, "join": join, "fields": fields},
            errors=errors,
            max_line_bytes=max_line_bytes,
            max_unpacked_bytes=max_unpacked_bytes,
        )
        return cls._load(source, empty, progress)

    @classmethod
    def from_parquet(
        cls,
        path: AnyPath,
        *,
        id: str | None = None,
        text: str | Sequence[str] | None = None,
        join: str = " ",
        fields: Sequence[str] | None = None,
        empty: Empty = "keep",
        errors: Errors = "strict",
        max_unpacked_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Items from a Parquet file; only the columns needed are read, with the same defaults as `from_csv`."""
        names: readers.FieldOptions = {"id": id, "text": text, "join": join, "fields": fields}
        source = readers.Parquet(Path(path), errors=errors, max_unpacked_bytes=max_unpacked_bytes, **names)
        return cls._load(source, empty, progress)

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        *,
        id: str | None = None,
        text: str | Sequence[str] | None = None,
        join: str = " ",
        fields: Sequence[str] | None = None,
        empty: Empty = "keep",
    ) -> Self:
        """Items from a DataFrame, with the same defaults as `from_csv`; without a column of ids they are its index."""
        table = tables.read_frame(frame, index="_id" if id is None else None)
        source = readers.Table(
            table.schema, table.to_batches(BLOCK_STRINGS), name="frame", id=id, text=text, join=join, fields=fields
        )
        return cls._load(source, empty)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        id: str | None = None,
        text: str | Sequence[str] | None = None,
        join: str = " ",
        fields: Sequence[str] | None = None,
        empty: Empty = "keep",
    ) -> Self:
        """Items from a Hugging Face `Dataset`, or from a table that has `to_arrow`, as of polars.

        The defaults are those of `from_csv`; without a column of ids they are row numbers.
        """
        schema, batches = tables.read_dataset(dataset)
        source = readers.Table(
            schema, batches, name="dataset", rows_as_ids=True, id=id, text=text, join=join, fields=fields
        )
        return cls._load(source, empty)

    @classmethod
    def from_lines(
        cls,
        path: AnyPath,
        *,
        errors: Errors = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        max_unpacked_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Items from a file with one text per line; ids are line numbers, from 1, and blank lines are skipped."""
        options = TextOptions(errors=errors, max_line_bytes=max_line_bytes, max_unpacked_bytes=max_unpacked_bytes)
        source = readers.Lines(Path(path), **options)
        return cls._load(source, progress=progress)

    @classmethod
    def from_path(cls, path: AnyPath, **options: Any) -> Self:
        """Items from a file by its suffix, or from a BEIR folder; the options are those of its reader."""
        path = _find_corpus(Path(path))
        name = path.name.lower()
        plain = name.removesuffix(".gz")
        suffix = Path(plain).suffix
        reader = READERS.get(suffix)
        if reader is None or (suffix == ".parquet" and plain != name):
            raise InputError(
                f"{path}: the suffix must be one of {', '.join(READERS)} (gzipped with .gz, except .parquet). "
                "Rename the file, or call its reader, such as Items.from_jsonl."
            )
        method = getattr(cls, reader)
        try:
            inspect.signature(method).bind(path, **options)
        except TypeError as error:
            raise InputError(f"{path} is read by Items.{reader}: {error}.") from error
        return method(path, **options)  # type: ignore[no-any-return]

    @classmethod
    def _load(cls, source: Source, empty: Empty = "keep", progress: Progress | None = None) -> Self:
        items = cls.__new__(cls)
        items._fill(source, empty, progress)
        return items

    def _fill(self, source: Source, empty: Empty = "keep", progress: Progress | None = None) -> None:
        columns = _read_columns(source, empty, progress)
        self._orders: dict[str, FieldOrder] = {}
        self._ids, self._texts, self._fields, hashes, places, self._empty_texts = columns
        if not len(self._ids):
            raise InputError(f"{source.name}: no items. At least one is needed.")
        self._lookup = IdLookup(self._ids, hashes)
        duplicate = self._lookup.first_duplicate()
        if duplicate is not None:
            first, second = (int(places[row]) for row in duplicate)
            id_, place = self._ids[duplicate[0]], source.place(first)
            raise source.error(second, f"the id {id_!r} is not unique, first at {place}. Rename one of the two.")

    @cached_property
    def _lookup(self) -> IdLookup:
        """Made on first use after unpickling or mapping, since hashes differ between processes."""
        hashes = [string_column.hash_ids(block) for block in self._ids.blocks(BLOCK_STRINGS)]
        return IdLookup(self._ids, np.concatenate([np.empty(0, np.int64), *hashes]))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_ids", "_texts", "_fields", "_orders", "_empty_texts")}

    def to_parquet(self, path: AnyPath) -> None:
        """Write the columns `_id` and `text` and the fields, which `Items.from_parquet` reads back unchanged."""
        for name in STRINGS:
            if name in self._fields:
                raise InputError(f"a Parquet file cannot have a field {name!r} beside the ids and texts of the items.")
        columns = {"_id": self._ids.array, "text": self._texts.array}
        table = pa.table(columns | {name: column.array for name, column in self._fields.items()})
        table = table.replace_schema_metadata({WRITTEN_ITEMS: b"1"})
        with disk_errors(Path(path), CANNOT_WRITE):
            replace_file(Path(path), lambda file: pq.write_table(table, file, row_group_size=8 * BLOCK_STRINGS))

    def to_arrow(self, path: AnyPath) -> None:
        """Write ids, texts and fields as they are in memory, for `Items.from_arrow` to map."""
        with disk_errors(Path(path), CANNOT_WRITE):
            replace_file(Path(path), self.write_arrow)

    def write_arrow(self, path: Path) -> None:
        """The same, neither atomic nor synced: that is up to the caller."""
        strings = {"_id": self._ids, "text": self._texts}
        arrow_file.write_columns(path, strings, fields=self._fields, facts={"empty texts": self._empty_texts})

    @classmethod
    def from_arrow(cls, path: AnyPath) -> Self:
        """Items from a file of `to_arrow`, memory-mapped: opened at once, and shared between processes."""
        items = cls.__new__(cls)
        (items._ids, items._texts), items._fields, facts = arrow_file.map_columns(Path(path), STRINGS)
        items._empty_texts, items._orders = facts.get("empty texts", 0), {}
        return items

    def check_ids(self) -> None:
        """Raise `InputError` for ids that are no text or not unique, as a file of `from_arrow` may have them."""
        self._ids.check(text=True)
        duplicate = self._lookup.first_duplicate()
        if duplicate is not None:
            raise InputError(f"the id {self._ids[duplicate[0]]!r} is not unique.")

    def check_texts(self) -> None:
        """Read all texts and fields, and raise `InputError` if they are none, as in a damaged file of `from_arrow`."""
        self._texts.check(text=True)
        for column in self._fields.values():
            column.check_values()
        for name, order in self._orders.items():
            order.check(name, values=True)

    @property
    def stored_bytes(self) -> int:
        """The size of the file of `to_arrow`, except some hundred bytes."""
        arrays = [self._ids.array, self._texts.array, *(column.array for column in self._fields.values())]
        return sum(int(array.nbytes) for array in arrays)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        first = [*map(repr, self._ids[:3]), *(["…"] if len(self) > 3 else [])]
        fields = "".join(f", {name}: {kind}" for name, kind in self.fields.items())
        return f"Items({len(self)} items, ids {', '.join(first)}{fields})"

    @property
    def ids(self) -> StringColumn:
        """The id of every row, as a sequence."""
        return self._ids

    @property
    def texts(self) -> StringColumn:
        """The text of every row, as a sequence."""
        return self._texts

    @property
    def empty_texts(self) -> int:
        """The number of items without text, or with white space only."""
        return self._empty_texts

    @property
    def fields(self) -> dict[str, str]:
        """The names and types of the fields: "string", "int64", "float64", "bool", "date", "list of strings", …"""
        return {name: column.kind for name, column in self._fields.items()}

    def field(self, name: str) -> FieldColumn:
        """The values of one field of all items, as a sequence; None where an item has none."""
        if name not in self._fields:
            known = ", ".join(map(repr, self._fields)) or "none"
            raise InputError(f"the items have no field {name!r}. Their fields: {known}.")
        return self._fields[name]

    def fields_of(self, rows: ArrayLike) -> list[dict[str, Any]]:
        """The fields of these rows by name, in their order."""
        chosen = self._check_rows(rows)
        values = [column.take(chosen) for column in self._fields.values()]
        if not values:
            return [{} for _ in chosen]
        return [dict(zip(self._fields, row, strict=True)) for row in zip(*values, strict=True)]

    def index_fields(self, *names: str) -> Self:
        """The same items with an index on these fields, by which filters find few of many items faster.

        An index is the order of a field's values, 4 bytes per item. `Index.save`, `take` and `extend` keep it.
        """
        items = copy(self)
        items._orders = self._orders | {name: FieldOrder.of(self.field(name)) for name in names}
        return items

    @property
    def indexed_fields(self) -> tuple[str, ...]:
        """The names of the fields that have an index."""
        return tuple(self._orders)

    def write_orders(self, path: Path) -> None:
        """Write the index of each of `indexed_fields`, neither atomic nor synced."""
        write_orders(path, self._orders)

    def with_orders(self, path: Path, names: Sequence[str]) -> Self:
        """The same items with the indexes of these fields as `write_orders` wrote them, memory-mapped and checked."""
        items = copy(self)
        items._orders = map_orders(path, self._fields, names)
        return items

    def take(self, rows: ArrayLike) -> Self:
        """The items of these rows, in their order, with their fields."""
        chosen = self._check_rows(rows)
        items = type(self)(self._texts.take(chosen), ids=self._ids.take(chosen))
        indices = string_column.to_indices(chosen)
        items._fields = {name: FieldColumn(column.array.take(indices)) for name, column in self._fields.items()}
        return items.index_fields(*self._orders)

    def extend(self, items: Items) -> Self:
        """These items and then others, with the fields of both: null for items that have none of a name.

        A field must have the same type in both; integers and floats become floats, and new numbers, booleans and dates
        become strings where these items have strings.
        """
        fields = concat_fields(self._fields, len(self), items._fields, len(items))
        together = type(self)(chain(self._texts, items._texts), ids=chain(self._ids, items._ids))
        together._fields = fields
        return together.index_fields(*self._orders)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of ids and texts in their order, not of fields: equal items score the same, whatever they hold."""
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

    def iter_texts(self, *, block: int = BLOCK_STRINGS) -> Iterator[list[str]]:
        """All texts in row order, at most `block` at a time."""
        check_positive("block", block)
        return self._texts.blocks(block)

    def row(self, id: str | int) -> int:
        """The row of an id."""
        return int(self.rows_of([id])[0])

    def rows_of(self, ids: Iterable[str | int], *, missing: Literal["error", "skip"] = "error") -> Rows:
        """The rows of these ids, in their order; unknown ids are an error, or skipped."""
        check_choice("missing", missing, ("error", "skip"))
        found = [_NO_ROWS]
        for block in _id_blocks(ids):
            rows = self._lookup.find(block)
            if missing == "error" and len(rows) and rows.min() < 0:
                unknown = block[int(np.argmin(rows))]
                raise InputError(
                    f"None of the {len(self)} items has the id {unknown!r}. "
                    'Check the id; rows_of skips unknown ids with missing="skip".'
                )
            found.append(rows[rows >= 0])
        return np.concatenate(found)

    def __contains__(self, id: object) -> bool:
        string = as_id(id)
        return string is not None and self._lookup.find([string])[0] >= 0

    def mask(self, filter: Filter) -> Mask:
        """(items,) True for the items that a filter allows: conditions on fields, ids, or a function of an id.

        Conditions are a mapping such as `{"section": "utils", "size": {"lt": 5000}}`; `docs/items.md` has all. Unknown
        ids are ignored, since access lists often name more than one corpus holds.
        """
        if isinstance(filter, Mapping):
            from crossknn.items.filters import FieldFilter

            rows_of = partial(self.rows_of, missing="skip")
            mask = FieldFilter(self._fields, self._ids.array, rows_of, orders=self._orders).mask(filter)
            mask.items = self
            return mask
        if isinstance(filter, Collection) and not isinstance(filter, str | bytes):
            allowed = np.zeros(len(self), np.bool_)
            allowed[self.rows_of(filter, missing="skip")] = True
            return allowed
        if not callable(filter):
            requirement = "a mapping of fields to values, a collection of ids, or a function of one id"
            raise wrong_type("filter", requirement, filter, "For one id pass a list of it.")
        return np.fromiter((bool(filter(id_)) for id_ in self._ids), np.bool_, len(self))

    def _check_rows(self, rows: ArrayLike) -> Rows:
        given = np.asarray(rows)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise wrong_type("rows", "a flat sequence of integers", rows)
        if given.size and (given.min() < 0 or given.max() >= len(self)):
            wrong = int(given.min() if given.min() < 0 else given.max())
            raise invalid("rows", f"between 0 and {len(self) - 1}", wrong)
        return given.astype(np.int64)


def _find_corpus(path: Path) -> Path:
    """The file to read: the path itself, or the corpus of a BEIR folder."""
    if not path.is_dir():
        if not path.exists():
            readers.CountingFile(path).close()  # for its error; a path that exists may be a pipe, read only once
        return path
    for name in ("corpus.jsonl", "corpus.jsonl.gz"):
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: a folder without corpus.jsonl. Give a file, or a folder that holds it.")


def _id_blocks(ids: Iterable[str | int]) -> Iterator[list[str]]:
    """Ids from a user, as strings, a block at a time."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise wrong_type("ids", "a collection of ids", ids, "For one id pass a list of it.")
    rest = iter(ids)
    while block := list(islice(rest, BLOCK_STRINGS)):
        strings = [as_id(id_) for id_ in block]
        if None in strings:
            raise wrong_type("ids", "strings or integers", block[strings.index(None)])
        yield [id_ for id_ in strings if id_ is not None]


def _read_columns(
    source: Source, empty: Empty, progress: Progress | None
) -> tuple[StringColumn, StringColumn, dict[str, FieldColumn], NDArray[np.int64], NDArray[np.int64], int]:
    """Ids, texts, fields, hashes of ids, places, the number of empty texts; one block of Python objects at a time."""
    check_choice("errors", source.errors, ("strict", "replace"))
    check_choice("empty", empty, ("keep", "skip", "error"))
    ids, texts = StringColumnBuilder(), StringColumnBuilder()
    hashes, places = array("q"), array("q")  # which grow in place, unlike lists of arrays, whose memory stays
    empty_places: list[int] = []
    skipped: list[int] = []
    step = f"read {Path(source.name).name}"
    for block in _blocks(_filter_empty(source, empty, empty_places, skipped)):
        block_ids, block_texts, block_places = map(list, zip(*block, strict=True))
        block_ids = _encodable(block_ids, block_places, source)
        ids.append(block_ids)
        texts.append(_encodable(block_texts, block_places, source))
        hashes.frombytes(string_column.hash_ids(block_ids).tobytes())
        places.fromlist(block_places)
        if progress is not None:
            progress(step, source.done, max(source.total, source.done))
    if progress is not None:
        progress(step, max(source.total, source.done), max(source.total, source.done))
    if empty_places:
        level, done = (logging.WARNING, "kept") if empty == "keep" else (logging.INFO, "skipped")
        first = source.place(empty_places[0])
        logger.log(level, "%d items without text were %s, the first at %s", len(empty_places), done, first)
    n_empty = len(empty_places) if empty == "keep" else 0
    fields = _without_rows(source.collector.finish(), skipped)
    pa.default_memory_pool().release_unused()  # what blocks were read into
    of_rows = np.frombuffer(hashes, np.int64), np.frombuffer(places, np.int64)
    return ids.finish(), texts.finish(), fields, *of_rows, n_empty


def _without_rows(fields: dict[str, FieldColumn], skipped: list[int]) -> dict[str, FieldColumn]:
    """The fields of records without those at these positions."""
    if not skipped:
        return fields
    kept: dict[str, FieldColumn] = {}
    for name, column in fields.items():
        rows = string_column.to_indices(np.delete(np.arange(len(column)), skipped))
        kept[name] = FieldColumn(column.array.take(rows))
    return kept


def _filter_empty(source: Source, policy: Empty, places: list[int], skipped: list[int]) -> Iterator[Record]:
    """Keep, skip or refuse records without text; their places go to `places`, the position of those skipped, too."""
    for position, (id_, text, place) in enumerate(source):
        if not text or text.isspace():
            if policy == "error":
                raise source.error(
                    place, f'no text for id {id_!r}. Give it text, or pass empty="keep" or empty="skip".'
                )
            places.append(place)
            if policy == "skip":
                skipped.append(position)
                continue
        yield id_, text, place


def _blocks(records: Iterator[Record]) -> Iterator[list[Record]]:
    """Blocks of records, bounded in number and in characters."""
    block: list[Record] = []
    chars = 0
    for record in records:
        block.append(record)
        chars += len(record[1])
        if len(block) == BLOCK_STRINGS or chars > BLOCK_CHARS:
            yield block
            block, chars = [], 0
    if block:
        yield block


def _encodable(strings: list[str], places: Sequence[int], source: Source) -> list[str]:
    """The strings without lone surrogates, which UTF-8 cannot encode: an error, or replaced by U+FFFD."""
    try:
        "".join(strings).encode()
    except UnicodeEncodeError as error:
        if source.errors == "replace":
            return [string.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") for string in strings]
        for string, place in zip(strings, places, strict=True):
            if found := SURROGATE.search(string):
                character, position = f"\\u{ord(found[0]):04x}", found.start()
                raise source.error(
                    place,
                    f'a lone surrogate {character} at character {position}. Fix the text, or pass errors="replace".',
                ) from error
    return strings
