"""Texts as tensors, pairs assembled on the device, and scores of many pairs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

AT_ONCE = {"cuda": 16_384, "cpu": 256}  # pairs in one forward pass


@dataclass
class Tokens:
    """(texts, width) piece numbers, padded, and the length of each text."""

    numbers: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: Sequence[str], *, most: int, device: str) -> Tokens:
        lists = [one.ids[:most] for one in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        numbers = torch.zeros(len(lists), most, dtype=torch.int32)
        for row, ids in enumerate(lists):
            numbers[row, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        return cls(numbers.to(device), torch.tensor([len(ids) for ids in lists], device=device))

    def cut(self, most: int) -> Tokens:
        """The same texts, at most so long."""
        return Tokens(self.numbers[:, :most], self.lengths.clamp(max=most))


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
        at = torch.arange(_round_up(lengths + 2), device=rows.device)[None]
        ids = tokens.numbers[rows].gather(1, (at - 1).clamp(0, tokens.numbers.shape[1] - 1).expand(len(rows), -1))
        ids = torch.where(at == 0, self.cls, torch.where(at == lengths + 1, self.sep, ids))
        real = at <= lengths + 1
        return {"input_ids": torch.where(real, ids, 0), "attention_mask": real.long()}

    def lengths(self, q: Tensor, i: Tensor) -> Tensor:
        return self.queries.lengths[q] + self.items.lengths[i] + 3

    def assemble(self, q: Tensor, i: Tensor) -> dict[str, Tensor]:
        query, item = self.queries.lengths[q][:, None], self.items.lengths[i][:, None]
        at = torch.arange(_round_up(self.lengths(q, i)), device=q.device)[None]
        first = self.queries.numbers[q].gather(
            1, (at - 1).clamp(0, self.queries.numbers.shape[1] - 1).expand(len(q), -1)
        )
        second = self.items.numbers[i].gather(1, (at - query - 2).clamp(0, self.items.numbers.shape[1] - 1))
        ids = torch.where(at <= query, first, second)
        ids = torch.where(at == 0, self.cls, ids)
        ids = torch.where((at == query + 1) | (at == query + item + 2), self.sep, ids)
        real = at <= query + item + 2
        return {
            "input_ids": torch.where(real, ids, 0),
            "token_type_ids": ((at > query + 1) & real).long(),
            "attention_mask": real.long(),
        }

    def logits(self, model: Any, q: Tensor, i: Tensor, *, chunks: int = 1) -> Tensor:
        """One logit per pair, scored in at least so many chunks of like length."""

        def read(chunk: Tensor) -> Any:
            return model(**self.assemble(q[chunk], i[chunk])).logits[:, 0].float()

        return in_chunks(read, self.lengths(q, i), chunks=chunks)


def in_chunks(read: Callable[[Tensor], Tensor], lengths: Tensor, *, chunks: int = 1) -> Tensor:
    """What `read` gives for each text or pair, at least so many chunks of like length one after the other."""
    order = lengths.argsort()
    size = min(AT_ONCE[lengths.device.type], -(-len(lengths) // chunks))
    return torch.cat([read(chunk) for chunk in order.split(size)])[order.argsort()]


def _round_up(lengths: Tensor) -> int:
    """The longest, up to a multiple of 8, for few different shapes."""
    return -(-int(lengths.max()) // 8) * 8


@torch.no_grad()
def score(model: Any, pairs: Pairs, q: Tensor, i: Tensor, *, chunks: int = 8) -> Tensor:
    """The logits of many pairs, without a gradient: bfloat16 on a GPU."""
    model.eval()
    with torch.autocast("cuda", torch.bfloat16, enabled=q.is_cuda):
        return pairs.logits(model, q, i, chunks=chunks)


def ranks_in_exact_search(model: Any, pairs: Pairs, q: Tensor, gold: Tensor, rows: Tensor) -> Tensor:
    """How many of these items score higher than each query's own, `gold` being its place among them."""
    found = []
    for query, place in zip(q.tolist(), gold.tolist(), strict=True):
        scores = score(model, pairs, torch.full_like(rows, query), rows)
        found.append(int((scores > scores[place]).sum()))
    return torch.tensor(found)
