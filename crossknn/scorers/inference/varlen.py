"""A BERT-like cross-encoder over the tokens of many pairs end to end: nothing is padded, each step is one large one.

The weights are the model's own, and so are its embeddings and its head; the layers between are computed here. The last
one gives each pair's first token only, which is all that the head reads (see first_token.py).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.cls_only import last_layer
from crossknn.scorers.inference.ops import GPU_STEPS, PLAIN_STEPS, Layout, Steps, fused_steps
from crossknn.scorers.inference.pair_template import PairTemplate
from crossknn.scorers.inference.token_store import Counts

logger = logging.getLogger(__name__)

PROBE_LENGTHS = (30, 12, 7, 7, 1)


@dataclass(frozen=True, slots=True)
class PackedPairs:
    """A batch: which tokens of two buffers make up each pair; all but `lengths` is on the device."""

    queries: Any  # (tokens,) of all queries
    items: Any
    spans: Any  # (4, pairs): where each query starts, its length, the same of each item
    lengths: Counts  # (pairs,) of whole pairs

    @property
    def tokens(self) -> int:
        """How many the model reads."""
        return int(self.lengths.sum())

    def take(self, part: slice) -> PackedPairs:
        """Some of the pairs."""
        return PackedPairs(self.queries, self.items, self.spans[:, part], self.lengths[part])


class PackedModel:
    """Gives the logits of a model; made by `pack`."""

    def __init__(self, model: Any, template: PairTemplate, first_position: int, steps: Steps) -> None:
        self._torch = import_extra("torch", extra="models")
        self._model = model
        self._base = getattr(model, model.base_model_prefix)
        self._template = template
        self._first_position = first_position
        self._embed_norm = steps.embed_norm
        *layers, last = self._base.encoder.layer
        self._layers = [*(PackedLayer(layer, steps) for layer in layers), PackedLayer(last, steps, first_only=True)]

    @property
    def linears(self) -> list[Any]:
        """The linear layers that are used, but for the head's."""
        return [linear for layer in self._layers for linear in layer.linears]

    def logits(self, batch: PackedPairs) -> Any:
        """(pairs, labels)"""
        return self.run(*self._join(batch))

    def read(self, encoded: Mapping[str, Any]) -> Any:
        """(1, labels) of what a tokenizer gives for one pair."""
        (ids,) = encoded["input_ids"]
        types = encoded.get("token_type_ids")
        positions = self._torch.arange(len(ids), device=ids.device)
        layout = Layout.of(np.array([len(ids)]), ids.device)
        return self.run(ids, self._torch.zeros_like(ids) if types is None else types[0], positions, layout)

    def run(self, ids: Any, types: Any, positions: Any, layout: Layout) -> Any:
        """(sequences, labels) of tokens (tokens,) that lie as `layout` says."""
        states = self._embed_norm(ids, types, positions + self._first_position, self._base.embeddings)
        for layer in self._layers:
            states = layer(states, layout)
        pooler = getattr(self._base, "pooler", None)
        first = states[:, None]
        return self._model.classifier(first if pooler is None else pooler(first))

    def _join(self, batch: PackedPairs) -> tuple[Any, Any, Any, Layout]:
        """(ids, types, positions, layout) as the tokenizer joins the texts of each pair."""
        torch, template = self._torch, self._template
        query_from, query_lengths, item_from, item_lengths = batch.spans
        lengths = query_lengths + item_lengths + template.specials
        ends = torch.cumsum(lengths, 0)
        starts = ends - lengths
        tokens = batch.tokens
        pair = torch.repeat_interleave(lengths, output_size=tokens)  # a size that is known spares a wait
        positions = torch.arange(tokens, device=pair.device) - starts[pair]
        middle_at = starts + len(template.prefix) + query_lengths
        item_at = middle_at + len(template.middle)
        into_query = positions + (query_from - len(template.prefix))[pair]
        into_item = positions + (item_from + starts - item_at)[pair]
        in_item = positions >= (item_at - starts)[pair]
        ids = torch.where(in_item, _take(batch.items, into_item), _take(batch.queries, into_query))
        suffix_at = ends - len(template.suffix)
        for special, at in ((template.prefix, starts), (template.middle, middle_at), (template.suffix, suffix_at)):
            for shift, token in enumerate(special):
                ids.index_fill_(0, at + shift, token)  # an assignment would wait for the device
        types = template.token_types(positions, query_lengths[pair], item_lengths[pair])
        bounds = torch.nn.functional.pad(ends, (1, 0)).int()
        return ids, types, positions, Layout(bounds, batch.lengths, int(batch.lengths.max()))


