"""Posterior search of some queries: what is believed about their scores, what was asked for, and what was scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossknn.apart import PlainTensors, TensorSearch
from crossknn.largest import largest
from crossknn.lines import fill, which_are_there
from crossknn.strategies.beliefs import Beliefs
from crossknn.strategies.expected_recall import expected_recall, scale_errors
from crossknn.strategies.fit import order_worse
from crossknn.strategies.rounds import Scored
from crossknn.types import NOTHING, Mask, Proposal

SHORTLIST: Final = 1_000  # of the rows not scored, that are looked at to expect recall,
PER_WANTED: Final = 5  # out of so many for every item that is wanted, where that is more
TOGETHER: Final = 250  # of the rows of a shortlist
UNFIT: Final = -2.5  # the model's advantage over retrievers alone below which it does not fit,
WORSE: Final = 3.0  # and by how many standard errors its order of the scores may be worse than theirs


class Asked(NamedTuple):
    """What a round asks for, (queries, most); lines are filled up behind what is `known`."""

    rows: Tensor
    estimates: Tensor
    deviations: Tensor
    known: Tensor


class Expected(NamedTuple):
    """What is expected of queries' scores: of all rows that retrievers propose, and of the best of all others.

    −∞ is expected of what is scored, and where lines are filled up.
    """

    proposed: Tensor  # (queries, most)
    rows: Tensor  # (queries, n) of the others
    others: Tensor  # (queries, n)


class Quests:
    """The searches of all queries.

    first   what the first round asked for
    hedge   rows of each query that are to be scored whatever the model says, a few in every round
    recall  (queries,) the expected share of each top k among what was scored, when it was last asked for
    """

    def __init__(self, beliefs: Beliefs, items: TensorSearch | PlainTensors) -> None:
        self.beliefs = beliefs
        self.items = items
        self._search = items.set_apart(beliefs.heard.rows)
        queries = len(beliefs.heard.rows)
        self.scored = [Scored() for _ in range(queries)]
        self.hedge: list[list[int]] = [[] for _ in range(queries)]
        self.recall: NDArray[np.float64] | None = None
        self._seen: list[set[int]] = [set() for _ in range(queries)]
        self._asked: list[Asked] = []  # by every round but the first
        self._hidden = torch.zeros_like(beliefs.heard.base, dtype=torch.bool)  # what retrievers propose and is scored

    def __len__(self) -> int:
        return len(self.scored)

    def learn(self) -> None:
        """Correct what is believed by what was scored since."""
        fresh = [one.rows[len(seen) :] for one, seen in zip(self.scored, self._seen, strict=True)]
        if not any(map(len, fresh)):
            return
        scores = [one.scores[len(seen) :] for one, seen in zip(self.scored, self._seen, strict=True)]
        rows, known = self._tensor(fill(fresh, 0)), self._tensor(which_are_there(fresh))
        self.beliefs.learn(rows, self.items.take_tensor(rows), self._tensor(fill(scores, 0)), known)
        self._hide(self._hidden, rows, known)
        for seen, mine in zip(self._seen, fresh, strict=True):
            seen.update(mine.tolist())

    def expect(self, n: int, allowed: Mask | None) -> Expected:
        """What is expected of all scores: of those that retrievers do not propose, of the best `n` rows."""
        exclude = self._tensor(fill([one.rows for one in self.scored], self.beliefs.heard.items))
        found = self._search.search(self.beliefs.query, n, exclude=exclude, allowed=allowed)
        proposed = self.beliefs.expect_proposed(found.products).masked_fill(self._hidden[:, :-1], -torch.inf)
        others = self.beliefs.expect_others(found.best)
        return Expected(proposed, found.rows, torch.where(torch.isfinite(found.best), others, -torch.inf))

    def ask(self, expected: Expected, shares: Sequence[int], before: Sequence[Sequence[int]]) -> list[Proposal]:
        """The best rows of each query that are not scored yet, so many: first those `before` the others."""
        front = self._unseen(before, shares)
        given = [np.array(rows, np.int64) for rows in front]
        rows, known = self._tensor(fill(given, 0)), self._tensor(which_are_there(given))
        left = self._tensor(np.array([share - len(mine) for share, mine in zip(shares, front, strict=True)]))
        best, estimates = self._best(self._without(expected, rows, known), max(shares))
        wanted = torch.isfinite(estimates) & (torch.arange(best.shape[1], device=best.device) < left[:, None])
        told = self.beliefs.expect(rows, self.items.take_tensor(rows))
        both = (torch.cat(pair, 1) for pair in ((rows, best), (told, estimates), (known, wanted)))
        self._asked.append(self._with_deviations(*both))
        return _proposals(self._asked[-1])

    def begin(self, expected: Expected, n: int) -> list[Proposal]:
        """The `n` rows of each query of which most is expected, before anything is scored."""
        rows, estimates = self._best(expected, n)
        return _proposals(self._with_deviations(rows, estimates, torch.isfinite(estimates)))

    def _with_deviations(self, rows: Tensor, estimates: Tensor, known: Tensor) -> Asked:
        """What is known of each line, in a row, and how sure that is."""
        order = (~known).to(torch.uint8).sort(dim=1, stable=True).indices[:, : int(known.sum(1).max())]
        rows, estimates, known = (values.gather(1, order) for values in (rows, estimates, known))
        rows = rows.masked_fill(~known, 0)
        return Asked(rows, estimates, self.beliefs.deviations(rows, self.items.take_tensor(rows)), known)

    def _best(self, expected: Expected, n: int) -> tuple[Tensor, Tensor]:
        """The `n` rows of largest expectation and those, −∞ behind the last; ties to the lower row.

        Where `n` is more than was asked for, maybe not all.
        """
        estimates, places = largest(expected.proposed, n)
        rows = torch.cat([self.beliefs.heard.rows.gather(1, places), expected.rows], 1)
        estimates = torch.cat([estimates, expected.others], 1)
        rows, order = rows.sort(dim=1)
        estimates, best = estimates.gather(1, order).sort(dim=1, descending=True, stable=True)
        return rows.gather(1, best)[:, :n], estimates[:, :n]

    def hedge_with(self, counts: Sequence[int]) -> list[list[int]]:
        """The first rows of each hedge that are not scored yet, so many."""
        return self._unseen(self.hedge, counts)

    def _unseen(self, lists: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        """The first rows of each query's list that are not scored yet, so many."""
        return [
            [row for row in rows if row not in seen][:count]
            for rows, seen, count in zip(lists, self._seen, counts, strict=True)
        ]

    def unfit(self) -> NDArray[np.bool_]:
        """Which queries' scores retrievers alone explain better than the model, or order better than it did."""
        beliefs = self.beliefs
        unfit = (beliefs.advantage() < UNFIT) & beliefs.agrees()
        if self._asked:
            estimates = torch.cat([asked.estimates for asked in self._asked], 1)
            late = slice(-estimates.shape[1], None)
            worse = order_worse(estimates, beliefs.means[:, late], beliefs.scores[:, late], beliefs.known[:, late])
            unfit |= worse > WORSE
        return np.asarray(unfit.cpu().numpy())

    def expect_recall(self, k: int, reachable: int, expected: Expected) -> NDArray[np.float64]:
        """(queries,) the expected share of each top `k` among the scored rows."""
        wanted = min(k, reachable)
        if not wanted or not self.beliefs.scores.shape[1]:
            self.recall = np.full(len(self), float(not wanted))
            return self.recall
        left = self._best(expected, shortlist(wanted))
        rows, means = (values[:, :: each_of(wanted)] for values in left)
        missing = torch.isinf(means)
        means, deviations = self.beliefs.temper(means, self._deviations(rows.masked_fill(missing, 0)))
        means, deviations = means.masked_fill(missing, -torch.inf), scale_errors(self._errors()) * deviations
        best = self.beliefs.scores.masked_fill(~self.beliefs.known, -torch.inf)
        best = best.sort(dim=1, descending=True).values[:, :wanted]
        self.recall = expected_recall(best, wanted, means, deviations, each=each_of(wanted)).cpu().numpy()
        return self.recall

    def _deviations(self, rows: Tensor) -> Tensor:
        parts = [self.beliefs.deviations(some, self.items.take_tensor(some)) for some in torch.split(rows, TOGETHER, 1)]
        return torch.cat(parts, 1)

    def _errors(self) -> list[tuple[Tensor, Tensor]]:
        """For each round after the first how far scores were from what was expected, in expected deviations."""
        errors, beliefs = [], self.beliefs
        start = beliefs.scores.shape[1] - sum(asked.rows.shape[1] for asked in self._asked)
        for asked in self._asked:
            scores = beliefs.scores[:, start : start + asked.rows.shape[1]]
            start += asked.rows.shape[1]
            means, deviations = beliefs.temper(asked.estimates, asked.deviations)
            errors.append(((scores - means) / deviations, asked.known))
        return errors

    def _without(self, expected: Expected, rows: Tensor, known: Tensor) -> Expected:
        """The same, with −∞ for these rows."""
        hidden = self._hide(torch.zeros_like(self._hidden), rows, known)
        same = ((expected.rows[:, :, None] == rows[:, None, :]) & known[:, None, :]).any(2)
        proposed = expected.proposed.masked_fill(hidden[:, :-1], -torch.inf)
        return Expected(proposed, expected.rows, expected.others.masked_fill(same, -torch.inf))

    def _hide(self, hidden: Tensor, rows: Tensor, known: Tensor) -> Tensor:
        """Mark where these rows are among what retrievers propose."""
        places = torch.where(known, self.beliefs.heard.places(rows), hidden.shape[1] - 1)
        return hidden.scatter_(1, places, True)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.items.device)


def shortlist(wanted: int) -> int:
    """How many of the rows not scored are looked at, to expect how many of the `wanted` best they are."""
    return each_of(wanted) * SHORTLIST


def each_of(wanted: int) -> int:
    """How many rows each of those stands for that are looked at."""
    return -(-PER_WANTED * wanted // SHORTLIST)


def _proposals(asked: Asked) -> list[Proposal]:
    rows, estimates, deviations, known = (tensor.cpu().numpy() for tensor in asked)
    counts = known.sum(1).tolist()
    return [
        Proposal(rows[line, :count], estimates[line, :count], deviations[line, :count]) if count else NOTHING
        for line, count in enumerate(counts)
    ]
