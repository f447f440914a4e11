"""Padding of arrays of different lengths to one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pad_rows(arrays: Sequence[NDArray[Any]], value: float) -> NDArray[Any]:
    """(arrays, max length), padded with `value`."""
    padded = np.full(_shape(arrays), value, dtype=arrays[0].dtype if len(arrays) else None)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded


def valid_mask(arrays: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """(arrays, max length), False where `pad_rows` pads."""
    return np.arange(_shape(arrays)[1]) < np.array([len(array) for array in arrays], np.int64)[:, None]


def _shape(arrays: Sequence[NDArray[Any]]) -> tuple[int, int]:
    return len(arrays), max((len(array) for array in arrays), default=0)
