"""Keys and values of what comes before the item in the pairs of a query, computed once and kept for later calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.pairs import PairTemplate
from crossknn.scorers.inference.token_store import Ragged, Tokens
from crossknn.types import Rows


class SharedPrefixes(NamedTuple):
    """The prefixes of the pairs of a batch."""

    states: Any  # (layers, 2, tokens, key heads, head dim) of the distinct prefixes, end to end
    starts: Tokens  # (pairs,) where each pair's begins
    lengths: Tokens  # (pairs,)


class PrefixCache:
    """Keys and values by the tokens they belong to; the least recently used are evicted. Thread-safe."""

    def __init__(self, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._states: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = Lock()
        self.tokens = 0  # kept now

    def get(self, keys: list[bytes]) -> list[Any]:
        """The states of each key; None where there are none."""
        with self._lock:
            for key in keys:
                if key in self._states:
                    self._states.move_to_end(key)
            return [self._states.get(key) for key in keys]

    def clear(self) -> None:
        """Free all states."""
        with self._lock:
            self._states.clear()
            self.tokens = 0

    def insert(self, key: bytes, states: Any) -> None:
        """Keep (layers, 2, tokens, key heads, head dim) states, which may evict others."""
        with self._lock:
            if key not in self._states:
                self._states[key] = states
                self.tokens += states.shape[2]
            while self.tokens > self._max_tokens:
                self.tokens -= self._states.popitem(last=False)[1].shape[2]


def find_prefixes(
    cache: PrefixCache, template: PairTemplate, queries: Ragged, compute: Callable[[list[Tokens]], Any]
) -> SharedPrefixes | None:
    """The prefixes of pairs with these queries; None where more than half of the pairs would need a new one.

    Args:
        cache: Where prefixes are kept.
        template: Says what stands around a query.
        queries: The tokens of each pair's query.
        compute: From the tokens of some prefixes to their (layers, 2, tokens, key heads, head dim) states, end to end.
    """
    torch = import_extra("torch", extra="models")
    rows, of_pair = distinct_rows(queries)
    before, after = (np.array(part, np.int32) for part in (template.prefix, template.middle))
    tokens = [np.concatenate([before, row, after]) for row in rows]
    keys = [part.tobytes() for part in tokens]
    states = cache.get(keys)
    missing = [at for at, found in enumerate(states) if found is None]
    if 2 * len(missing) > len(of_pair):
        return None
    if missing:
        computed = compute([tokens[at] for at in missing])
        parts = computed.split([len(tokens[at]) for at in missing], 2)
        for at, part in zip(missing, parts, strict=True):
            states[at] = part.contiguous()  # of its own, so that it is freed when it is evicted
            cache.insert(keys[at], states[at])
    lengths = np.array([len(part) for part in tokens], np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    joined = states[0] if len(states) == 1 else torch.cat(states, 2)
    return SharedPrefixes(joined, starts[of_pair], lengths[of_pair])


def distinct_rows(ragged: Ragged) -> tuple[list[Tokens], Rows]:
    """The distinct rows, as far as they are of one place in the buffer, and the number of each row among them."""
    places = np.stack([ragged.starts, ragged.lengths], 1)
    unique, inverse = np.unique(places, axis=0, return_inverse=True)
    return [ragged.flat[start : start + length] for start, length in unique], inverse.reshape(-1)
