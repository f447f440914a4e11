"""BM25 postings in the memory of a GPU, which sums the weights of a query's stems and ranks the items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from crossknn._imports import import_extra
from crossknn.types import EMPTY_PROPOSAL, Mask, Proposal

if TYPE_CHECKING:
    from torch import Tensor

    from crossknn.retrievers.bm25 import Postings


class DevicePostings:
    """The postings of some items; their scores are those on the host to the last bit."""

    def __init__(self, postings: Postings, n_items: int, device: str) -> None:
        torch = import_extra("torch", extra="models")
        self._starts, self._absent = postings.starts, postings.absent
        self._rows, self._weights = (torch.tensor(one, device=device) for one in (postings.rows, postings.weights))
        self._n_items = n_items

    @classmethod
    def place(cls, postings: Postings, n_items: int, device: str) -> Self | None:
        """The postings on a device; None where they would take more than half of a GPU's free memory."""
        torch = import_extra("torch", extra="models")
        if torch.device(device).type == "cuda":
            free: int = torch.cuda.mem_get_info(device)[0]
            if postings.rows.nbytes + postings.weights.nbytes > free // 2:
                return None
        return cls(postings, n_items, device)

    def top_rows(self, queries: Sequence[Sequence[int]], n: int, allowed: Mask | None) -> list[Proposal]:
        """For each query the `n` allowed rows of largest score, ties to the lower row; a query is places of stems."""
        torch = import_extra("torch", extra="models")
        hidden = None
        if allowed is not None:
            n = min(n, int(np.count_nonzero(allowed)))
            hidden = torch.from_numpy(~allowed).to(self._rows.device)
        if n <= 0 or not len(queries):
            return [EMPTY_PROPOSAL] * len(queries)
        found = [self._top(self._scores(places, hidden), n) for places in queries]
        rows, scores = (torch.stack(part).cpu().numpy() for part in zip(*found, strict=True))
        return [Proposal(*one) for one in zip(rows, scores, strict=True)]

    def _scores(self, places: Sequence[int], hidden: Tensor | None) -> Tensor:
        """(items,) scores, −∞ where hidden: one stem after the other, whose rows are distinct, so in a fixed order."""
        scores: Tensor = self._weights.new_zeros(self._n_items)
        for place in places:
            part = slice(self._starts[place], self._starts[place + 1])
            scores.index_add_(0, self._rows[part], self._weights[part])
        if len(self._absent):
            scores += float(self._absent[list(places)].sum())
        return scores if hidden is None else scores.masked_fill_(hidden, -np.inf)

    def _top(self, scores: Tensor, n: int) -> tuple[Tensor, Tensor]:
        from crossknn.vectors.topk import fast_topk  # imports torch

        torch = import_extra("torch", extra="models")
        if n == len(scores):
            best, rows = scores.sort(descending=True, stable=True)
            return rows, best
        threshold = fast_topk(scores[None], n)[0][0, -1]
        above, tied = (values.nonzero()[:, 0] for values in (scores > threshold, scores == threshold))
        rows = torch.cat([above, tied[: n - len(above)]])  # ascending among equal scores
        best, order = scores[rows].sort(descending=True, stable=True)
        return rows[order], best
