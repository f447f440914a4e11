"""What retrievers say about all queries of a search, side by side, and what is expected from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from crossknn.prior import Prior, Said


class Heard:
    """Of the rows that retrievers propose for each query, and of all others, which count alike.

    rows       (queries, most) lowest first; lines are filled up with the number of items
    base       (queries, most + 1) m but for the biases, last that of all others, as in all that follows
    deviation  (queries, most + 1) γ
    shown      (queries, most + 1, columns) features
    bias       (queries, most)
    """

    def __init__(self, said: Sequence[Said], priors: Sequence[Prior], items: int, device: torch.device) -> None:
        most, columns = max(len(one.rows) for one in said), said[0].columns.shape[1]
        rows = np.full((len(said), most), items)
        base = np.empty((len(said), most + 1), np.float32)
        shown = np.empty((*base.shape, columns), np.float32)
        bias = np.zeros(rows.shape, np.float32)
        for line, (one, prior) in enumerate(zip(said, priors, strict=True)):
            count = len(one.rows)
            rows[line, :count] = one.rows
            for whole, part in ((base, prior.say(one.columns)), (shown, prior.show(one.columns))):
                whole[line, :count], whole[line, count:] = part[:-1], part[-1]
            if prior.fitted:
                bias[line, :count] = prior.bias[one.rows]
        deviation = np.asarray(priors[0].deviation(base), np.float32)
        self.rows, self.base, self.deviation, self.shown, self.bias = (
            torch.from_numpy(array).to(device) for array in (rows, base, deviation, shown, bias)
        )
        self.filled = self.rows == items

    def places(self, rows: torch.Tensor) -> torch.Tensor:
        """(queries, some) where these rows of each query are; last where they are among the others."""
        most = self.rows.shape[1]
        if not most:
            return torch.zeros_like(rows)
        spots = torch.searchsorted(self.rows, rows.contiguous())
        found = self.rows.gather(1, spots.clamp(max=most - 1)) == rows
        return torch.where(found, spots, most)
