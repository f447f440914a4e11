"""How fast a scorer is: measured while it works, and kept for runs whose scores all come from a cache."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from crossknn.errors import InputError
from crossknn.storage.atomic import write_atomic
from crossknn.types import Scorer

WARM_UP = 32  # pairs before anything is measured
SMALL_ROUND, SMALL_ROUNDS = 10, 9


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a scorer takes: `per_round` seconds whenever it is asked, and `per_call` more for every pair.

    A search of many small rounds takes longer than one large batch of as many calls; the first part says by how much.
    """

    per_round: float
    per_call: float

    def __post_init__(self) -> None:
        if not (0 <= self.per_round < math.inf and 0 < self.per_call < math.inf):
            raise InputError(
                f"a speed must be of positive seconds. Got {self.per_round!r} and {self.per_call!r} instead."
            )

    @property
    def calls_per_second(self) -> float:
        """In large batches."""
        return 1 / self.per_call

    def seconds(self, rounds: Iterable[int]) -> float:
        """What rounds of so many calls take."""
        return sum(self.per_round + self.per_call * calls for calls in rounds if calls)


def measure_speed(scorer: Scorer, queries: Sequence[str], items: Sequence[str]) -> Speed:
    """The speed of `scorer` on these pairs: some to warm up, some in rounds of ten, the others at once."""
    small = WARM_UP + SMALL_ROUNDS * SMALL_ROUND
    if len(queries) != len(items) or len(queries) < small + 100:
        raise InputError(f"queries and items must pair up, at least {small + 100}. Got {len(queries)} instead.")

    def take(start: int, calls: int) -> float:
        began = time.perf_counter()
        scorer.score(queries[start : start + calls], items[start : start + calls])
        return time.perf_counter() - began

    take(0, WARM_UP)
    in_rounds = [take(WARM_UP + SMALL_ROUND * place, SMALL_ROUND) for place in range(SMALL_ROUNDS)]
    per_call = max(take(small, len(queries) - small), 1e-9) / (len(queries) - small)
    return Speed(max(0.0, median(in_rounds) - SMALL_ROUND * per_call), per_call)


def save_speed(path: Path, speed: Speed, *, scorer: str, machine: str) -> None:
    """Write it as JSON, with whose it is: the file is there whole or not at all."""
    write_atomic(path, json.dumps({**asdict(speed), "scorer": scorer, "machine": machine}, indent=1).encode())


def load_speed(path: Path, *, scorer: str, machine: str) -> Speed | None:
    """What the file says about this scorer on this machine; None where it says nothing of use."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = (found.pop("scorer"), found.pop("machine")) == (scorer, machine)
        return Speed(**found) if known else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, InputError):
        return None  # missing or damaged: it is measured anew
