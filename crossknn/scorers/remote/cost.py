"""What requests to a paid server have cost so far, and the limit that they must not pass."""

from __future__ import annotations

import math
import threading
from typing import Any

from crossknn.errors import InputError, ScorerError


class Spending:
    """Money spent on units of `price` per 1,000, never more than `limit`. For threads; each process has its own."""

    def __init__(self, price: float | None, limit: float | None) -> None:
        for name, value in (("price_per_1000", price), ("spend_limit", limit)):
            if value is not None and not _is_amount(value):
                raise InputError(f"{name} must be a number of at least 0. Got {value!r} instead.")
        if limit is not None and price is None:
            raise InputError("spend_limit needs price_per_1000: without it nothing is known to cost money.")
        self.price = price
        self.limit = limit
        self.units = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"price": self.price, "limit": self.limit, "units": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def money(self) -> float:
        """0 without a price."""
        return self.units * (self.price or 0.0) / 1000

    def check(self, units: int) -> None:
        """An error if so many more would pass the limit."""
        more = units * (self.price or 0.0) / 1000
        if self.limit is not None and self.money + more > self.limit * (1 + 1e-9):
            raise ScorerError(
                f"spend_limit is {self.limit:g} and {self.money:g} is spent: what was asked would cost {more:g} more."
            )

    def pay(self, units: int) -> None:
        """Count so many, or raise an error that they would pass the limit."""
        with self._lock:
            self.check(units)
            self.units += units

    def correct(self, units: int) -> None:
        """Count so many more, or fewer, that turned out to be billed; the limit is not asked."""
        with self._lock:
            self.units += units


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
