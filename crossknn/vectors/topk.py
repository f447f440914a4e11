"""The largest values of each line, on any device."""

from __future__ import annotations

from typing import Final

import torch

from crossknn.errors import InputError

WIDE: Final = 1 << 17  # columns, from which on a GPU first looks at the largest value of each block
BLOCKS: Final = (128, 64, 32, 16)  # how many columns those have: the first number with which the best blocks together
SMALL: Final = 4  # are so many times smaller than the line; with none of them all values are looked at


def stable_topk(values: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `n` largest of each line, largest first, and their columns; ties to the lower column."""
    n = min(n, values.shape[1])
    if not n:
        return values[:, :0], torch.empty((len(values), 0), dtype=torch.int64, device=values.device)
    best, columns = _top(values, min(n + 1, values.shape[1]))  # one more, to see whether they end in a tie
    tied = (best[:, :-1] - best[:, 1:] == 0).any(1)  # of −∞ and −∞ this is NaN, and they may have any order
    odd = torch.isnan(best[:, 0])
    if not bool((tied | odd).any()):  # all that is asked of the device
        return best[:, :n], columns[:, :n]
    if bool(odd.any()):
        raise InputError("the vectors or the query vectors hold NaN.")
    cut = ((best[:, n - 1 : n] == best[:, n:]) & (best[:, n:] > -torch.inf)).any(1)
    return _in_order(values, columns[:, :n], cut)


def _top(values: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `torch.topk`: any of those that are equal."""
    width = values.shape[1]
    block = next((one for one in BLOCKS if n * one * SMALL <= width), 0)
    if not values.is_cuda or width < WIDE or not block:
        return values.topk(n, dim=1)
    return top_of_blocks(values, n, block)


def top_of_blocks(values: torch.Tensor, n: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same: the `n` largest are in the `n` blocks of columns that have the largest maxima, or behind the last."""
    whole = values.shape[1] // block * block
    blocks = values[:, :whole].view(len(values), -1, block)
    chosen = blocks.amax(2).topk(n, dim=1, sorted=False).indices
    near = blocks.gather(1, chosen[:, :, None].expand(-1, -1, block)).flatten(1)
    best, places = torch.cat([near, values[:, whole:]], 1).topk(n, dim=1)
    inside = chosen.gather(1, (places // block).clamp(max=n - 1)) * block + places % block
    return best, torch.where(places < n * block, inside, places + (whole - n * block))


def _in_order(values: torch.Tensor, columns: torch.Tensor, cut: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of these columns, which hold the largest, and the columns, as `stable_topk` has them.

    In lines that are `cut` there are more columns of the last value.
    """
    columns = columns.sort(dim=1).values  # so that the stable sort below breaks ties by column
    best, order = values.gather(1, columns).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    for line in torch.nonzero(cut)[:, 0].tolist():
        line_best, line_columns = values[line].sort(descending=True, stable=True)
        best[line], columns[line] = line_best[: best.shape[1]], line_columns[: best.shape[1]]
    return best, columns
