"""Padding-free inference: the pairs of a batch are one long sequence, and attention stays within each of them.

Here are the batches and the base class of models that run them. The models are in postnorm.py (BERT, RoBERTa,
DeBERTa), prenorm.py (ModernBERT, decoders) and packed.py (all others); padding_free.py chooses one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import Layout, Ops
from crossknn.scorers.inference.pairs import PairTemplate, TokenSpans
from crossknn.scorers.inference.token_store import Counts

TOKEN_STEPS, SEQUENCE_STEPS = 64, 8  # sizes of a batch on a GPU between adjacent powers of two
Copy = Callable[[Any], Any]  # from an array to a tensor on the device


class DeviceTokens:
    """The tokens of some texts on the device, copied when they are first used."""

    def __init__(self, spans: TokenSpans, copy: Copy) -> None:
        self._spans = spans
        self.copy = copy

    @cached_property
    def queries(self) -> Any:
        """(tokens,) of all queries."""
        return self.copy(self._spans.queries.flat)

    @cached_property
    def items(self) -> Any:
        """(tokens,) of all items."""
        return self.copy(self._spans.items.flat)


@dataclass(frozen=True, slots=True)
class VarlenBatch:
    """Pairs of a padding-free batch."""

    spans: TokenSpans
    lengths: Counts  # (pairs,) of whole pairs
    on_device: DeviceTokens

    @property
    def tokens(self) -> int:
        """Tokens of the forward pass."""
        return int(self.lengths.sum())

    def take(self, rows: slice) -> VarlenBatch:
        """Some of the pairs."""
        spans = self.spans.take(np.arange(len(self.lengths))[rows])
        return VarlenBatch(spans, self.lengths[rows], self.on_device)


@dataclass(frozen=True, slots=True)
class JoinedPairs:
    """The tokens of pairs, end to end; all but the layout's lengths is on the device."""

    ids: Any  # (tokens,)
    types: Any
    positions: Any  # from 0 in each pair
    layout: Layout
    query_lengths: Any = None  # (pairs,)
    item_lengths: Any = None


class VarlenHead(Protocol):
    """Reads scores from the states of a transformer."""

    @property
    def token(self) -> str | None:
        """The only token of each pair that it reads, "cls" or "lasttoken"; None if it reads all."""

    def logits(self, states: Any, pairs: JoinedPairs) -> Any:
        """(pairs, labels) from the states of these tokens."""


class VarlenModel:
    """A transformer over concatenated pairs, and its head; a subclass runs the layers."""

    def __init__(self, head: VarlenHead, template: PairTemplate, ops: Ops) -> None:
        self.head = head
        self.template = template
        self.ops = ops
        self.shares_queries = False  # whether pairs of one query should be adjacent
        self.capturable = False  # whether a CUDA graph can run it

    def logits(self, batch: VarlenBatch) -> Any:
        """(pairs, labels)"""
        pairs = join_pairs(self.template, batch)
        if pairs.ids.is_cuda:
            pairs = fill_up(pairs)
        return self.run(pairs)[: len(batch.lengths)]

    def run(self, pairs: JoinedPairs) -> Any:
        """(pairs, labels)"""
        return self.head.logits(self.encode(pairs), pairs)

    def forward(self, encoded: Mapping[str, Any]) -> Any:
        """The states of a tokenizer's encoding of one pair."""
        (ids,) = encoded["input_ids"]
        types = encoded.get("token_type_ids")
        return self.encode(one_sequence_each([ids], None if types is None else types[0]))

    @property
    def linears(self) -> list[Any]:
        """The linear layers in use, except the head's."""
        raise NotImplementedError

    def clear(self) -> None:
        """Free what is kept for later batches."""

    def restore(self) -> None:
        """Undo what was changed in the original model, which is to run by itself again."""

    def encode(self, pairs: JoinedPairs) -> Any:
        """The states that the head reads: (tokens, dim) of all tokens, or (pairs, dim) of one token of each pair."""
        raise NotImplementedError


def head_rows(layout: Layout, token: str) -> Any:
    """(pairs,) the row of each pair's first or last token."""
    bounds = layout.cu_seqlens.long()
    return bounds[:-1] if token == "cls" else bounds[1:] - 1  # noqa: S105


def head_states(head: VarlenHead, states: Any, layout: Layout) -> Any:
    """Those of the states of all tokens that the head reads."""
    return states if head.token is None else states[head_rows(layout, head.token)]


