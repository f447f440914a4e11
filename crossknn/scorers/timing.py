"""The speed of a scorer: counted while it works, measured on purpose, and stored for runs with cached scores."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from crossknn._checks import check_number, check_range
from crossknn.errors import InputError
from crossknn.scorers.base import check_pairs
from crossknn.storage.atomic import disk_errors, write_atomic
from crossknn.storage.regular_files import read_regular
from crossknn.types import Scorer, Scores

WARM_UP_PAIRS = 32
SMALL_ROUND_PAIRS = 10
SMALL_ROUNDS = 9
MIN_BULK_PAIRS = 100


class Timed:
    """A scorer with its calls counted and its time measured, for one thread at a time.

    Inside a `Cached` only real calls count.

    Args:
        scorer: The scorer.
        on_calls: Called with the number of pairs after each `score`; may be replaced at any time.

    Attributes:
        calls: Pairs scored so far.
        seconds: Time spent in the scorer for them.
    """

    def __init__(self, scorer: Scorer, *, on_calls: Callable[[int], None] | None = None) -> None:
        self.scorer = scorer
        self.on_calls = on_calls
        self.calls = 0
        self.seconds = 0.0

    @property
    def fingerprint(self) -> str:
        """The scorer's own: timing changes no score."""
        return self.scorer.fingerprint

    @property
    def calls_per_second(self) -> float | None:
        """None before the first call."""
        return self.calls / max(self.seconds, 1e-9) if self.calls else None

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """The scores of the pairs, as the scorer returns them."""
        start = time.perf_counter()
        scores = self.scorer.score(queries, items)
        self.seconds += time.perf_counter() - start
        self.calls += len(queries)
        if self.on_calls is not None and len(queries):
            self.on_calls(len(queries))
        return scores


@dataclass(frozen=True, slots=True)
class Speed:
    """A linear model of a scorer's time; many small rounds take longer than one large batch of as many calls.

    Args:
        per_round: Seconds for each call of `score`, whatever its size.
        per_call: Seconds for each pair.
    """

    per_round: float
    per_call: float

    def __post_init__(self) -> None:
        check_range("per_round", self.per_round, 0)
        check_number("per_call", self.per_call)

    @property
    def calls_per_second(self) -> float:
        """The throughput in large batches."""
        return 1 / self.per_call

    def seconds(self, rounds: Iterable[int]) -> float:
        """The time of rounds with these numbers of calls."""
        return sum(self.per_round + self.per_call * calls for calls in rounds if calls)


def measure_speed(scorer: Scorer, queries: Sequence[str], items: Sequence[str]) -> Speed:
    """The speed on these pairs: a few warm up, a few are scored in small rounds, the others at once."""
    check_pairs(queries, items)
    bulk_start = WARM_UP_PAIRS + SMALL_ROUNDS * SMALL_ROUND_PAIRS
    bulk = len(queries) - bulk_start
    if bulk < MIN_BULK_PAIRS:
        raise InputError(f"Measuring a scorer needs at least {bulk_start + MIN_BULK_PAIRS} pairs, got {len(queries)}.")

    def measure(start: int, calls: int) -> float:
        began = time.perf_counter()
        scorer.score(queries[start : start + calls], items[start : start + calls])
        return time.perf_counter() - began

    measure(0, WARM_UP_PAIRS)
    starts = range(WARM_UP_PAIRS, bulk_start, SMALL_ROUND_PAIRS)
    small_rounds = [measure(start, SMALL_ROUND_PAIRS) for start in starts]
    per_call = max(measure(bulk_start, bulk), 1e-9) / bulk
    return Speed(max(0.0, median(small_rounds) - SMALL_ROUND_PAIRS * per_call), per_call)


def save_speed(path: Path, speed: Speed, *, scorer: str, machine: str) -> None:
    """Write the speed of a scorer on a machine as JSON, atomically."""
    with disk_errors(path, "the scorer's speed cannot be kept"):
        write_atomic(path, json.dumps({**asdict(speed), "scorer": scorer, "machine": machine}, indent=1).encode())


def load_speed(path: Path, *, scorer: str, machine: str) -> Speed | None:
    """The speed stored for this scorer on this machine; None if it is missing or damaged, to be measured anew."""
    try:
        stored = json.loads(read_regular(path))
        matches = (stored.pop("scorer"), stored.pop("machine")) == (scorer, machine)
        return Speed(**stored) if matches else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, InputError):
        return None
