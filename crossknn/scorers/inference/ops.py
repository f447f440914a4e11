"""Operations of a transformer over concatenated sequences: torch's own, and fused ones on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.token_store import Counts

ACTIVATIONS: Final = {  # names of modules: the formula
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The bounds of the sequences in a concatenated batch."""

    cu_seqlens: Any  # (sequences + 1,) int32 on the device: cumulative lengths, from 0
    lengths: Counts  # (sequences,)
    max_length: int

    @classmethod
    def of(cls, lengths: Counts, device: Any) -> Layout:
        """The layout of sequences of these lengths."""
        bounds = import_extra("torch", extra="models").from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        return cls(bounds.int().to(device), lengths, int(lengths.max()))

    def fill_up(self, tokens: int, sequences: int = 0) -> Layout:
        """The same with more tokens behind the others, and before them empty sequences, up to a number of sequences."""
        torch = import_extra("torch", extra="models")
        used, longest = int(self.lengths.sum()), self.max_length
        ends = np.minimum(np.arange(longest, tokens + longest, longest), tokens)
        empty = max(0, sequences - len(self.lengths) - len(ends))
        steps = torch.arange(1, len(ends) + 1, dtype=torch.int32, device=self.cu_seqlens.device) * longest
        bounds = torch.nn.functional.pad(self.cu_seqlens, (0, empty), value=used)
        bounds = torch.cat([bounds, used + steps.clamp(max=tokens)])
        lengths = np.concatenate([self.lengths, np.zeros(empty, np.int64), np.diff(ends, prepend=0)])
        return Layout(bounds, lengths, longest)

    def single(self) -> Layout:
        """As many sequences of one token each."""
        count = len(self.cu_seqlens)
        torch = import_extra("torch", extra="models")
        ones = torch.arange(count, dtype=torch.int32, device=self.cu_seqlens.device)
        return Layout(ones, np.ones(count - 1, np.int64), 1)


class Prefix(NamedTuple):
    """Keys and values that come before those of each sequence, in buffers that sequences share."""

    keys: Any  # (tokens, key heads, head dim)
    values: Any
    starts: Any  # (sequences,) int32, contiguous
    lengths: Any


@dataclass(frozen=True, slots=True)
class Mask:
    """Which tokens of a sequence attend to which; with `causal`, a single query is that of the last token."""

    causal: bool = False
    window: int | None = None  # tokens at most this far away; queries are those of all tokens then
    scale: float | None = None  # of the logits, by default head dim ** -0.5


@dataclass(frozen=True, slots=True)
class RelativePositions:
    """DeBERTa's relative positions in one layer."""

    keys: Any  # (buckets, heads, head dim), or None
    queries: Any
    table: Any  # (2 longest + 1,) int32: the bucket of each distance; longer distances have the last one
    scale: float  # of the logits


@dataclass(frozen=True, slots=True)
class Norm:
    """A LayerNorm or an RMSNorm."""

    module: Any
    weight: Any
    bias: Any
    eps: float
    rms: bool

    @classmethod
    def of(cls, module: Any) -> Norm | None:
        """None for a module of another kind."""
        if type(module).__name__ == "LayerNorm" and module.weight is not None:
            return cls(module, module.weight, module.bias, module.eps, rms=False)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not type(module).__name__.endswith("RMSNorm") or eps is None:
            return None
        around_one = type(module).__name__.startswith("Gemma")  # the stored weight is the difference to 1
        weight = (module.weight.float() + 1).to(module.weight.dtype) if around_one else module.weight
        return cls(module, weight, None, float(eps), rms=True)


ALL: Final = Mask()


