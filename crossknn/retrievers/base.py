"""What every retriever checks before it answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.errors import InputError
from crossknn.types import Mask


def check_name(name: str) -> str:
    """`name`, if strategies and hits can refer to a retriever by it."""
    if not isinstance(name, str) or not name:
        raise InputError(f"name must be a non-empty string. Got {name!r} instead.")
    return name


def check_fitted(n_items: int | None, name: str) -> int:
    """How many items the retriever was fitted on; an error if it was not."""
    if n_items is None:
        raise InputError(f"the retriever {name!r} has not seen any items yet: call fit(items) first.")
    return n_items


def check_request(n_items: int, queries: Sequence[str], n: int, allowed: Mask | None) -> None:
    """Raise `InputError` unless `retrieve` can answer this."""
    if isinstance(queries, str):
        raise InputError("queries must be a list of strings, one per query. Got one string instead.")
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise InputError(f"n must be an integer of at least 0. Got {n!r} instead.")
    if allowed is None:
        return
    if not isinstance(allowed, np.ndarray) or allowed.dtype != np.bool_ or allowed.shape != (n_items,):
        found = f"{allowed.dtype} {allowed.shape}" if isinstance(allowed, np.ndarray) else type(allowed).__name__
        raise InputError(f"allowed must be a boolean array of shape ({n_items},), one per item. Got {found} instead.")
