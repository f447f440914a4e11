"""Cost of requests to a paid server, and the limit on it."""

from __future__ import annotations

import math
import threading
from typing import Any

from crossknn._checks import invalid
from crossknn.errors import InputError, ScorerError


class CostTracker:
    """Billed units times their price, never more than a limit. Thread-safe; each process counts for itself.

    Args:
        price_per_1000: The price of 1,000 units, if known.
        spend_limit: The maximum cost, if any.
    """

    def __init__(self, price_per_1000: float | None, spend_limit: float | None) -> None:
        for name, value in (("price_per_1000", price_per_1000), ("spend_limit", spend_limit)):
            if value is not None and not _is_amount(value):
                raise invalid(name, "a nonnegative number", value)
        if spend_limit is not None and price_per_1000 is None:
            raise InputError("`spend_limit` needs `price_per_1000`: without it the cost is unknown.")
        self.price = price_per_1000
        self.limit = spend_limit
        self.units = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.price, self.limit)

    @property
    def spent(self) -> float:
        """The cost so far; 0 without a price."""
        return self._cost(self.units)

    def check(self, units: int) -> None:
        """Raise `ScorerError` if this many units would exceed the limit."""
        if self.limit is not None and self.spent + self._cost(units) > self.limit * (1 + 1e-9):
            raise ScorerError(
                f"`spend_limit` is {self.limit:g} and {self.spent:g} is spent: "
                f"this request would cost {self._cost(units):g} more."
            )

    def charge(self, units: int) -> None:
        """Count units, or raise `ScorerError` if they would exceed the limit."""
        with self._lock:
            self.check(units)
            self.units += units

    def adjust(self, units: int) -> None:
        """Correct the count, up or down, by what was really billed; the limit is not checked."""
        with self._lock:
            self.units += units

    def _cost(self, units: int) -> float:
        return units * (self.price or 0.0) / 1000


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
