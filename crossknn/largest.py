"""The largest values of each line, on any device."""

from __future__ import annotations

import torch

from crossknn.errors import InputError


def largest(values: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `n` largest of each line, largest first, and their columns; ties to the lower column."""
    n = min(n, values.shape[1])
    if not n:
        return values[:, :0], torch.empty((len(values), 0), dtype=torch.int64, device=values.device)
    best, columns = values.topk(n, dim=1)
    if bool(torch.isnan(best[:, 0]).any()):
        raise InputError("the vectors or the query vectors hold NaN.")
    columns = columns.sort(dim=1).values  # so that the stable sort below breaks ties by column
    best, order = values.gather(1, columns).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    last = best[:, -1:]
    tied = ((values >= last).sum(1) > n) & torch.isfinite(last[:, 0])
    for line in torch.nonzero(tied)[:, 0].tolist():  # topk cut through equal values: sort them all
        line_best, line_columns = values[line].sort(descending=True, stable=True)
        best[line], columns[line] = line_best[:n], line_columns[:n]
    return best, columns
