"""Choice of the number of rounds where the caller names none, from the measured time of a round."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeGuard

from crossknn.strategies.axn import Axn
from crossknn.strategies.base import DEFAULT_ROUNDS, Strategy
from crossknn.strategies.posterior.strategy import Posterior

CLASSES: Final = (DEFAULT_ROUNDS, 5, 3)  # the numbers to choose from: the largest whose rounds together take no longer
FREE_SECONDS: Final = 0.5  # than this,
SCORING_SHARE: Final = 0.5  # or this share of the time in which a local scorer scores the budget,
DEADLINE_SHARE: Final = 0.25  # and with a deadline no longer than this share of it; else the last of the classes
REMOTE_ROUNDS: Final = 5  # of a scorer behind a server whose round trip is not known yet

MIN_ROUND_TRIP: Final = 0.002  # seconds; a call of a remote scorer that takes less was answered by a cache


class RoundChoice(NamedTuple):
    """A number of rounds, and why."""

    rounds: int
    reason: str


@dataclass(slots=True)
class RoundTimes:
    """What a round takes besides scoring pairs; each time is measured once, so that later searches choose alike.

    Attributes:
        remote: Whether the scorer is behind a server.
        outside: Seconds of a round outside the scorer, measured by `Searcher.prepare`.
        scoring: Seconds of a scorer call: of one pair by a local model, measured by `Searcher.prepare`, or of the
            shortest round of the first search with a remote scorer.
    """

    remote: bool = False
    outside: float | None = None
    scoring: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def measured_outside(self, rounds: Sequence[float]) -> None:
        """Keep the shortest of these rounds, which a busy machine disturbs least."""
        with self._lock:
            if self.outside is None and rounds:
                self.outside = min(rounds)

    def measured_scoring(self, seconds: float) -> None:
        """Keep the time of a scorer call, if none was measured before."""
        with self._lock:
            if self.scoring is None:
                self.scoring = seconds

    def choose(self, budget: int, deadline: float | None = None) -> RoundChoice:
        """The number of rounds of a search with this budget, and with a deadline in so many seconds."""
        if self.remote and self.scoring is None:
            return _at_most(budget, REMOTE_ROUNDS, "the scorer's round trip is not known yet")
        call = self.scoring or 0.0
        round_seconds = (self.outside or 0.0) + call
        if not round_seconds:
            return _at_most(budget, DEFAULT_ROUNDS, "the default")
        # A local model takes longer for more pairs, while a round trip is lost in every round.
        paid = 0.0 if self.remote else SCORING_SHARE * budget * call
        allowed = max(FREE_SECONDS, paid)
        limit = "scoring"
        if deadline is not None and DEADLINE_SHARE * deadline < allowed:
            allowed, limit = DEADLINE_SHARE * deadline, f"a deadline of {deadline:g} s"
        rounds = next((count for count in CLASSES if count * round_seconds <= allowed), CLASSES[-1])
        spent = f"a round takes {round_seconds:.2g} s"
        if rounds == DEFAULT_ROUNDS:
            return _at_most(budget, rounds, f"the default: {spent}")
        return _at_most(budget, rounds, f"{spent}, which is long beside {limit}")


def _at_most(budget: int, rounds: int, reason: str) -> RoundChoice:
    return RoundChoice(min(budget, rounds), reason if rounds <= budget else "one for each call of the budget")


def leaves_rounds_open(strategy: Strategy) -> TypeGuard[Posterior | Axn]:
    """Whether the search may choose the number of rounds."""
    return isinstance(strategy, Posterior | Axn) and strategy.rounds is None


def with_rounds(strategy: Strategy, times: RoundTimes, deadline: float | None) -> tuple[Strategy, str | None]:
    """The strategy with a number of rounds and the reason for it; None where the strategy has its own."""
    if not leaves_rounds_open(strategy):
        return strategy, None
    choice = times.choose(strategy.budget, deadline)
    return replace(strategy, rounds=choice.rounds), choice.reason


def seconds_between(times: Sequence[float]) -> list[float]:
    """The seconds from each time to the next."""
    return [after - before for before, after in pairwise(times)]