class Ops:
    """Plain torch, on any device; adjacent sequences of equal length are one batch, so they should be sorted by it."""

    def attention(
        self,
        query: Any,  # (query tokens, heads, head dim)
        key: Any,  # (key tokens, key heads, head dim)
        value: Any,
        query_layout: Layout,
        key_layout: Layout,
        mask: Mask = ALL,
        prefix: Prefix | None = None,
    ) -> Any:
        """(query tokens, heads, head dim) scaled dot-product attention within each sequence and to its prefix."""
        torch = import_extra("torch", extra="models")
        outputs = []
        for rows, columns, sequences in equal_sequences(query_layout, key_layout, prefix):
            count = sequences.stop - sequences.start
            queries, keys, values = (
                part.unflatten(0, (count, -1)).transpose(1, 2) for part in (query[rows], key[columns], value[columns])
            )
            if prefix is not None:
                start, length = int(prefix.starts[sequences.start]), int(prefix.lengths[sequences.start])
                keys, values = (
                    torch.cat([before[start : start + length].transpose(0, 1).expand(count, -1, -1, -1), own], 2)
                    for before, own in ((prefix.keys, keys), (prefix.values, values))
                )
            allowed = _allowed(torch, queries.shape[2], keys.shape[2], mask, query.device)
            attended = torch.nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=allowed, scale=mask.scale, enable_gqa=keys.shape[1] != queries.shape[1]
            )
            outputs.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs)

    def relative_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        positions: RelativePositions,
        query_layout: Layout,
        key_layout: Layout,
    ) -> Any:
        """(query tokens, heads, head dim) attention with DeBERTa's terms of content and relative position.

        Queries are all tokens, or the first of each sequence.
        """
        torch = import_extra("torch", extra="models")
        outputs = []
        for rows, columns, sequences in equal_sequences(query_layout, key_layout):
            parts = (query[rows], key[columns], value[columns])
            count = sequences.stop - sequences.start
            queries, keys, values = (part.unflatten(0, (count, -1)).transpose(1, 2) for part in parts)
            bucket = _buckets(torch, queries.shape[2], keys.shape[2], positions.table)
            logits = queries @ keys.transpose(2, 3)
            if positions.keys is not None:
                products = queries @ positions.keys.permute(1, 2, 0)  # (sequences, heads, queries, buckets)
                logits += products.gather(3, bucket.expand(logits.shape))
            if positions.queries is not None:
                products = positions.queries.transpose(0, 1) @ keys.transpose(2, 3)  # (…, buckets, keys)
                logits += products.gather(2, bucket.expand(logits.shape))
            attended = (logits * positions.scale).softmax(-1) @ values
            outputs.append(attended.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs)

    def add_norm(self, states: Any, residual: Any, norm: Any) -> Any:
        """(rows, dim) LayerNorm of a residual sum."""
        return norm(states + residual)

    def add_then_norm(self, states: Any, delta: Any, norm: Norm) -> tuple[Any, Any]:
        """(rows, dim) a residual sum, and its norm; `states` may be overwritten."""
        total = states + delta
        return total, norm.module(total)

    def embed_norm(self, ids: Any, types: Any, positions: Any, embeddings: Any) -> Any:
        """(tokens, dim) LayerNorm of the summed embeddings."""
        return embeddings(input_ids=ids[None], token_type_ids=types[None], position_ids=positions[None])[0]

    def linear_activation(self, states: Any, linear: Any, activation: Any) -> Any:
        """(rows, outputs) a linear layer and its activation."""
        return activation(linear(states))

    def gated(self, states: Any, activation: Any) -> Any:
        """(rows, dim) `activation(first half) * second half` of (rows, 2 dim) states."""
        first, second = states.chunk(2, -1)
        return activation(first) * second

    def rotate(self, states: Any, cos: Any, sin: Any, query_heads: int, norms: tuple[Norm, Norm] | None) -> Any:
        """Rotary positions of (tokens, heads, head dim) queries and keys, after a norm of each head if there is one."""
        torch = import_extra("torch", extra="models")
        if norms is not None:
            parts = states.split([query_heads, states.shape[1] - query_heads], 1)
            states = torch.cat([norm.module(part) for norm, part in zip(norms, parts, strict=True)], 1)
        first, second = states.chunk(2, -1)
        return states * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]


class FlashOps(Ops):
    """In half precision on a GPU without Triton, or for heads that its kernels do not know."""

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        query_layout: Layout,
        key_layout: Layout,
        mask: Mask = ALL,
        prefix: Prefix | None = None,
    ) -> Any:
        """By torch's variable-length flash attention."""
        if prefix is not None:
            raise NotImplementedError("attention to a prefix")
        attention = import_extra("torch", extra="models").ops.aten._flash_attention_forward
        lengths = (query_layout.cu_seqlens, key_layout.cu_seqlens, query_layout.max_length, key_layout.max_length)
        options: dict[str, Any] = {"scale": mask.scale}
        if mask.window is not None:
            options |= {"window_size_left": mask.window, "window_size_right": 0 if mask.causal else mask.window}
        return attention(query, key, value, *lengths, 0.0, mask.causal, False, **options)[0]


