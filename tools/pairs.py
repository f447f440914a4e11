"""Token tensors, cross-encoder inputs assembled on the device, and batched scoring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

FORWARD_BATCH = {"cuda": 16_384, "cpu": 256}  # pairs in one forward pass


@dataclass
class Tokens:
    """Padded token ids, (texts, width), and the length of each text."""

    ids: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Sequence[str], *, max_length: int, device: str) -> Tokens:
        lists = [one.ids[:max_length] for one in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        padded = torch.zeros(len(lists), max_length, dtype=torch.int32)
        for row, ids in enumerate(lists):
            padded[row, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        return cls(padded.to(device), torch.tensor([len(ids) for ids in lists], device=device))

    def truncate(self, max_length: int) -> Tokens:
        """The same texts, truncated to `max_length` tokens."""
        return Tokens(self.ids[:, :max_length], self.lengths.clamp(max=max_length))


@dataclass
class Pairs:
    """Assembles `[CLS] query [SEP] item [SEP]` from stored tokens."""

    queries: Tokens
    items: Tokens
    cls: int
    sep: int

    def assemble_one(self, tokens: Tokens, rows: Tensor) -> dict[str, Tensor]:
        """`[CLS] text [SEP]` of some of the queries or of the items."""
        lengths = tokens.lengths[rows][:, None]
        positions = torch.arange(_round_up(lengths + 2), device=rows.device)[None]
        ids = tokens.ids[rows].gather(1, (positions - 1).clamp(0, tokens.ids.shape[1] - 1).expand(len(rows), -1))
        ids = torch.where(positions == 0, self.cls, torch.where(positions == lengths + 1, self.sep, ids))
        mask = positions <= lengths + 1
        return {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}

    def lengths(self, q: Tensor, i: Tensor) -> Tensor:
        return self.queries.lengths[q] + self.items.lengths[i] + 3

    def assemble(self, q: Tensor, i: Tensor) -> dict[str, Tensor]:
        query, item = self.queries.lengths[q][:, None], self.items.lengths[i][:, None]
        positions = torch.arange(_round_up(self.lengths(q, i)), device=q.device)[None]
        first = self.queries.ids[q].gather(
            1, (positions - 1).clamp(0, self.queries.ids.shape[1] - 1).expand(len(q), -1)
        )
        second = self.items.ids[i].gather(1, (positions - query - 2).clamp(0, self.items.ids.shape[1] - 1))
        ids = torch.where(positions <= query, first, second)
        ids = torch.where(positions == 0, self.cls, ids)
        ids = torch.where((positions == query + 1) | (positions == query + item + 2), self.sep, ids)
        mask = positions <= query + item + 2
        return {
            "input_ids": torch.where(mask, ids, 0),
            "token_type_ids": ((positions > query + 1) & mask).long(),
            "attention_mask": mask.long(),
        }

    def logits(self, model: Any, q: Tensor, i: Tensor, *, chunks: int = 1) -> Tensor:
        """One logit per pair, scored in at least `chunks` batches of similar length."""

        def read(chunk: Tensor) -> Any:
            return model(**self.assemble(q[chunk], i[chunk])).logits[:, 0].float()

        return in_chunks(read, self.lengths(q, i), chunks=chunks)


def in_chunks(read: Callable[[Tensor], Tensor], lengths: Tensor, *, chunks: int = 1) -> Tensor:
    """`read` applied to at least `chunks` batches of similar length, in the given order."""
    order = lengths.argsort()
    size = min(FORWARD_BATCH[lengths.device.type], -(-len(lengths) // chunks))
    return torch.cat([read(chunk) for chunk in order.split(size)])[order.argsort()]


def _round_up(lengths: Tensor) -> int:
    """The maximum, rounded up to a multiple of 8 so that few shapes occur."""
    return -(-int(lengths.max()) // 8) * 8


@torch.no_grad()
def score(model: Any, pairs: Pairs, q: Tensor, i: Tensor, *, chunks: int = 8) -> Tensor:
    """The logits of many pairs without gradients, in bfloat16 on a GPU."""
    model.eval()
    with torch.autocast("cuda", torch.bfloat16, enabled=q.is_cuda):
        return pairs.logits(model, q, i, chunks=chunks)


def ranks_in_exact_search(model: Any, pairs: Pairs, q: Tensor, gold: Tensor, rows: Tensor) -> Tensor:
    """For each query, how many of these items score higher than its relevant item, `rows[gold]`."""
    found = []
    for query, place in zip(q.tolist(), gold.tolist(), strict=True):
        scores = score(model, pairs, torch.full_like(rows, query), rows)
        found.append(int((scores > scores[place]).sum()))
    return torch.tensor(found)