class PackedLayer:
    """One layer; of one that gives first tokens only, the other tokens are only looked at."""

    def __init__(self, layer: Any, steps: Steps, *, first_only: bool = False) -> None:
        self._torch = import_extra("torch", extra="models")
        self._steps = steps
        self._first_only = first_only
        attention = layer.attention.self
        self._heads = int(attention.num_attention_heads)
        if first_only:
            self._inputs = [attention.query, _join_linears(self._torch, attention.key, attention.value)]
        else:
            self._inputs = [_join_linears(self._torch, attention.query, attention.key, attention.value)]
        self._mixed, self._mixed_norm = layer.attention.output.dense, layer.attention.output.LayerNorm
        self._wide, self._activate = layer.intermediate.dense, layer.intermediate.intermediate_act_fn
        self._narrow, self._narrow_norm = layer.output.dense, layer.output.LayerNorm

    @property
    def linears(self) -> list[Any]:
        """Those that are used."""
        return [*self._inputs, self._mixed, self._wide, self._narrow]

    def __call__(self, states: Any, layout: Layout) -> Any:
        """(tokens, dim) of (tokens, dim); or (sequences, dim)"""
        if not self._first_only:
            query, key, value = self._split(self._inputs[0](states), 3)
            return self._feed_forward(self._steps.attend(query, key, value, layout, layout), states)
        first = states[layout.starts[:-1].long()]
        (query,) = self._split(self._inputs[0](first), 1)
        key, value = self._split(self._inputs[1](states), 2)
        ones = self._torch.arange(len(layout.starts), dtype=self._torch.int32, device=states.device)
        asking = Layout(ones, np.ones_like(layout.lengths), 1)
        return self._feed_forward(self._steps.attend(query, key, value, asking, layout), first)

    def _split(self, states: Any, parts: int) -> Any:
        """Each part as (tokens, heads, dim of a head)."""
        return states.view(len(states), parts, self._heads, -1).unbind(1)

    def _feed_forward(self, attended: Any, states: Any) -> Any:
        add_norm = self._steps.add_norm
        mixed = add_norm(self._mixed(attended.reshape(states.shape)), states, self._mixed_norm)
        return add_norm(self._narrow(self._steps.widen(mixed, self._wide, self._activate)), mixed, self._narrow_norm)


def pack(model: Any, template: PairTemplate) -> PackedModel | None:
    """None where the model is not of this kind, or its device does not do it faster.

    Whether it is of this kind is decided by its modules and then by its logits in float32, for sequences of several
    lengths; whether the device's own steps can be used, by its logits as it is.
    """
    torch = import_extra("torch", extra="models")
    halved = model.dtype in (torch.float16, torch.bfloat16)
    if last_layer(model) is None or halved != (model.device.type == "cuda"):
        return None
    first_position = find_first_position(model, template)
    if first_position is None:
        return None
    if not halved:
        return PackedModel(model, template, first_position, PLAIN_STEPS)
    for steps in (fused_steps(model.config), GPU_STEPS):
        if steps is not None:
            packed = PackedModel(model, template, first_position, steps)
            if _agrees(packed, model, tolerance=0.05):
                return packed
    return None


def find_first_position(model: Any, template: PairTemplate) -> int | None:
    """Where positions begin; None where float32 logits are not the model's wherever they begin."""
    plain = copy.deepcopy(model).float()
    padding = getattr(model.config, "pad_token_id", None) or 0
    for first_position in (0, padding + 1):  # RoBERTa counts from behind the padding's id
        try:
            packed = PackedModel(plain, template, first_position, PLAIN_STEPS)
        except (AttributeError, TypeError):
            return None
        if _agrees(packed, plain, tolerance=1e-4):
            return first_position
    return None


def _join_linears(torch: Any, *linears: Any) -> Any:
    """One linear layer with the outputs of all; their own weights become parts of its."""
    joined = torch.nn.Linear(linears[0].in_features, sum(one.out_features for one in linears), device="meta")
    with torch.no_grad():
        weight = torch.cat([one.weight for one in linears])
        bias = torch.cat([torch.zeros_like(one.weight[:, 0]) if one.bias is None else one.bias for one in linears])
    joined.weight, joined.bias = (torch.nn.Parameter(part, requires_grad=False) for part in (weight, bias))
    for linear, part in zip(linears, weight.split([one.out_features for one in linears]), strict=True):
        linear.weight.data = part
    return joined


def _take(buffer: Any, places: Any) -> Any:
    """The tokens there; places outside, of which nothing is read, give any."""
    return buffer[places.clamp(0, max(0, len(buffer) - 1))] if len(buffer) else places.new_zeros(len(places))


def _agrees(packed: PackedModel, model: Any, *, tolerance: float) -> bool:
    """Whether it gives what the model gives for one sequence at a time, up to a share of the largest logit."""
    torch = import_extra("torch", extra="models")
    generator = torch.Generator().manual_seed(0)
    most = min(max(PROBE_LENGTHS), model.config.max_position_embeddings - 4)
    lengths = np.minimum(PROBE_LENGTHS, most)
    high = model.config.vocab_size
    rows = [torch.randint(min(3, high - 1), high, (n,), generator=generator).to(model.device) for n in lengths.tolist()]
    positions = torch.cat([torch.arange(len(row)) for row in rows]).to(model.device)
    layout = Layout.of(lengths, model.device)
    try:
        with torch.inference_mode():
            wanted = torch.cat([model(input_ids=row[None]).logits for row in rows])
            got = packed.run(torch.cat(rows), torch.zeros_like(positions), positions, layout)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
        logger.debug("pairs cannot be laid end to end: %s", error)
        return False
    scale = float(wanted.abs().max())
    return got.shape == wanted.shape and bool(torch.allclose(got, wanted, rtol=0, atol=tolerance * max(scale, 0.1)))
