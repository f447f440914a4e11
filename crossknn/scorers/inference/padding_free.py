"""The padding-free version of a transformer: the fastest one whose states are the model's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from crossknn._imports import import_extra
from crossknn.scorers.inference.ops import Ops, available_ops
from crossknn.scorers.inference.packed import PackedModel
from crossknn.scorers.inference.pairs import PairTemplate, TokenSpans
from crossknn.scorers.inference.postnorm import PostNormModel
from crossknn.scorers.inference.prenorm import PreNormModel, embedding_scales
from crossknn.scorers.inference.token_store import Ragged
from crossknn.scorers.inference.varlen import (
    DeviceTokens,
    VarlenBatch,
    VarlenHead,
    VarlenModel,
    head_states,
    join_pairs,
    one_sequence_each,
)

logger = logging.getLogger(__name__)

PROBE_LENGTHS = (30, 12, 7, 7, 1)


def make_varlen(base: Any, head: VarlenHead, template: PairTemplate) -> VarlenModel | None:
    """A padding-free version of a model without its head; None if none has the model's states, or is of use."""
    torch = import_extra("torch", extra="models")
    rows = probe_rows(base)
    tolerance = 1e-4 if base.dtype == torch.float32 else 0.05
    with torch.inference_mode():
        expected = _expected_states(torch, base, head, rows)
        if not bool(expected.isfinite().all()):
            return None
        for ops in available_ops(base):
            for make in _candidates(base, head, template, ops):
                varlen: VarlenModel | None = _attempt(make)
                if varlen is None:
                    continue
                found = _attempt(lambda varlen=varlen: varlen.encode(one_sequence_each(rows)))  # type: ignore[misc]
                if found is not None and _close(torch, found, expected, tolerance):
                    _check_shared_queries(torch, varlen, rows, tolerance)
                    return varlen
                varlen.restore()
    return None


def probe_rows(model: Any) -> list[Any]:
    """Sequences of random tokens, to compare models with."""
    torch = import_extra("torch", extra="models")
    generator = torch.Generator().manual_seed(0)
    limit = (getattr(model.config, "max_position_embeddings", None) or 512) - 4
    high = int(model.get_input_embeddings().num_embeddings)
    lengths = [min(length, limit) for length in PROBE_LENGTHS]
    return [torch.randint(min(3, high - 1), high, (n,), generator=generator).to(model.device) for n in lengths]


def _candidates(base: Any, head: VarlenHead, template: PairTemplate, ops: Ops) -> Iterator[Callable[[], VarlenModel]]:
    yield lambda: PostNormModel(base, head, template, ops)
    for scale in embedding_scales(base):
        yield lambda scale=scale: PreNormModel(base, head, template, ops, embedding_scale=scale)  # type: ignore[misc]
    padding = getattr(base.config, "pad_token_id", None) or 0
    for first_position in (0, padding + 1):  # RoBERTa's positions follow the padding id
        yield lambda at=first_position: PackedModel(base, head, template, ops, first_position=at)  # type: ignore[misc]


def _attempt(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # whatever a model of another kind or a compiler of kernels raises
        logger.debug("Padding-free inference failed: %s", error)
        return None


def _expected_states(torch: Any, base: Any, head: VarlenHead, rows: list[Any]) -> Any:
    """The states that the head reads, of one sequence at a time."""
    states = torch.cat([base(input_ids=row[None]).last_hidden_state[0] for row in rows])
    return head_states(head, states, one_sequence_each(rows).layout)


def _close(torch: Any, found: Any, expected: Any, tolerance: float) -> bool:
    """Whether the values differ by a fraction of the largest at most."""
    limit = tolerance * max(float(expected.abs().max()), 0.1)
    return found.shape == expected.shape and bool(torch.allclose(found.float(), expected.float(), rtol=0, atol=limit))


def _check_shared_queries(torch: Any, varlen: VarlenModel, rows: list[Any], tolerance: float) -> None:
    """Share nothing between the pairs of a query where that would change logits."""
    if not varlen.shares_queries:
        return
    tokens = Ragged.of([row.cpu().numpy().astype(np.int32) for row in rows])
    query = Ragged(tokens.flat, np.zeros_like(tokens.starts), np.full_like(tokens.lengths, 9))
    spans = TokenSpans(query, tokens)
    on_device = DeviceTokens(spans, lambda array: torch.from_numpy(array).to(rows[0].device))
    batch = VarlenBatch(spans, varlen.template.lengths(spans), on_device)
    expected = varlen.run(join_pairs(varlen.template, batch))
    found = _attempt(lambda: varlen.logits(batch))
    varlen.shares_queries = found is not None and _close(torch, found, expected, tolerance)
    varlen.clear()
