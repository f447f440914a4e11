"""Top-k of each row of a matrix with stable ties, on any torch device."""

from __future__ import annotations

from typing import Final

import torch

from crossknn.errors import InputError

# The maxima of column blocks preselect columns of wide matrices. The block is the largest of these widths with which
# the selected blocks together are BLOCK_SAVINGS times narrower than the matrix.
WIDE_COLUMNS: Final = {"cpu": 1 << 14, "cuda": 1 << 17}
BLOCK_WIDTHS: Final = {"cpu": (128, 64, 32), "cuda": (128, 64, 32, 16)}
BLOCK_SAVINGS: Final = 4


def stable_topk(values: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `n` largest values of each row, largest first, and their columns; ties go to the lower column."""
    n = min(n, values.shape[1])
    if not n:
        return values[:, :0], torch.empty((len(values), 0), dtype=torch.int64, device=values.device)
    best, columns = fast_topk(values, min(n + 1, values.shape[1]))  # one more, to detect a tie at the end
    # False where two values are equal or one is NaN. The only synchronization with the device.
    if best.shape[1] > 1 and bool((best[:, :-1] > best[:, 1:]).all()):
        return best[:, :n], columns[:, :n]
    if bool(torch.isnan(best[:, 0]).any()):
        raise InputError("The vectors or the query vectors hold NaN.")
    tied_end = ((best[:, n - 1 : n] == best[:, n:]) & (best[:, n:] > -torch.inf)).any(1)
    return _sort_ties(values, columns[:, :n], tied_end)


def fast_topk(values: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.topk`, whose ties have any order."""
    width, kind = values.shape[1], "cuda" if values.is_cuda else "cpu"
    block = next((block for block in BLOCK_WIDTHS[kind] if n * block * BLOCK_SAVINGS <= width), 0)
    if width < WIDE_COLUMNS[kind] or not block:
        return values.topk(n, dim=1)
    return blockwise_topk(values, n, block)


def blockwise_topk(values: torch.Tensor, n: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.topk` among the `n` column blocks with the largest maxima and the columns after the last whole block."""
    whole = values.shape[1] // block * block
    blocks = values[:, :whole].view(len(values), -1, block)
    chosen = blocks.amax(2).topk(n, dim=1, sorted=False).indices
    gathered = blocks.gather(1, chosen[:, :, None].expand(-1, -1, block)).flatten(1)
    best, places = torch.cat([gathered, values[:, whole:]], 1).topk(n, dim=1)
    in_block = chosen.gather(1, (places // block).clamp(max=n - 1)) * block + places % block
    return best, torch.where(places < n * block, in_block, places + (whole - n * block))


def _sort_ties(
    values: torch.Tensor, columns: torch.Tensor, tied_end: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The top-k in stable order; rows whose k-th value ties with the next are sorted as a whole."""
    columns = columns.sort(dim=1).values  # so that the stable sort below breaks ties by column
    best, order = values.gather(1, columns).sort(dim=1, descending=True, stable=True)
    columns = columns.gather(1, order)
    for row in torch.nonzero(tied_end)[:, 0].tolist():
        row_best, row_columns = values[row].sort(descending=True, stable=True)
        best[row], columns[row] = row_best[: best.shape[1]], row_columns[: best.shape[1]]
    return best, columns
