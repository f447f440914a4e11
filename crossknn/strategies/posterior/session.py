"""State of one posterior search: the model of all queries, what was proposed, and what was scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from crossknn.strategies.base import Observations, SearchContext
from crossknn.strategies.posterior.diagnostics import (
    count_above,
    error_scale,
    expected_recall,
    order_deficit,
    score_above,
)
from crossknn.strategies.posterior.features import RetrieverFeatures
from crossknn.strategies.posterior.model import BayesianLinearModel, CandidateFeatures
from crossknn.strategies.posterior.prior import Prior
from crossknn.types import EMPTY_PROPOSAL, Proposal, Rows, Scores
from crossknn.vectors.device import CandidateSearchResult, as_device_search, pad_rows, to_device
from crossknn.vectors.exact import ExactSearch
from crossknn.vectors.topk import stable_topk

SHORTLIST: Final = 1_000  # unscored rows that expected recall looks at,
SHORTLIST_PER_HIT: Final = 5  # every n-th of this many times k, where that is more
# On a CPU the last expected recall looks at this many of the best rows of the last scan instead of at all items,
RESCORED_ROWS: Final = 4_000
MIN_ITEMS_PER_RESCORED: Final = 16  # where there are so many items for each of them: a row at random costs more
STD_BATCH: Final = 250  # rows per query whose standard deviations are computed at once,
STD_BATCH_ELEMENTS_ON_GPU: Final = 1 << 26  # or more, with this many elements of augmented vectors
MIN_LOG_LIKELIHOOD_RATIO: Final = -2.5  # of the model to the retriever-only model, below which it does not fit
MAX_ORDER_DEFICIT: Final = 3.0  # standard errors by which the prior mean may order the scores better than the model


class PosteriorMeans(NamedTuple):
    """Posterior means of all candidates and of the best other rows; scored and padding entries are −∞."""

    candidates: Tensor  # (queries, candidates)
    other_rows: Tensor  # (queries, n)
    others: Tensor  # (queries, n) the means of `other_rows`


class PosteriorSession:
    """The searches of all queries of a context under one model; arguments as of `RetrieverFeatures`."""

    def __init__(
        self, context: SearchContext, lists: Sequence[Sequence[Proposal]], prior: Prior, near: Sequence[Proposal] = ()
    ) -> None:
        self._context = context
        self._vectors = as_device_search(context.augmented_vectors(), queries=context.queries)
        self._items = context.items  # the padding of row tensors
        retrieved = RetrieverFeatures(lists, prior, items=self._items, device=self._vectors.device, near=near)
        self.model = BayesianLinearModel(prior, retrieved, context.item_vectors().dim)
        self.observations = [Observations() for _ in range(context.queries)]  # the loop over rounds appends to them
        self.hedge_rows: list[list[int]] = [[] for _ in self.observations]  # scored regardless of the model
        self.expected_recall: list[float] | None = None  # of each query, when last computed
        self._search = self._vectors.with_candidates(retrieved.rows)
        self._seen: list[set[int]] = [set() for _ in self.observations]
        # Posterior means and standard deviations of the rows of every round but the first, before they were scored.
        self._predictions: list[tuple[Tensor, Tensor]] = []
        self._pending: CandidateFeatures | None = None  # proposed and not scored yet
        self._best_others: CandidateSearchResult | None = None  # of the last scan, to be scored again
        self._scored_rows = retrieved.rows[:, :0]  # (queries, scored)
        own = (
            retrieved.rows[:, :0]
            if context.own_rows is None
            else to_device(context.own_rows[:, None], self._vectors.device)
        )
        self._own_rows = own  # (queries, 0 or 1)
        # Positions without a posterior mean: scored candidates and padding. The last one stands for all other rows.
        self._hidden = torch.cat([retrieved.padding, torch.zeros_like(retrieved.padding[:, :1])], 1)

    def __len__(self) -> int:
        return len(self.observations)

    @property
    def exhausted(self) -> bool:
        """Whether all rows that can be scored are scored, for every query."""
        return all(len(one.rows) == self._context.reachable for one in self.observations)

    def _update(self) -> None:
        """Condition the model on the scores that were observed since the last update."""
        scores = [one.scores[len(seen) :] for one, seen in zip(self.observations, self._seen, strict=True)]
        if not any(map(len, scores)):
            return
        rows = [one.rows[len(seen) :] for one, seen in zip(self.observations, self._seen, strict=True)]
        features = self._pending or self._features(to_device(pad_rows(rows, self._items), self._vectors.device))
        self.model.update(features, to_device(pad_rows(scores, 0), self._vectors.device))
        self._scored_rows = torch.cat([self._scored_rows, features.rows], 1)
        self._hidden.scatter_(1, features.positions, True)
        self._pending = None
        for seen, new in zip(self._seen, rows, strict=True):
            seen.update(new.tolist())

    def _features(self, rows: Tensor) -> CandidateFeatures:
        return self.model.candidate_features(rows, self._vectors.take_tensor(rows.clamp(max=self._items - 1)))

    def posterior_means(self, n: int, *, recall: bool = False, last: bool = False) -> PosteriorMeans:
        """Update the model; the posterior means of all candidates and of at least the best `n` other rows.

        With `recall` the expected recall is updated, too. The `last` means before the search ends are a scan that
        `update_recall` need not repeat.
        """
        with self._context.solving:
            self._update()
        k, stride = self._shortlist_stride()
        n = min(max(n, stride * SHORTLIST) if recall else n, self._context.reachable)
        if keeps := last and self._rescores(stride):
            n = max(n, RESCORED_ROWS)
        allowed = self._context.allowed
        exclude = torch.cat([self._own_rows, self._scored_rows], 1)
        found = self._search.search(self.model.query_vectors, n, exclude=exclude, allowed=allowed)
        self._best_others = found if keeps else None
        means = self._means_of(found)
        if recall:
            with self._context.solving:
                self._estimate_recall(k, stride, means)
        return means

    def _means_of(self, found: CandidateSearchResult) -> PosteriorMeans:
        candidates = self.model.posterior_mean_of_candidates(found.products)
        candidates.masked_fill_(self._hidden[:, :-1], -torch.inf)
        return PosteriorMeans(candidates, found.rows, self.model.posterior_mean_of_others(found.best))

    def _shortlist_stride(self) -> tuple[int, int]:
        """The number of hits, and every how many rows expected recall looks at one."""
        k = min(self._context.k or 0, self._context.reachable)
        return k, -(-SHORTLIST_PER_HIT * k // SHORTLIST)

    def _rescores(self, stride: int) -> bool:
        """Whether the last expected recall can do without a scan, and is faster so."""
        on_host = isinstance(self._vectors, ExactSearch) and self._vectors.device.type == "cpu"
        few = len(self) * RESCORED_ROWS * MIN_ITEMS_PER_RESCORED <= self._context.reachable
        return on_host and few and stride == 1 and self._context.k is not None

    def _rescored(self, found: CandidateSearchResult) -> CandidateSearchResult:
        """The candidates and the best rows of the last scan with inner products by the model as it is now."""
        rows = torch.cat([self.model.retrieved.rows, found.rows], 1)
        vectors = self._vectors.take_tensor(rows.clamp(max=self._items - 1))
        products = torch.bmm(vectors, self.model.query_vectors[:, :, None])[:, :, 0]
        candidates, others = torch.split(products, [found.products.shape[1], found.rows.shape[1]], 1)
        hidden = _is_among(found.rows, self._scored_rows) | (found.best == -torch.inf)
        return CandidateSearchResult(found.rows, others.masked_fill(hidden, -torch.inf), candidates)

    def update_recall(self) -> None:
        """Set the expected recall of the scores so far."""
        if not self.exhausted:
            if self._best_others is None:
                self.posterior_means(0, recall=True)
                return
            with self._context.solving:
                self._update()
                self._estimate_recall(*self._shortlist_stride(), self._means_of(self._rescored(self._best_others)))
            return
        self.expected_recall = [1.0] * len(self)
        if self._context.on_counts is not None:
            self._context.on_counts(np.zeros((len(self), min(self._context.k or 0, self._context.reachable))))

    def all_posterior_means(self) -> list[Scores]:
        """The posterior means of all items for every query."""
        with self._context.solving:
            self._update()
        retrieved = self.model.retrieved
        estimates = self._context.augmented_vectors().estimates(self.model.query_vectors.cpu().numpy())
        products = torch.from_numpy(estimates).to(self._vectors.device)
        rows = retrieved.rows.clamp(max=self._items - 1)
        candidates = self.model.posterior_mean_of_candidates(products.gather(1, rows))
        means = self.model.posterior_mean_of_others(products)
        for mean, query_rows, values, padding in zip(means, rows, candidates, retrieved.padding, strict=True):
            mean[query_rows[~padding]] = values[~padding]
        return list(means.cpu().numpy())

    def propose_first(self, means: PosteriorMeans, n: int) -> list[Proposal]:
        """The `n` rows of each query with the largest prior mean."""
        return self._propose(self._best(means, n)[0])[0]

    def propose(self, means: PosteriorMeans, counts: Sequence[int], before: Sequence[Sequence[int]]) -> list[Proposal]:
        """The next `counts` rows of each query: unscored rows of `before`, then the best by posterior mean."""
        first, n = self._unseen(before, counts), max(counts)
        front, front_counts, totals = self._to_device(first, counts)
        best, _ = self._best(means, n, without=front[:, : max(map(len, first))])
        if best.shape[1] < n:
            best = pad(best, (0, n - best.shape[1]), value=self._items)
        column = torch.arange(n, device=front.device)
        behind = column - front_counts  # index into `best`, negative where `front` comes first
        rows = torch.where(behind < 0, front, best.gather(1, behind.clamp(min=0)))
        proposals, predictions = self._propose(rows.masked_fill_(column >= totals, self._items))
        self._predictions.append(predictions)
        return proposals

    def _to_device(self, lists: Sequence[Sequence[int]], counts: Sequence[int]) -> tuple[Tensor, ...]:
        """The padded lists, (queries, max count), their lengths and the counts, both (queries, 1), in one copy."""
        width = max(counts)
        packed = np.full((len(lists), width + 2), self._items, np.int64)
        for packed_row, rows in zip(packed, lists, strict=True):
            packed_row[: len(rows)] = rows
        packed[:, -2], packed[:, -1] = [len(rows) for rows in lists], counts
        return torch.split(to_device(packed, self._vectors.device), [width, 1, 1], 1)

    def _propose(self, rows: Tensor) -> tuple[list[Proposal], tuple[Tensor, Tensor]]:
        """These padded rows, to be scored next, with posterior means and standard deviations."""
        features = self._features(rows)
        means, std = self.model.posterior_mean(features), self.model.posterior_std(features)
        proposals = _to_proposals(rows, means, std, self._items)
        width = max(map(len, proposals))
        self._pending = features.first(width)
        return proposals, (means[:, :width], std[:, :width])

    def _best(self, means: PosteriorMeans, n: int, without: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The `n` rows of largest posterior mean and these means, (queries, n), padded; ties go to the lower row.

        There may be fewer than `n`, where `n` exceeds the number of other rows in `means`.
        """
        candidates, positions = stable_topk(means.candidates, n if without is None else n + without.shape[1])
        rows = torch.cat([self.model.retrieved.rows.gather(1, positions), means.other_rows], 1)
        values = torch.cat([candidates, means.others], 1)
        if without is not None and without.shape[1]:
            values.masked_fill_(_is_among(rows, without), -torch.inf)
        rows, order = rows.sort(dim=1)
        values, best = values.gather(1, order).sort(dim=1, descending=True, stable=True)
        values, rows = values[:, :n], rows.gather(1, best[:, :n])
        return rows.masked_fill_(values == -torch.inf, self._items), values

    def unscored_rows(self, lists: Sequence[Sequence[int]]) -> list[list[int]]:
        """The rows of each query's list that are not scored."""
        return self._unseen(lists, [len(rows) for rows in lists])

    def unscored_hedge_rows(self, counts: Sequence[int]) -> list[list[int]]:
        """The first `counts` unscored hedge rows of each query."""
        return self._unseen(self.hedge_rows, counts)

    def _unseen(self, lists: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        return [
            [row for row in rows if row not in seen][:count]
            for rows, seen, count in zip(lists, self._seen, counts, strict=True)
        ]

    def misfits(self) -> NDArray[np.bool_]:
        """(queries,) whether retrievers alone explain the scores better than the model, or order them better."""
        evidence = self.model.evidence.to_numpy()
        misfits = (evidence.log_likelihood_ratio() < MIN_LOG_LIKELIHOOD_RATIO) & evidence.correlates_with_prior()
        if self._predictions:
            means = torch.cat([means for means, _ in self._predictions], 1)
            prior_means, scores, valid = self._predicted(means.shape[1])
            misfits |= order_deficit(means, prior_means, scores, valid) > MAX_ORDER_DEFICIT
        return misfits

    def _predicted(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Prior means, scores and validity of the last `count` scored columns: those of all rounds but the first."""
        late = slice(self._scored_rows.shape[1] - count, None)
        return self.model.prior_means[:, late], self.model.scores[:, late], self.model.valid[:, late]

    def _estimate_recall(self, k: int, stride: int, means: PosteriorMeans) -> None:
        """Set `expected_recall`: the expected share of each query's true top k among its scored rows."""
        if not k or not self.model.scores.shape[1]:
            self.expected_recall = [float(not k)] * len(self)
            return
        unscored, std = self._predict_best(means, stride * SHORTLIST, stride)
        best = self.model.scores.masked_fill(~self.model.valid, -torch.inf)
        best = best.sort(dim=1, descending=True).values[:, :k]
        above = count_above(best, unscored, std, stride=stride)
        if self._context.on_counts is not None:
            self._context.on_counts(above.masked_fill(torch.isinf(best), torch.inf).cpu().numpy())
        self.expected_recall = expected_recall(above, best, k, self._context.recall_calibration).tolist()

    def chances_above(self, means: PosteriorMeans, n: int, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """(queries, n) the chance that each of the `n` best unscored rows scores at least its query's level."""
        unscored, std = self._predict_best(means, n)
        return score_above(to_device(levels[:, None], unscored.device), unscored, std).cpu().numpy()

    def best_rows(self, n: int) -> Rows:
        """(queries, n) the unscored rows of largest posterior mean, padded with the number of items."""
        return self._best(self.posterior_means(n), n)[0].cpu().numpy()

    def margins(self, rows: Rows, level: float) -> NDArray[np.float64]:
        """(queries, n) by how many standard deviations the prediction of each row exceeds a level."""
        parts = []
        for batch in torch.split(to_device(rows, self._vectors.device), STD_BATCH, 1):
            features = self._features(batch)
            means, std = self.model.posterior_mean(features), self.model.posterior_std(features)
            means, std = self.model.apply_score_floor(means, std)
            parts.append((means - level) / (self._error_scale() * std))
        return torch.cat(parts, 1).cpu().numpy()

    def _predict_best(self, means: PosteriorMeans, n: int, stride: int = 1) -> tuple[Tensor, Tensor]:
        """Predictive means and standard deviations of every `stride`-th of the `n` best rows; −∞ in the padding."""
        rows, unscored = (values[:, ::stride] for values in self._best(means, n))
        missing = torch.isinf(unscored)
        unscored, std = self.model.apply_score_floor(unscored, self._std(rows))
        return unscored.masked_fill(missing, -torch.inf), self._error_scale() * std

    def _std(self, rows: Tensor) -> Tensor:
        on_gpu = STD_BATCH_ELEMENTS_ON_GPU // self.model.query_vectors.numel() if rows.is_cuda else 0
        batches = torch.split(rows, max(STD_BATCH, on_gpu), 1)
        return torch.cat([self.model.posterior_std(self._features(batch)) for batch in batches], 1)

    def _error_scale(self) -> Tensor | float:
        """How much larger the errors of all rounds but the first were than predicted."""
        if not self._predictions:
            return 1.0
        means, std = (torch.cat(parts, 1) for parts in zip(*self._predictions, strict=True))
        _, scores, valid = self._predicted(means.shape[1])
        means, std = self.model.apply_score_floor(means, std)
        return error_scale((scores - means) / std, valid, [means.shape[1] for means, _ in self._predictions])


def _is_among(rows: Tensor, others: Tensor) -> Tensor:
    """(queries, n) whether each row of a query is among its `others`, of which there must be at least one column."""
    ascending = others.sort(dim=1).values
    nearest = torch.searchsorted(ascending, rows).clamp(max=ascending.shape[1] - 1)
    return ascending.gather(1, nearest) == rows


def _to_proposals(rows: Tensor, means: Tensor, std: Tensor, items: int) -> list[Proposal]:
    stacked = torch.stack([rows.double(), means, std]).cpu().numpy()  # one copy from the device
    row_array, (mean_array, std_array) = stacked[0].astype(np.int64), stacked[1:].astype(np.float32)
    counts = (row_array < items).sum(1).tolist()
    return [
        Proposal(row_array[query, :n], mean_array[query, :n], std_array[query, :n]) if n else EMPTY_PROPOSAL
        for query, n in enumerate(counts)
    ]
