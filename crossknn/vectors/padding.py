"""Arrays of different lengths as the lines of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pad_rows(lines: Sequence[NDArray[Any]], value: float) -> NDArray[Any]:
    """(lines, most) of which the shorter ones are filled up with this value."""
    filled = np.full(_shape(lines), value, dtype=lines[0].dtype if len(lines) else None)
    for whole, line in zip(filled, lines, strict=True):
        whole[: len(line)] = line
    return filled


def valid_mask(lines: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
    """(lines, most) where `pad_rows` has nothing to do."""
    return np.arange(_shape(lines)[1]) < np.array([len(line) for line in lines], np.int64)[:, None]


def _shape(lines: Sequence[NDArray[Any]]) -> tuple[int, int]:
    return len(lines), max((len(line) for line in lines), default=0)
