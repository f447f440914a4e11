"""What requests to a server cost: by pair or search, by token, and never more than a limit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from crossknn._checks import check_range
from crossknn.errors import InputError, ScorerError

BYTES_PER_TOKEN = 2  # of UTF-8; English has about four, Chinese two to four
TOKENS_AROUND_PAIR = 16  # special tokens and a chat's markup


@dataclass(frozen=True, slots=True)
class Usage:
    """What servers bill: units (pairs, or Cohere's searches) and tokens."""

    units: int = 0
    tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.units + other.units, self.tokens + other.tokens)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.units - other.units, self.tokens - other.tokens)


class CostTracker:
    """Usage times its prices, never more than a limit. Thread-safe; each process counts for itself."""

    def __init__(
        self, price_per_1000: float | None, price_per_million_tokens: float | None, spend_limit: float | None
    ) -> None:
        prices = {"price_per_1000": price_per_1000, "price_per_million_tokens": price_per_million_tokens}
        for name, value in (*prices.items(), ("spend_limit", spend_limit)):
            if value is not None:
                check_range(name, value, 0)
        if spend_limit is not None and price_per_1000 is None and price_per_million_tokens is None:
            raise InputError(
                "`spend_limit` needs `price_per_1000` or `price_per_million_tokens`: without a price the cost is "
                "unknown."
            )
        self._prices = (price_per_1000, price_per_million_tokens)
        self._limit = spend_limit
        self.used = Usage()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process begins at zero."""
        return type(self), (*self._prices, self._limit)

    @property
    def spent(self) -> float:
        """The cost so far; 0 without a price."""
        return self._cost(self.used)

    def check(self, usages: Iterable[Usage]) -> None:
        """Raise `ScorerError` if requests of this usage would exceed the limit."""
        if self._limit is None:
            return
        more = self._cost(sum(usages, Usage()))
        if self.spent + more > self._limit * (1 + 1e-9):
            expected = "this request would cost" if self._prices[1] is None else "this request may cost"
            raise ScorerError(
                f"`spend_limit` is {self._limit:g} and {self.spent:g} is spent: {expected} {more:g} more."
            )

    def charge(self, usage: Usage) -> None:
        """Count a request, or raise `ScorerError` if it would exceed the limit."""
        with self._lock:
            self.check([usage])
            self.used += usage

    def adjust(self, difference: Usage) -> None:
        """Correct the count, up or down, by what was really billed; the limit is not checked."""
        with self._lock:
            self.used += difference

    def _cost(self, usage: Usage) -> float:
        per_1000, per_million = (price or 0.0 for price in self._prices)
        return usage.units * per_1000 / 1e3 + usage.tokens * per_million / 1e6


def estimate_tokens(*texts: Sequence[str]) -> int:
    """How many tokens pairs have at most, as a rule: one per two bytes; the texts of a pair stand in one position."""
    size = sum(len(text.encode("utf-8", "replace")) for part in texts for text in part)
    return -(-size // BYTES_PER_TOKEN) + TOKENS_AROUND_PAIR * len(texts[0])
