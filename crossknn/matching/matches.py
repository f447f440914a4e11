"""Matches: pairs of records that match, their clusters, what they cost, and files of both."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np

from crossknn._checks import check_choice, check_seed
from crossknn.errors import InputError
from crossknn.items.fields import fields_as_json
from crossknn.items.items import Items
from crossknn.matching.clusters import connected_components, pivot_clusters
from crossknn.matching.recall_estimate import RecallEstimate
from crossknn.storage.atomic import disk_errors, replace_file
from crossknn.types import Rows, Scores

if TYPE_CHECKING:
    from collections.abc import Callable

ClusterMethod = Literal["components", "pivot"]
METHODS: Final = ("components", "pivot")
SUFFIXES: Final = (".jsonl", ".csv", ".parquet")
CANNOT_WRITE: Final = "the matches cannot be written"


@dataclass(frozen=True, slots=True)
class Match:
    """Two records that match.

    Attributes:
        left, right: Their ids; in a self-join the earlier record is the left one.
        score: The scorer's raw logit; with `symmetric` the mean of both directions.
        probability: Of being a match, by the calibration; None without one.
        left_row, right_row: Their positions.
    """

    left: str
    right: str
    score: float
    probability: float | None
    left_row: int
    right_row: int


@dataclass(frozen=True, repr=False)
class Matches(Sequence[Match]):
    """Pairs of records that match, best first, and what finding them cost.

    Attributes:
        left, right: The two tables; the same one in a self-join.
        left_rows, right_rows, scores: One entry per pair.
        probabilities: Likewise, by the calibration; None without one.
        calls: Distinct pairs that were scored, in each direction scored, those read from the cache included.
        new_calls: Those of them that the scorer scored in this run.
        recall: The estimated share of all matching pairs that was found; None where it was not estimated.
        stopped: Why the search ended early: "deadline" or "cancelled"; else None.
        seconds: Wall time.
    """

    left: Items
    right: Items
    left_rows: Rows
    right_rows: Rows
    scores: Scores
    probabilities: Any = field(default=None)
    calls: int = 0
    new_calls: int = 0
    recall: RecallEstimate | None = None
    stopped: str | None = None
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        return f"<Matches: {len(self):,} pairs, {self.calls:,} calls>"

    @overload
    def __getitem__(self, index: int) -> Match: ...
    @overload
    def __getitem__(self, index: slice) -> list[Match]: ...
    def __getitem__(self, index: int | slice) -> Match | list[Match]:
        chosen = range(len(self))[index]
        return self._match(chosen) if isinstance(chosen, int) else [self._match(place) for place in chosen]

    def _match(self, place: int) -> Match:
        left, right = int(self.left_rows[place]), int(self.right_rows[place])
        chance = None if self.probabilities is None else float(self.probabilities[place])
        return Match(self.left.id(left), self.right.id(right), float(self.scores[place]), chance, left, right)

    @property
    def self_join(self) -> bool:
        return self.left is self.right

    def to_dicts(self, *, texts: bool = False, fields: bool = False) -> Iterator[dict[str, Any]]:
        """The pairs as JSON values, with the texts and the fields of both records if asked for."""
        for match in self:
            found: dict[str, Any] = {"left": match.left, "right": match.right, "score": match.score}
            if match.probability is not None:
                found["probability"] = match.probability
            for side, items, row in (("left", self.left, match.left_row), ("right", self.right, match.right_row)):
                if texts:
                    found[f"{side}_text"] = items.text(row)
                if fields:
                    found[f"{side}_fields"] = fields_as_json(items.fields_of([row])[0])
            yield found

    def write(self, path: str | Path, *, texts: bool = False, fields: bool = True) -> None:
        """Write the pairs to a .jsonl, .csv or .parquet file; in tables a field is a column `left_…` or `right_…`."""
        path = Path(path)
        check_suffix("path", path)
        records = list(self.to_dicts(texts=texts, fields=fields))
        if path.suffix == ".jsonl":
            lines = [json.dumps(one, ensure_ascii=False) + "\n" for one in records]
            _write(path, lambda target: target.write_text("".join(lines), encoding="utf-8"))
            return
        columns = ["left", "right", "score", *([] if self.probabilities is None else ["probability"])]
        _write_table(path, [_flatten(one) for one in records], columns)

    def clusters(self, method: ClusterMethod = "components", *, seed: int = 0) -> list[list[tuple[str, str]]]:
        """Groups of at least two records that match, largest first: lists of ("left" or "right", id).

        In a self-join all records are on the left.

        Args:
            method: "components": connected components, in which one wrong pair merges two groups. "pivot": correlation
                clustering by CC-Pivot, which does not merge records along a chain of matches.
            seed: Of the random orders of "pivot".
        """
        check_choice("method", method, METHODS)
        check_seed(seed)
        shift = 0 if self.self_join else len(self.left)
        ends = np.stack([self.left_rows, self.right_rows + shift], 1)
        nodes, places = np.unique(ends, return_inverse=True)
        edges = [(one, other) for one, other in places.reshape(-1, 2).tolist()]
        if method == "components":
            groups = connected_components(len(nodes), edges)
        else:
            groups = pivot_clusters(len(nodes), edges, seed=seed)
        named = [[self._name(int(nodes[node]), shift) for node in group] for group in groups if len(group) > 1]
        return sorted(named, key=lambda group: -len(group))

    def _name(self, node: int, shift: int) -> tuple[str, str]:
        if self.self_join or node < shift:
            return "left", self.left.id(node)
        return "right", self.right.id(node - shift)

    def write_clusters(self, path: str | Path, method: ClusterMethod = "components", *, seed: int = 0) -> None:
        """Write a row per clustered record to a .jsonl, .csv or .parquet file: cluster, id, and side of two tables."""
        path = Path(path)
        check_suffix("path", path)
        rows = [
            {"cluster": number, **({} if self.self_join else {"side": side}), "id": id_}
            for number, group in enumerate(self.clusters(method, seed=seed))
            for side, id_ in group
        ]
        if path.suffix == ".jsonl":
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            _write(path, lambda target: target.write_text(lines, encoding="utf-8"))
            return
        _write_table(path, rows, ["cluster", *([] if self.self_join else ["side"]), "id"])


def check_suffix(name: str, path: Path) -> None:
    """Raise `InputError` unless pairs or clusters can be written to a file of this name."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"`{name}` must end with {', '.join(SUFFIXES)}, got {str(path)!r}.")
    if not path.parent.is_dir():
        raise InputError(f"`{name}` must be in an existing folder, got {str(path)!r}.")


def _flatten(record: dict[str, Any]) -> dict[str, Any]:
    """The record with a column for each field of each side."""
    flat = {key: value for key, value in record.items() if not key.endswith("_fields")}
    for side in ("left", "right"):
        for name, value in record.get(f"{side}_fields", {}).items():
            column = f"{side}_{name}"
            flat[f"{column}_field" if column in flat else column] = value
    return flat


def _write_table(path: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    import csv

    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    if path.suffix == ".parquet":
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
        _write(path, lambda target: pq.write_table(table, target))
        return

    def write_csv(target: Path) -> None:
        with target.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            for row in rows:
                writer.writerow({name: json.dumps(v) if isinstance(v, list) else v for name, v in row.items()})

    _write(path, write_csv)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    with disk_errors(path, CANNOT_WRITE):
        replace_file(path, write)