def fill_up(pairs: JoinedPairs, *, sequences: bool = True) -> JoinedPairs:
    """The pairs, and tokens behind them that nobody reads, so that batches have few shapes.

    With `sequences` these are few, too. The first matrix products of every new shape take the host ten times as long
    as later ones.
    """
    pad = import_extra("torch", extra="models").nn.functional.pad
    count, size = len(pairs.layout.lengths), len(pairs.ids)
    more = usual_size(size + 1, TOKEN_STEPS) - size
    layout = pairs.layout.fill_up(more, usual_size(count + 1, SEQUENCE_STEPS) if sequences else 0)
    ids, types, positions = (pad(row, (0, more)) for row in (pairs.ids, pairs.types, pairs.positions))
    fillers = len(layout.lengths) - count
    texts = [None if one is None else pad(one, (0, fillers)) for one in (pairs.query_lengths, pairs.item_lengths)]
    return JoinedPairs(ids, types, positions, layout, *texts)


def usual_size(size: int, steps: int) -> int:
    """The smallest number from `size` on of which there are `steps` between adjacent powers of two."""
    step: int = max(1, 2 ** (size - 1).bit_length() // (2 * steps))
    return -(-size // step) * step


def join_pairs(template: PairTemplate, batch: VarlenBatch) -> JoinedPairs:
    """The pairs, joined on the device as the template says."""
    spans, tokens = batch.spans, batch.on_device
    bounds = (spans.queries.starts, spans.queries.lengths, spans.items.starts, spans.items.lengths)
    moved = tokens.copy(np.stack(bounds))
    return join_tokens(template, (tokens.queries, tokens.items), moved, batch.lengths)


def join_tokens(template: PairTemplate, texts: tuple[Any, Any], bounds: Any, lengths: Counts) -> JoinedPairs:
    """The pairs of two buffers of tokens.

    Args:
        template: Says what stands around the texts.
        texts: The tokens of queries and of items.
        bounds: (4, pairs) query start, query length, item start, item length, on the device.
        lengths: (pairs,) of whole pairs, on the host.
    """
    torch = import_extra("torch", extra="models")
    query_from, query_lengths, item_from, item_lengths = bounds
    first_tokens, second_tokens = texts
    first_from, first_lengths, second_from = query_from, query_lengths, item_from
    if template.item_first:
        first_tokens, second_tokens = second_tokens, first_tokens
        first_from, first_lengths, second_from = item_from, item_lengths, query_from
    ends = torch.cumsum(query_lengths + item_lengths + template.specials, 0)
    starts = torch.nn.functional.pad(ends[:-1], (1, 0))
    tokens = int(lengths.sum())
    pair = torch.repeat_interleave(ends - starts, output_size=tokens)  # a known size avoids a synchronization
    positions = torch.arange(tokens, device=pair.device) - starts[pair]
    middle_at = starts + len(template.prefix) + first_lengths
    second_at = middle_at + len(template.middle)
    into_first = positions + (first_from - len(template.prefix))[pair]
    into_second = positions + (second_from + starts - second_at)[pair]
    in_second = positions >= (second_at - starts)[pair]
    ids = torch.where(in_second, _take(second_tokens, into_second), _take(first_tokens, into_first))
    suffix_at = ends - len(template.suffix)
    for special, at in ((template.prefix, starts), (template.middle, middle_at), (template.suffix, suffix_at)):
        for shift, token in enumerate(special):
            ids.index_fill_(0, at + shift, token)  # an assignment would synchronize
    types = template.token_types(positions, query_lengths[pair], item_lengths[pair])
    layout = Layout(torch.nn.functional.pad(ends, (1, 0)).int(), lengths, int(lengths.max()))
    return JoinedPairs(ids, types, positions, layout, query_lengths, item_lengths)


def fuse_linears(*linears: Any) -> Any:
    """One linear layer with the outputs of all, which become views of its weight."""
    torch = import_extra("torch", extra="models")
    biased = any(one.bias is not None for one in linears)
    shape = (linears[0].in_features, sum(one.out_features for one in linears))
    fused = torch.nn.Linear(*shape, bias=biased, device="meta")
    with torch.no_grad():
        weight = torch.cat([one.weight for one in linears])
        if biased:
            parts = [torch.zeros_like(one.weight[:, 0]) if one.bias is None else one.bias for one in linears]
            fused.bias = torch.nn.Parameter(torch.cat(parts), requires_grad=False)
    fused.weight = torch.nn.Parameter(weight, requires_grad=False)
    for linear, part in zip(linears, weight.split([one.out_features for one in linears]), strict=True):
        linear.weight.data = part
    return fused


def _take(buffer: Any, positions: Any) -> Any:
    """The tokens at these positions; those outside, which are never read, give any."""
    return buffer[positions.clamp(0, max(0, len(buffer) - 1))] if len(buffer) else positions.new_zeros(len(positions))


def one_sequence_each(rows: list[Any], types: Any = None) -> JoinedPairs:
    """Tokens on the device as sequences of a batch, of which nothing else is known."""
    torch = import_extra("torch", extra="models")
    ids, positions = torch.cat(rows), torch.cat([torch.arange(len(row), device=row.device) for row in rows])
    layout = Layout.of(np.array([len(row) for row in rows]), ids.device)
    return JoinedPairs(ids, torch.zeros_like(ids) if types is None else types, positions, layout)
