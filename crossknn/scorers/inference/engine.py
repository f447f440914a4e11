"""What every scorer that runs a transformer over pairs has in common."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import count, pairwise
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crossknn._imports import import_extra
from crossknn.errors import InputError, ScorerError
from crossknn.models.batching import cut_alike
from crossknn.models.hub import portable_name
from crossknn.models.torch_attention import attention_of_any_shape
from crossknn.scorers.base import check_scores, describe_pair
from crossknn.scorers.inference.half_precision import check_half_precision
from crossknn.scorers.inference.int8 import linears_of, round_to_int8
from crossknn.scorers.inference.loading import Pretrained, config_that_counts, hash_weights, longest_input
from crossknn.scorers.inference.pair_batches import (
    Limits,
    LongItems,
    Passes,
    best_of_passes,
    cut_in_order,
    plan_passes,
)
from crossknn.scorers.inference.pair_template import PairPieces, find_template
from crossknn.scorers.inference.token_store import Counts, Ragged, Tokens, TokenStore, fast_tokenize
from crossknn.scorers.inference.varlen import PackedModel, PackedPairs
from crossknn.types import Rows, Scores

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch")

PAIRS_AT_ONCE = 16_384  # tokenised together; the device works on one such part while the next is prepared
PACKED_AT_ONCE = 2_048  # the same where pairs need not be sorted by length,
PACKED_FIRST = 1_024  # with a first part that is smaller, so that the device begins sooner
BATCH_TOKENS = {"cpu": 2_048, "int8": 512, "cuda": 131_072}  # measured; see benchmarks/scoring_speed.py
STORED_TOKENS = 50_000_000  # 200 MB of token ids


@dataclass(slots=True)
class Work:
    """What a scorer has done so far."""

    pairs: int = 0  # asked for
    passes: int = 0  # run through the model; fewer where pairs repeat, more where an item takes several windows
    items_cut: int = 0  # pairs that lost tokens of their item
    queries_cut: int = 0
    tokens: int = 0  # in those passes
    padding: int = 0  # padding tokens beside them


@dataclass(frozen=True, slots=True)
class PairSpans:
    """A batch on the device: where each pair's two texts are in its ids."""

    ids: Any  # (pairs, longest)
    columns: Any  # (longest,)
    query_start: int
    query_lengths: Any  # (pairs,)
    item_starts: Any
    item_lengths: Any
    inputs: dict[str, Any]  # what the model is called with

    @property
    def tokens(self) -> int:
        """How many the model reads, with padding."""
        return int(self.ids.shape[0] * self.ids.shape[1])

    def take(self, part: slice) -> PairSpans:
        """Some of the pairs."""
        return PairSpans(
            self.ids[part],
            self.columns,
            self.query_start,
            self.query_lengths[part],
            self.item_starts[part],
            self.item_lengths[part],
            {name: tensor[part] for name, tensor in self.inputs.items()},
        )


