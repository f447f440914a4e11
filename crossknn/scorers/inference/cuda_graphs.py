"""Small batches as CUDA graphs: one launch in place of a hundred, which would take longer than the work itself.

A graph has fixed shapes. A batch takes the next larger size of tokens and of pairs; the tokens left over are a sequence
of their own, which no pair attends to, and the pairs left over are empty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import Layout
from crossknn.scorers.inference.pairs import PairTemplate, TokenSpans
from crossknn.scorers.inference.token_store import Tokens
from crossknn.scorers.inference.varlen import DeviceTokens, JoinedPairs, VarlenBatch, VarlenModel

TOKENS: Final = [int(step * 2**power) for power in range(8, 14) for step in (1, 1.5)] + [2**14]
PAIRS: Final = [16, 64, 256]


class Size(NamedTuple):
    """The shape of a graph."""

    tokens: int
    pairs: int


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A forward pass over tokens in fixed memory."""

    graph: Any
    staged: Any  # (n,) int32 in pinned memory of the host, in the order of `pack`
    copied: Any  # event: the staged inputs may be overwritten
    inputs: Any  # the same on the device
    logits: Any  # (pairs + 1, labels)

    def replay(self, packed: Tokens) -> Any:
        """The logits, which the next replay overwrites."""
        self.copied.synchronize()
        self.staged.numpy()[:] = packed
        self.inputs.copy_(self.staged, non_blocking=True)
        self.copied.record()
        self.graph.replay()
        return self.logits


class CudaGraphs:
    """The graphs of a model; one is captured when its size is met for the second time. Thread-safe."""

    def __init__(self, model: VarlenModel, *, max_length: int) -> None:
        self._model = model
        self._max_length = max_length  # of a pair
        self._graphs: dict[Size, CapturedGraph] = {}
        self._met: Counter[Size] = Counter()
        self._pool: Any = None  # memory that the graphs share
        self._lock = Lock()

    def logits(self, batch: VarlenBatch) -> Any:
        """(pairs, labels), or None for a batch that is too large or of a size met for the first time."""
        size = graph_size(batch.tokens, len(batch.lengths))
        if size is None:
            return None
        with self._lock:  # the graph's memory holds one batch at a time
            graph = self._graphs.get(size)
            if graph is None:
                self._met[size] += 1
                if self._met[size] == 1:
                    return None
            packed = pack(self._model.template, batch.spans, size)
            if graph is None:
                graph = self._graphs[size] = self._capture(size, packed, batch.on_device)
            return graph.replay(packed)[: len(batch.lengths)].clone()

    def _capture(self, size: Size, example: Tokens, device: DeviceTokens) -> CapturedGraph:
        torch = import_extra("torch", extra="models")
        inputs = device.copy(example)
        staged = torch.empty(len(example), dtype=torch.int32, pin_memory=True)
        pairs = unpack(inputs, size, self._max_length)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles what has to be, which a capture must not
            self._model.run(pairs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = self._model.run(pairs)
        return CapturedGraph(graph, staged, torch.cuda.Event(), inputs, logits)


def graph_size(tokens: int, pairs: int) -> Size | None:
    """The smallest size with room for the batch and one more token; None if there is none."""
    if tokens >= TOKENS[-1] or pairs > PAIRS[-1]:
        return None
    return Size(TOKENS[bisect_left(TOKENS, tokens + 1)], PAIRS[bisect_left(PAIRS, pairs)])


def pack(template: PairTemplate, spans: TokenSpans, size: Size) -> Tokens:
    """Token ids, types, positions, bounds of sequences, and lengths of queries and items, as one array."""
    lengths = template.lengths(spans)
    ends = np.cumsum(lengths)
    count, used = len(lengths), int(ends[-1])
    positions = np.arange(used) - np.repeat(ends - lengths, lengths)
    texts = np.stack([spans.queries.lengths, spans.items.lengths])
    packed = np.zeros(3 * size.tokens + 3 * size.pairs + 4, np.int32)
    ids_types_positions = packed[: 3 * size.tokens].reshape(3, size.tokens)
    ids_types_positions[0, :used] = template.concatenate(spans)
    if template.first_type is not None:
        ids_types_positions[1, :used] = template.token_types(positions, *np.repeat(texts, lengths, axis=1))
    ids_types_positions[2, :used] = positions
    bounds = packed[3 * size.tokens :][: size.pairs + 2]
    bounds[1 : count + 1], bounds[count + 1 : -1], bounds[-1] = ends, used, size.tokens
    packed[-2 * (size.pairs + 1) :].reshape(2, -1)[:, :count] = texts
    return packed


def unpack(packed: Any, size: Size, max_length: int) -> JoinedPairs:
    """The pairs whose tokens and lengths `packed` holds, as views of it."""
    texts = packed[-2 * (size.pairs + 1) :].view(2, -1)
    ids, types, positions = packed[: 3 * size.tokens].view(3, -1)
    lengths = np.full(size.pairs + 1, min(max_length, size.tokens))  # nothing else is known on the host
    layout = Layout(packed[3 * size.tokens :][: size.pairs + 2], lengths, int(lengths[0]))
    return JoinedPairs(ids, types, positions, layout, texts[0], texts[1])
