"""DataFrames and datasets of other libraries as Arrow tables; none of them is imported."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from crossknn.errors import InputError
from crossknn.items.field_readers import read_values
from crossknn.items.readers import wrong_type
from crossknn.items.string_column import BLOCK_STRINGS


def read_frame(frame: Any, *, index: str | None) -> pa.Table:
    """A DataFrame of pandas as a table; its index becomes a column `index` if it has no column of ids."""
    if not hasattr(frame, "columns") or not hasattr(frame, "index") or not hasattr(frame, "itertuples"):
        raise wrong_type("frame", "a DataFrame of pandas", frame, "For others use Items.from_dataset.")
    names = [name for name in frame.columns if isinstance(name, str)]
    columns = {name: _read_series(frame[name]) for name in names if names.count(name) == 1}
    if index is not None and not {"_id", "id"} & {*columns}:
        columns[index] = _read_series(frame.index.to_series())
    return pa.table(columns)


def _read_series(series: Any) -> pa.Array | pa.ChunkedArray:
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, OverflowError):  # of objects of several types
        values = [None if isinstance(value, float) and math.isnan(value) else value for value in series.tolist()]
        array = read_values(values)[1]
        return pa.array([b""] * len(values), pa.binary()) if array is None else array


def read_dataset(dataset: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the rows of a `datasets.Dataset`, or of anything that has `to_arrow`."""
    if hasattr(dataset, "with_format") and hasattr(dataset, "iter"):  # selected and shuffled rows in their order
        tables = dataset.with_format("arrow").iter(batch_size=BLOCK_STRINGS)
        return dataset.features.arrow_schema, (batch for table in tables for batch in table.to_batches())
    if isinstance(dataset, pa.Table):
        return dataset.schema, iter(dataset.to_batches(BLOCK_STRINGS))
    if callable(getattr(dataset, "to_arrow", None)) and isinstance(table := dataset.to_arrow(), pa.Table):
        return table.schema, iter(table.to_batches(BLOCK_STRINGS))
    if isinstance(dataset, dict):
        raise InputError(f"`dataset` must be one split, got {len(dataset)}: {', '.join(map(repr, dataset))}.")
    raise wrong_type("dataset", "a Dataset of Hugging Face, or a table with `to_arrow`", dataset)
