"""Which fields of a record hold the id and the text, and how they are read and checked."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from crossknn.errors import InputError

if TYPE_CHECKING:
    from crossknn.items.readers import Record, Source

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the id field and the text fields.

    One text field is taken as it is. Several are joined in the order given, without empty ones, and the result is
    stripped: with the defaults this is BEIR's convention, title + " " + text.
    """

    id: str = "_id"
    text: tuple[str, ...] = ("title", "text")
    join: str = " "

    def __post_init__(self) -> None:
        for option, names in (("id", (self.id,)), ("text", self.text)):
            if not names or not all(isinstance(name, str) and name for name in names):
                raise wrong_type(option, "the name of a field", names)
        if not isinstance(self.join, str):
            raise wrong_type("join", "a string", self.join)

    @classmethod
    def of(cls, id_: str, text: str | Sequence[str], join: str) -> Fields:
        """The same, with one text field given as a plain string."""
        return cls(id_, (text,) if isinstance(text, str) else tuple(text), join)

    @classmethod
    def among(
        cls, columns: Sequence[str], *, id_: str | None, text: str | Sequence[str] | None, join: str, name: str
    ) -> Fields:
        """The fields of a table with these columns: those given, or the default ones that it has."""
        if id_ is None:
            id_ = next((default for default in ("_id", "id") if default in columns), "_id")
        if text is None:
            text = [default for default in ("title", "text") if default in columns] or ["text"]
        fields = cls.of(id_, text, join)
        for column in (fields.id, *fields.text):
            if columns.count(column) != 1:
                count = "no column" if column not in columns else "more than one column"
                raise InputError(
                    f"{name}: {count} named {column!r} among {', '.join(map(repr, columns))}. "
                    "Name the columns to read with `id` and `text`."
                )
        return fields

    def read(self, record: Mapping[str, Any], source: Source, place: int) -> Record:
        """The id and the text of one record, or an error that names its place."""
        if self.id not in record:
            names = ", ".join(map(repr, record)) or "none at all"
            raise source.error(place, f"no id field {self.id!r} among its fields ({names}). Name it with `id`.")
        return read_id(record[self.id], source, place), self._read_text(record, source, place), place

    def _read_text(self, record: Mapping[str, Any], source: Source, place: int) -> str:
        parts = [record[name] for name in self.text if name in record]
        if not parts:
            expected, names = " or ".join(map(repr, self.text)), ", ".join(map(repr, record))
            raise source.error(place, f"no text field {expected} among its fields ({names}). Name them with `text`.")
        for part in parts:
            if part is not None:
                check_text(part, source, place)
        if len(self.text) == 1:
            return parts[0] or ""
        return self.join.join(part for part in parts if part).strip()


def as_id(value: object) -> str | None:
    """The id as a string: strings as they are, integers in digits, None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    return None


def read_id(value: object, source: Source, place: int) -> str:
    """The id of a record, or an error that names its place."""
    id_ = as_id(value)
    if not id_:
        raise source.error(place, f"an id must be a nonempty string or an integer, got {describe(value)}.")
    return id_


def check_text(value: object, source: Source, place: int) -> str:
    """The text of a record, or an error that names its place."""
    if not isinstance(value, str):
        raise source.error(place, f"a text must be a string, got {describe(value)}.")
    return value


def describe(value: object) -> str:
    """A value for a message: its type and its shortened representation."""
    return "null" if value is None else f"{type(value).__name__} {_SHORT.repr(value)}"


def wrong_type(name: str, requirement: str, value: object, hint: str = "") -> InputError:
    """`crossknn._checks.invalid` for values of any size, which are described in short."""
    return InputError(f"`{name}` must be {requirement}, got {describe(value)}.{f' {hint}' if hint else ''}")