class TritonOps(Ops):
    """On a GPU, with kernels of `triton_attention` and `triton_kernels`."""

    def __init__(self, attention: Any, kernels: Any) -> None:
        self._attention = attention
        self._kernels = kernels

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        query_layout: Layout,
        key_layout: Layout,
        mask: Mask = ALL,
        prefix: Prefix | None = None,
    ) -> Any:
        """One kernel."""
        options = {"scale": mask.scale, "causal": mask.causal, "window": mask.window}
        return self._attention.attention(query, key, value, query_layout, key_layout, prefix=prefix, **options)

    def relative_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        positions: RelativePositions,
        query_layout: Layout,
        key_layout: Layout,
    ) -> Any:
        """Matrix products with all buckets, and a kernel that picks those of each distance."""
        states = ((query, positions.keys), (key, positions.queries))
        products = [
            None if vectors is None else part.transpose(0, 1) @ vectors.permute(1, 2, 0) for part, vectors in states
        ]
        return self._attention.relative_attention(
            query, key, value, *products, positions.table, query_layout, key_layout, positions.scale
        )

    def add_norm(self, states: Any, residual: Any, norm: Any) -> Any:
        """One kernel; the sum is kept in float32."""
        return self._kernels.add_norm(states, residual, norm)

    def add_then_norm(self, states: Any, delta: Any, norm: Norm) -> tuple[Any, Any]:
        """One kernel, which overwrites `states`."""
        normed = self._kernels.add_then_norm(states, delta, norm.weight, norm.bias, norm.eps, rms=norm.rms)
        return states, normed

    def embed_norm(self, ids: Any, types: Any, positions: Any, embeddings: Any) -> Any:
        """One kernel, where there are embeddings of all three kinds."""
        names = ("token_type_embeddings", "position_embeddings")
        if any(getattr(embeddings, name, None) is None for name in names) or getattr(embeddings, "embed_proj", None):
            return super().embed_norm(ids, types, positions, embeddings)
        return self._kernels.embed_norm(ids, types, positions, embeddings)

    def linear_activation(self, states: Any, linear: Any, activation: Any) -> Any:
        """GELU in half precision is fused into the matrix product, by its tanh formula.

        That differs from the exact GELU by less than rounding does.
        """
        torch = import_extra("torch", extra="models")
        if states.dtype == torch.float32 or not ACTIVATIONS.get(type(activation).__name__, "").startswith("gelu"):
            return super().linear_activation(states, linear, activation)
        return torch._addmm_activation(linear.bias, states, linear.weight.t(), use_gelu=True)

    def gated(self, states: Any, activation: Any) -> Any:
        """One kernel for the usual activations; in half precision GELU by its tanh formula, as above."""
        name = ACTIVATIONS.get(type(activation).__name__)
        if name is None:
            return super().gated(states, activation)
        if name == "gelu" and states.dtype != import_extra("torch", extra="models").float32:
            name = "gelu_tanh"
        return self._kernels.gated_activation(states, name)

    def rotate(self, states: Any, cos: Any, sin: Any, query_heads: int, norms: tuple[Norm, Norm] | None) -> Any:
        """One kernel, in place."""
        weights, eps = (None, 0.0) if norms is None else ((norms[0].weight, norms[1].weight), norms[0].eps)
        self._kernels.rotate(states, cos, sin, query_heads, weights, eps)
        return states


TORCH_OPS: Final = Ops()


@cache
def triton_ops() -> TritonOps | None:
    """None without Triton, which comes with torch on Linux."""
    try:
        modules = [
            import_module(f"crossknn.scorers.inference.{name}") for name in ("triton_attention", "triton_kernels")
        ]
    except ImportError:
        return None
    return TritonOps(*modules)


def available_ops(model: Any) -> list[Ops]:
    """The operations to try for a model, fastest first; none where padding-free inference would not pay."""
    torch = import_extra("torch", extra="models")
    half = model.dtype in (torch.float16, torch.bfloat16)
    if model.device.type == "cpu":
        return [TORCH_OPS]
    if model.device.type != "cuda":
        return []
    fused = triton_ops()
    return [*([fused] if fused is not None else []), *([FlashOps()] if half else [])]


def equal_sequences(
    queries: Layout, keys: Layout, prefix: Prefix | None = None
) -> Iterator[tuple[slice, slice, slice]]:
    """(query tokens, key tokens, sequences) of each run of adjacent sequences that differ in no length and prefix."""
    sides = [queries.lengths, keys.lengths]
    if prefix is not None:
        sides += [prefix.starts.cpu().numpy(), prefix.lengths.cpu().numpy()]
    differ = np.any([side[1:] != side[:-1] for side in sides], axis=0)
    bounds = [0, *(np.flatnonzero(differ) + 1).tolist(), len(queries.lengths)]
    row = column = 0
    for first, end in pairwise(bounds):
        rows, columns = (int(side.lengths[first]) * (end - first) for side in (queries, keys))
        yield slice(row, row + rows), slice(column, column + columns), slice(first, end)
        row, column = row + rows, column + columns


def _allowed(torch: Any, queries: int, keys: int, mask: Mask, device: Any) -> Any:
    """(queries, keys) which keys each query attends to, None for all; the last query is the last key."""
    if queries == 1 or not (mask.causal or mask.window is not None):
        return None
    distance = torch.arange(queries, device=device)[:, None] + (keys - queries) - torch.arange(keys, device=device)
    near = distance.abs() <= (keys if mask.window is None else mask.window)
    return near & (distance >= 0) if mask.causal else near


def _buckets(torch: Any, queries: int, keys: int, table: Any) -> Any:
    """(queries, keys) the bucket of each distance."""
    longest = len(table) // 2
    distance = torch.arange(queries, device=table.device)[:, None] - torch.arange(keys, device=table.device)
    return table[distance.clamp(-longest, longest) + longest].long()