class ModelScorer:
    """Tokenises once, assembles pairs as arrays, runs batches of like length; a subclass reads the scores off."""

    def __init__(
        self,
        pretrained: Pretrained,
        *,
        max_length: int | None,
        max_query_tokens: int | None,
        max_item_tokens: int | None,
        long_items: LongItems,
        stride: int | None,
        batch_tokens: int | None,
        stored_tokens: int,
    ) -> None:
        self._torch = import_extra("torch", extra="models")
        self._pretrained = pretrained
        tokenize = fast_tokenize(pretrained.backend)
        self.template = find_template(pretrained.tokenizer, tokenize)
        longest = _choose_length(pretrained, max_length, self.template.specials)
        self.limits = Limits(longest, max_query_tokens, max_item_tokens, long_items, stride)
        kind = "int8" if self.dtype == "int8" else self.device.type
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(kind, BATCH_TOKENS["cpu"])
        if self.batch_tokens < 1 or stored_tokens < 1:
            raise InputError("batch_tokens and stored_tokens must be at least 1.")
        self._memory = {"batch_tokens": batch_tokens, "stored_tokens": stored_tokens}
        self._queries = TokenStore(tokenize, max_tokens=stored_tokens)
        self._items = TokenStore(tokenize, max_tokens=stored_tokens)
        self._embeddings = int(pretrained.model.get_input_embeddings().num_embeddings)
        self._packed: PackedModel | None = None  # where a subclass can read scores off it
        self._lock = Lock()
        self._warned = False
        self.counts = Work()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the model's name and all settings, and opens it itself."""
        opened = self._pretrained
        settings = {"device": opened.wanted_device, "dtype": self.dtype, **asdict(self.limits), **self._memory}
        kind: Callable[..., ModelScorer] = type(self)  # a subclass takes a name
        return partial(kind, portable_name(opened.source, opened.folder), **settings, **self._own_settings()), ()

    @property
    def device(self) -> Any:
        """Where the model runs."""
        return self._pretrained.device

    @property
    def threads(self) -> int:
        """How many calls are best made at a time: on a GPU one is prepared while another waits for the device."""
        return 2 if self.device.type == "cuda" else 1

    @property
    def dtype(self) -> str:
        """The precision of the model's weights."""
        return self._pretrained.dtype

    @cached_property
    def fingerprint(self) -> str:
        """A hash of weights, config, tokenizer and of every setting that changes scores; made on first use."""
        digest = blake2b(hash_weights(self._pretrained.model), digest_size=16)
        settings = {
            "scorer": type(self).__name__,
            "config": config_that_counts(self._pretrained.model),
            "dtype": self.dtype,
            "limits": asdict(self.limits),
            "template": asdict(self.template),
            **self._score_settings(),
        }
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        digest.update(self._pretrained.backend.to_str().encode())
        return f"{type(self).__name__}:{digest.hexdigest()}"

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One raw score per pair `(queries[i], items[i])`, in the order given; a repeated pair is computed once."""
        if len(queries) != len(items):
            raise InputError(f"queries and items must pair up. Got {len(queries)} and {len(items)} instead.")
        if not len(queries):
            return np.empty(0, np.float32)
        query_texts, query_rows = _distinct(queries, "query")
        item_texts, item_rows = _distinct(items, "item")
        keys, given = np.unique(query_rows * len(item_texts) + item_rows, return_inverse=True)
        query_rows, item_rows = np.divmod(keys, len(item_texts))
        scores = np.empty(len(keys), np.float32)
        running: deque[tuple[slice, Callable[[], Scores]]] = deque()
        if self.device.type == "cpu" and self.dtype in ("bfloat16", "float16"):
            check_half_precision(self.dtype)
        with self._torch.inference_mode(), attention_of_any_shape(self.device):
            for part in self._parts(len(keys)):
                running.append((part, self._start(query_texts, query_rows[part], item_texts, item_rows[part])))
                if len(running) > 1:
                    done, finish = running.popleft()
                    scores[done] = finish()
            for done, finish in running:
                scores[done] = finish()
        with self._lock:
            self.counts.pairs += len(queries)
        return check_scores(scores[given], queries, items)

    def _parts(self, pairs: int) -> Iterator[slice]:
        """Those that are prepared together, one after the other."""
        on_gpu = self._packed is not None and self.device.type == "cuda"
        first, others = (PACKED_FIRST, PACKED_AT_ONCE) if on_gpu else (PAIRS_AT_ONCE, PAIRS_AT_ONCE)
        starts = [0, *range(first, pairs, others), pairs]
        return (slice(*bounds) for bounds in pairwise(starts))

    def _start(
        self, query_texts: list[str], query_rows: Rows, item_texts: list[str], item_rows: Rows
    ) -> Callable[[], Scores]:
        """Send the pairs to the device; the function that comes back waits for their scores."""
        queries, query_at = _look_up(self._queries, query_texts, query_rows)
        items, item_at = _look_up(self._items, item_texts, item_rows)
        passes = plan_passes(self.template, self.limits, queries, items, query_at, item_at)

        def describe(row: int) -> str:
            return describe_pair(query_texts[query_rows[passes.pair[row]]], item_texts[item_rows[passes.pair[row]]])

        order, outputs = self._run(passes, describe)
        arrive = self._bring(self._torch.cat(outputs))

        def finish() -> Scores:
            scores = np.empty(len(order), np.float32)
            scores[order] = arrive()
            return best_of_passes(scores, passes.pair, len(query_rows))

        return finish

    def _run(self, passes: Passes, describe: Callable[[int], str]) -> tuple[Rows, list[Any]]:
        lengths = self.template.specials + passes.pieces.query_lengths + passes.pieces.item_lengths
        order: list[Rows] = []
        outputs: list[Any] = []
        padded = 0
        for rows, batch in _one_ahead(self._batches(passes.pieces, lengths, describe)):
            outputs += self._forward(batch, describe, rows)
            order.append(rows)
            padded += batch.tokens
        self._count(passes, int(lengths.sum()), padded)
        return np.concatenate(order), outputs

    def _batches(
        self, pieces: PairPieces, lengths: Counts, describe: Callable[[int], str]
    ) -> Iterator[tuple[Rows, PairSpans | PackedPairs]]:
        self._check_vocabulary(pieces)
        if self._packed is not None:
            yield from self._packed_batches(pieces, lengths)
            return
        for rows in cut_alike(lengths, self.batch_tokens):
            chosen = pieces.take(rows)
            ids = self.template.assemble(chosen)
            self._check_ids(ids, chosen, partial(_describe_row, describe, rows))
            yield rows, self._to_device(ids, chosen, padded=bool(lengths[rows[-1]] < ids.shape[1]))

    def _packed_batches(self, pieces: PairPieces, lengths: Counts) -> Iterator[tuple[Rows, PackedPairs]]:
        """The texts' tokens travel once, and pairs are joined on the device; a CPU wants like lengths together."""
        order = np.arange(len(lengths)) if self.device.type == "cuda" else np.argsort(-lengths, kind="stable")
        pieces, lengths = pieces.take(order), lengths[order]
        queries, items = self._move(pieces.queries), self._move(pieces.items)
        spans = (pieces.query_starts, pieces.query_lengths, pieces.item_starts, pieces.item_lengths)
        for part in cut_in_order(lengths, self.batch_tokens):
            moved = self._move(np.stack([span[part] for span in spans]))
            yield order[part], PackedPairs(queries, items, moved, lengths[part])

    def _check_vocabulary(self, pieces: PairPieces) -> None:
        """An id without an embedding would end a GPU's process with no more than an assertion."""
        template = self.template
        specials = (*template.prefix, *template.middle, *template.suffix, template.pad)
        largest = int(max(pieces.queries.max(initial=0), pieces.items.max(initial=0), *specials))
        if largest >= self._embeddings:
            raise InputError(
                f"{self._pretrained.source} has {self._embeddings} token embeddings, but its tokenizer gave token "
                f"{largest}: they do not belong together. Save the model with its own tokenizer."
            )

    def _to_device(self, ids: Tokens, pieces: PairPieces, *, padded: bool) -> PairSpans:
        """Only ids and lengths travel; masks and token types are made where they are used."""
        moved = self._move(ids).long()
        query_lengths, item_lengths = self._move(np.stack([pieces.query_lengths, pieces.item_lengths]))
        columns = self._torch.arange(ids.shape[1], device=self.device)
        inputs = {"input_ids": moved}
        if padded:
            totals = self.template.specials + query_lengths + item_lengths
            inputs["attention_mask"] = (columns[None, :] < totals[:, None]).long()
        if self.template.first_type is not None:
            inputs["token_type_ids"] = self.template.token_types(columns, query_lengths[:, None], item_lengths[:, None])
        query_start = len(self.template.prefix)
        item_starts = query_start + query_lengths + len(self.template.middle)
        return PairSpans(moved, columns, query_start, query_lengths, item_starts, item_lengths, inputs)

    def _move(self, array: NDArray[Any]) -> Any:
        tensor = self._torch.from_numpy(array)
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _bring(self, values: Any) -> Callable[[], Scores]:
        """Send the values back; the function waits until they are here, and for nothing that was begun later."""
        if self.device.type != "cuda":
            return lambda: np.asarray(values.cpu().numpy())
        here = values.to("cpu", non_blocking=True)
        sent = self._torch.cuda.Event()
        sent.record()

        def wait() -> Scores:
            sent.synchronize()
            return np.asarray(here.numpy())

        return wait

    def _forward(self, batch: PairSpans | PackedPairs, describe: Callable[[int], str], rows: Rows) -> list[Any]:
        """The batch's scores, still on the device; a batch too large for its memory is halved, as are later ones."""
        try:
            return [self._read_packed(batch) if isinstance(batch, PackedPairs) else self._read_scores(batch)]
        except self._torch.cuda.OutOfMemoryError as error:
            if len(rows) == 1:
                raise ScorerError(f"the device has too little memory for {describe(int(rows[0]))}.") from error
        # Outside the handler, so that the failed pass is no longer held by its traceback.
        self._torch.cuda.empty_cache()
        self.batch_tokens = max(1, min(self.batch_tokens, batch.tokens) // 2)
        logger.warning("a batch did not fit in the device's memory; batch_tokens is now %d", self.batch_tokens)
        middle = len(rows) // 2
        return [
            score
            for half in (slice(0, middle), slice(middle, None))
            for score in self._forward(batch.take(half), describe, rows[half])
        ]

    def _count(self, passes: Passes, tokens: int, padded: int) -> None:
        with self._lock:
            self.counts.passes += len(passes.pair)
            self.counts.items_cut += passes.items_cut
            self.counts.queries_cut += passes.queries_cut
            self.counts.tokens += tokens
            self.counts.padding += padded - tokens
            warn = not self._warned and bool(passes.items_cut or passes.queries_cut)
            self._warned = self._warned or warn
        if warn:
            logger.warning(
                "%d items and %d queries did not fit and were cut (max_length %d); see .counts for the running "
                "totals, and long_items='max' to score long items whole. This is said once.",
                passes.items_cut,
                passes.queries_cut,
                self.limits.max_length,
            )

    def _round_weights(self) -> None:
        """Of a model in int8, after its layers have been changed in any other way."""
        if self.dtype == "int8":
            model, packed, tokenizer = self._pretrained.model, self._packed, self._pretrained.tokenizer
            linears, read = (
                (packed.linears, packed.read) if packed else (linears_of(model), lambda given: model(**given))
            )
            round_to_int8(linears, read, tokenizer, max_length=self.limits.max_length)

    def _own_settings(self) -> dict[str, Any]:
        """What only the subclass was made with."""
        return {}

    def _score_settings(self) -> dict[str, Any]:
        """A subclass's settings that change scores, for the fingerprint."""
        return {}

    def _check_ids(self, ids: Tokens, pieces: PairPieces, describe: Callable[[int], str]) -> None:
        """A subclass may refuse pairs here, before they reach the device."""

    def _read_scores(self, batch: PairSpans) -> Any:
        """(pairs,) float32 on the device."""
        raise NotImplementedError

    def _read_packed(self, batch: PackedPairs) -> Any:
        """The same, of a subclass that sets `_packed`."""
        raise NotImplementedError


def _choose_length(pretrained: Pretrained, max_length: int | None, specials: int) -> int:
    default, limit = longest_input(pretrained.model, pretrained.tokenizer)
    if max_length is None:
        return default
    if limit is not None and max_length > limit:
        raise InputError(f"max_length must be at most {limit} for this model. Got {max_length} instead.")
    if max_length < specials + 2:
        raise InputError(f"max_length must leave room for both texts, so at least {specials + 2}. Got {max_length}.")
    return max_length


def _distinct(texts: Sequence[str], kind: str) -> tuple[list[str], Rows]:
    """The different texts, and for each text given which of them it is."""
    try:
        rows = dict(zip(dict.fromkeys(texts), count(), strict=False))
    except TypeError as error:  # a list or a dictionary among them
        raise InputError(f"every {kind} must be a string: {error}") from error
    for text in rows:
        if not isinstance(text, str):
            raise InputError(f"every {kind} must be a string. Got {type(text).__name__} instead: {str(text)[:80]!r}")
    return list(rows), np.fromiter(map(rows.__getitem__, texts), np.int64, len(texts))


def _look_up(store: TokenStore, texts: list[str], rows: Rows) -> tuple[Ragged, Rows]:
    used, at = np.unique(rows, return_inverse=True)
    return store.lookup([texts[row] for row in used]), at


def _one_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Assemble the next batch before the current one runs: models may wait for the device when they read a mask."""
    current = next(batches, None)
    while current is not None:
        following = next(batches, None)
        yield current
        current = following


def _describe_row(describe: Callable[[int], str], rows: Rows, row: int) -> str:
    return describe(int(rows[row]))
