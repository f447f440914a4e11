"""Posterior search of some queries: what is believed about their scores, what was asked for, and what was scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from crossknn.strategies.posterior.expected_recall import expected_recall, scale_errors
from crossknn.strategies.posterior.model import BayesianLinearModel, CandidateFeatures
from crossknn.strategies.posterior.model_check import order_worse
from crossknn.strategies.rounds import Observations
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal
from crossknn.vectors.device import DeviceSearch, HostSearchAdapter, to_device
from crossknn.vectors.padding import pad_rows
from crossknn.vectors.topk import stable_topk

SHORTLIST: Final = 1_000  # of the rows not scored, that are looked at to expect recall,
PER_WANTED: Final = 5  # out of so many for every item that is wanted, where that is more
TOGETHER: Final = 250  # of the rows of a shortlist,
TOGETHER_ON_GPU: Final = 1 << 26  # or rows of all queries with so many numbers in their profiles
UNFIT: Final = -2.5  # the model's advantage over retrievers alone below which it does not fit,
WORSE: Final = 3.0  # and by how many standard errors its order of the scores may be worse than theirs


class Asked(NamedTuple):
    """What was expected of the rows that a round asked for, (queries, most)."""

    estimates: Tensor
    deviations: Tensor


class Best(NamedTuple):
    """The rows of which most is expected, (queries, some), and that; the number of items and −∞ behind the last."""

    rows: Tensor
    estimates: Tensor


class Expected(NamedTuple):
    """What is expected of queries' scores: of all rows that retrievers propose, and of the best of all others.

    −∞ is expected of what is scored, and where lines are filled up.
    """

    proposed: Tensor  # (queries, most)
    rows: Tensor  # (queries, n) of the others
    others: Tensor  # (queries, n)


class PosteriorSession:
    """The searches of all queries.

    hedge   rows of each query that are to be scored whatever the model says, a few in every round
    recall  (queries,) the expected share of each top k among what was scored, when it was last asked for
    """

    def __init__(self, beliefs: BayesianLinearModel, items: DeviceSearch | HostSearchAdapter) -> None:
        self.beliefs = beliefs
        self.items = items
        self._search = items.with_candidates(beliefs.heard.rows)
        queries = len(beliefs.heard.rows)
        self.scored = [Observations() for _ in range(queries)]
        self.hedge: list[list[int]] = [[] for _ in range(queries)]
        self.recall: NDArray[np.float64] | None = None
        self._seen: list[set[int]] = [set() for _ in range(queries)]
        self._asked: list[Asked] = []  # by every round but the first
        self._awaited: CandidateFeatures | None = None  # what was asked for and has no scores yet
        self._rows = beliefs.heard.rows[:, :0]  # all that is scored, as it was asked for
        filled = beliefs.heard.filled
        # What retrievers propose and is scored, and where their lines are filled up; last any other row.
        self._hidden = torch.cat([filled, torch.zeros_like(filled[:, :1])], 1)

    def __len__(self) -> int:
        return len(self.scored)

    def learn(self) -> None:
        """Correct what is believed by what was scored since: what was asked for, if anything was."""
        fresh = [one.scores[len(seen) :] for one, seen in zip(self.scored, self._seen, strict=True)]
        if not any(map(len, fresh)):
            return
        new = [one.rows[len(seen) :] for one, seen in zip(self.scored, self._seen, strict=True)]
        looked = self._awaited or self._look(to_device(pad_rows(new, self.beliefs.heard.items), self.items.device))
        self.beliefs.learn(looked, to_device(pad_rows(fresh, 0), self.items.device))
        self._rows = torch.cat([self._rows, looked.rows], 1)
        self._hidden.scatter_(1, looked.places, True)
        self._awaited = None
        for seen, mine in zip(self._seen, new, strict=True):
            seen.update(mine.tolist())

    def _look(self, rows: Tensor) -> CandidateFeatures:
        """These rows, with lines that are filled up with the number of items."""
        return self.beliefs.look(rows, self.items.take_tensor(rows.clamp(max=self.beliefs.heard.items - 1)))

    def expect(self, n: int, allowed: Mask | None) -> Expected:
        """What is expected of all scores: of those that retrievers do not propose, of the best `n` rows."""
        found = self._search.search(self.beliefs.query, n, exclude=self._rows, allowed=allowed)
        proposed = self.beliefs.expect_proposed(found.products).masked_fill_(self._hidden[:, :-1], -torch.inf)
        return Expected(proposed, found.rows, self.beliefs.expect_others(found.best))

    def ask(self, expected: Expected, shares: Sequence[int], before: Sequence[Sequence[int]]) -> list[Proposal]:
        """The best rows of each query that are not scored yet, so many: first those `before` the others."""
        first, n = self._unseen(before, shares), max(shares)
        front, counts, wanted = self._bring(first, shares)
        best, items = self._best(expected, n, without=front[:, : max(map(len, first))]).rows, self.beliefs.heard.items
        if best.shape[1] < n:
            best = pad(best, (0, n - best.shape[1]), value=items)
        place = torch.arange(n, device=front.device)
        behind = place - counts  # of each place, that among the best
        rows = torch.where(behind < 0, front, best.gather(1, behind.clamp(min=0)))
        proposals, asked = self._propose(rows.masked_fill_(place >= wanted, items))
        self._asked.append(asked)
        return proposals

    def _bring(self, lists: Sequence[Sequence[int]], shares: Sequence[int]) -> tuple[Tensor, ...]:
        """These rows of each query, (queries, largest share), how many they are and the shares, (queries, 1)."""
        # In one array, so that one move is enough.
        packed = np.full((len(lists), max(shares) + 2), self.beliefs.heard.items, np.int64)
        for line, mine in zip(packed, lists, strict=True):
            line[: len(mine)] = mine
        packed[:, -2], packed[:, -1] = [len(mine) for mine in lists], shares
        return torch.split(to_device(packed, self.items.device), [max(shares), 1, 1], 1)

    def begin(self, expected: Expected, n: int) -> list[Proposal]:
        """The `n` rows of each query of which most is expected, before anything is scored."""
        return self._propose(self._best(expected, n).rows)[0]

    def _propose(self, rows: Tensor) -> tuple[list[Proposal], Asked]:
        """These rows, with lines that are filled up, to be scored next."""
        looked = self._look(rows)
        estimates, deviations = self.beliefs.expect(looked), self.beliefs.deviations(looked)
        proposals = _proposals(rows, estimates, deviations, self.beliefs.heard.items)
        most = max(map(len, proposals))
        self._awaited = looked.first(most)
        return proposals, Asked(estimates[:, :most], deviations[:, :most])

    def _best(self, expected: Expected, n: int, without: Tensor | None = None) -> Best:
        """The `n` rows of largest expectation, but for those `without`; ties to the lower row.

        Where `n` is more than was asked for, maybe not all.
        """
        estimates, places = stable_topk(expected.proposed, n if without is None else n + without.shape[1])
        rows = torch.cat([self.beliefs.heard.rows.gather(1, places), expected.rows], 1)
        estimates = torch.cat([estimates, expected.others], 1)
        if without is not None and without.shape[1]:
            estimates.masked_fill_((rows[:, :, None] == without[:, None]).any(2), -torch.inf)
        rows, order = rows.sort(dim=1)
        estimates, best = estimates.gather(1, order).sort(dim=1, descending=True, stable=True)
        estimates, rows = estimates[:, :n], rows.gather(1, best[:, :n])
        return Best(rows.masked_fill_(estimates == -torch.inf, self.beliefs.heard.items), estimates)

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
        beliefs, evidence = self.beliefs, self.beliefs.evidence.on_arrays()
        unfit = (evidence.advantage() < UNFIT) & evidence.agrees()
        if self._asked:
            estimates = torch.cat([asked.estimates for asked in self._asked], 1)
            late = slice(self._rows.shape[1] - estimates.shape[1], None)
            worse = order_worse(estimates, beliefs.means[:, late], beliefs.scores[:, late], beliefs.known[:, late])
            unfit |= worse > WORSE
        return unfit

    def expect_recall(self, k: int, reachable: int, expected: Expected) -> NDArray[np.float64]:
        """(queries,) the expected share of each top `k` among the scored rows."""
        wanted = min(k, reachable)
        if not wanted or not self.beliefs.scores.shape[1]:
            self.recall = np.full(len(self), float(not wanted))
            return self.recall
        rows, means = (values[:, :: each_of(wanted)] for values in self._best(expected, shortlist(wanted)))
        missing = torch.isinf(means)
        means, deviations = self.beliefs.temper(means, self._deviations(rows))
        means, deviations = means.masked_fill(missing, -torch.inf), self._scale_errors() * deviations
        best = self.beliefs.scores.masked_fill(~self.beliefs.known, -torch.inf)
        best = best.sort(dim=1, descending=True).values[:, :wanted]
        self.recall = expected_recall(best, wanted, means, deviations, each=each_of(wanted)).cpu().numpy()
        return self.recall

    def _deviations(self, rows: Tensor) -> Tensor:
        on_gpu = TOGETHER_ON_GPU // self.beliefs.query.numel() if rows.is_cuda else 0
        some = torch.split(rows, max(TOGETHER, on_gpu), 1)
        return torch.cat([self.beliefs.deviations(self._look(part)) for part in some], 1)

    def _scale_errors(self) -> Tensor | float:
        """By how much scores were further from what was expected than that was off, in all rounds after the first."""
        if not self._asked:
            return 1.0
        estimates, deviations = (torch.cat(parts, 1) for parts in zip(*self._asked, strict=True))
        late = slice(self._rows.shape[1] - estimates.shape[1], None)
        means, deviations = self.beliefs.temper(estimates, deviations)
        errors = (self.beliefs.scores[:, late] - means) / deviations
        return scale_errors(errors, self.beliefs.known[:, late], [asked.estimates.shape[1] for asked in self._asked])


def shortlist(wanted: int) -> int:
    """How many of the rows not scored are looked at, to expect how many of the `wanted` best they are."""
    return each_of(wanted) * SHORTLIST


def each_of(wanted: int) -> int:
    """How many rows each of those stands for that are looked at."""
    return -(-PER_WANTED * wanted // SHORTLIST)


def _proposals(rows: Tensor, estimates: Tensor, deviations: Tensor, items: int) -> list[Proposal]:
    """All that is not filled up, as arrays."""
    together = torch.stack([rows.double(), estimates, deviations]).cpu().numpy()  # so that one wait is enough
    numbers, (means, off) = together[0].astype(np.int64), together[1:].astype(np.float32)
    return [
        Proposal(numbers[line, :count], means[line, :count], off[line, :count]) if count else EMPTY_PROPOSAL
        for line, count in enumerate((numbers < items).sum(1).tolist())
    ]
