"""Inference engine: the base class of scorers that run a transformer over pairs of texts."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import count
from math import ceil
from threading import Lock
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from crossknn._checks import check_positive
from crossknn._imports import import_extra
from crossknn.errors import InputError, ScorerError
from crossknn.models.batching import batches_in_order, length_buckets, without_cudnn_attention
from crossknn.models.hub import portable_name
from crossknn.models.specs import ModelSpec
from crossknn.scorers.base import RankMixin, check_pairs, check_scores, describe_pair
from crossknn.scorers.inference.cuda_graphs import CudaGraphs
from crossknn.scorers.inference.int8 import encoder_linears, quantize_linears
from crossknn.scorers.inference.int8_ops import int8_ops
from crossknn.scorers.inference.loading import Pretrained, check_half_precision, load_pretrained
from crossknn.scorers.inference.onednn import use_onednn
from crossknn.scorers.inference.ops import Layout
from crossknn.scorers.inference.padding_free import make_varlen
from crossknn.scorers.inference.pairs import (
    ForwardPasses,
    LongItems,
    PairFormat,
    TokenSpans,
    Truncation,
    find_template,
    max_over_windows,
    plan_passes,
)
from crossknn.scorers.inference.token_store import Counts, Ragged, Tokenize, TokenStore, fast_tokenize
from crossknn.scorers.inference.varlen import (
    DeviceTokens,
    JoinedPairs,
    VarlenBatch,
    VarlenHead,
    VarlenModel,
    head_states,
)
from crossknn.scorers.inference.word_tokens import tokenize_by_words
from crossknn.types import Rows, Scores

logger = logging.getLogger(__name__)

Work = TypeVar("Work")
Describe = Callable[[int], str]  # from a row to its pair, for error messages

CHUNK_PAIRS = 16_384  # tokenized together; the device works on one chunk while the next is prepared
VARLEN_CHUNK_BATCHES = 4  # the same where pairs need not be sorted by length: batches;
VARLEN_FIRST_CHUNK_PAIRS = 256  # chunks grow from this, so that the device starts sooner
CHARACTERS_PER_TOKEN = 4  # about
BATCH_TOKENS = {"cpu": 2_048, "int8": 1_024, "cuda": 131_072}  # measured; see benchmarks/scoring_speed.py
STORED_TOKENS = 50_000_000  # 200 MB of token ids


@dataclass(slots=True)
class ScoringCounts:
    """Running totals of a scorer."""

    pairs: int = 0  # requested
    passes: int = 0  # forward passes: fewer where pairs repeat, more where an item takes several windows
    items_cut: int = 0  # pairs whose item was truncated
    queries_cut: int = 0
    tokens: int = 0  # without padding
    padding: int = 0


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A padded batch; all but `lengths` is on the device."""

    inputs: dict[str, Any]  # of the model, each (pairs, longest)
    lengths: Counts  # (pairs,) without padding
    query_lengths: Any  # (pairs,)
    item_lengths: Any

    @property
    def tokens(self) -> int:
        """Tokens of the forward pass, with padding."""
        return int(self.inputs["input_ids"].numel())

    def take(self, rows: slice) -> PaddedBatch:
        """Some of the pairs."""
        inputs = {name: tensor[rows] for name, tensor in self.inputs.items()}
        return PaddedBatch(inputs, self.lengths[rows], self.query_lengths[rows], self.item_lengths[rows])

    def join(self, states: Any) -> tuple[Any, JoinedPairs]:
        """(tokens, dim) of (pairs, longest, dim) states without padding, and the tokens they belong to."""
        torch = import_extra("torch", extra="models")
        ids = self.inputs["input_ids"]
        layout = Layout.of(self.lengths, ids.device)
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        inside = positions < layout.cu_seqlens.diff()[:, None]
        types = self.inputs.get("token_type_ids", ids)
        texts = (self.query_lengths, self.item_lengths)
        return states[inside], JoinedPairs(ids[inside], types[inside], positions[inside], layout, *texts)


class TextPairs(NamedTuple):
    """Pairs of texts: `queries[query_rows[i]]` and `items[item_rows[i]]`."""

    queries: list[str]
    query_rows: Rows
    items: list[str]
    item_rows: Rows

    def take(self, pairs: slice) -> TextPairs:
        """Some of the pairs."""
        return self._replace(query_rows=self.query_rows[pairs], item_rows=self.item_rows[pairs])


class ModelSettings(TypedDict, total=False):
    """The settings of every `ModelScorer`; `CrossEncoder` explains them."""

    device: Any
    dtype: str
    max_length: int | None
    max_query_tokens: int | None
    max_item_tokens: int | None
    long_items: LongItems
    stride: int | None
    batch_tokens: int | None
    stored_tokens: int


class ModelScorer(RankMixin):
    """Tokenizes each text once, assembles pairs as arrays and runs batches; a subclass reads the scores.

    The other arguments, and the attributes, are those of `CrossEncoder`.

    Args:
        kind: An Auto class of transformers.
        subfolder: Where it is loaded from, in the model's folder.
        as_transformers: Whether it must be of that class, which can save itself.
        choose_format: How pairs are tokenized; by default as the tokenizer joins them.
        default_length: The default of `max_length`, where the model's folder has one.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str,
        subfolder: str = ".",
        as_transformers: bool = False,
        choose_format: Callable[[Pretrained, Tokenize], PairFormat] | None = None,
        default_length: int | None = None,
        device: Any = None,
        dtype: str = "auto",
        max_length: int | None = None,
        max_query_tokens: int | None = None,
        max_item_tokens: int | None = None,
        long_items: LongItems = "cut",
        stride: int | None = None,
        batch_tokens: int | None = None,
        stored_tokens: int = STORED_TOKENS,
    ) -> None:
        self._torch = import_extra("torch", extra="models")
        self._pretrained = pretrained = load_pretrained(
            name, kind=kind, device=device, dtype=dtype, subfolder=subfolder, as_transformers=as_transformers
        )
        self.device, self.dtype = pretrained.device, pretrained.dtype
        self.threads = 2 if self.device.type == "cuda" else 1
        tokenize = tokenize_by_words(pretrained.backend, fast_tokenize(pretrained.backend))
        pairs = (choose_format or plain_format)(pretrained, tokenize)
        self.template = pairs.template
        longest = pretrained.choose_max_length(max_length, specials=self.template.specials, default=default_length)
        self.truncation = Truncation(longest, max_query_tokens, max_item_tokens, long_items, stride)
        runs_on = "int8" if self.dtype == "int8" else self.device.type
        self.batch_tokens = batch_tokens or BATCH_TOKENS.get(runs_on, BATCH_TOKENS["cpu"])
        check_positive("batch_tokens", self.batch_tokens)
        check_positive("stored_tokens", stored_tokens)
        self._given = {"device": device, "batch_tokens": batch_tokens, "stored_tokens": stored_tokens}
        self._queries = TokenStore(pairs.tokenize_queries, max_tokens=stored_tokens)
        self._items = TokenStore(pairs.tokenize_items, max_tokens=stored_tokens)
        self._embeddings = int(pretrained.model.get_input_embeddings().num_embeddings)
        self._head: VarlenHead | None = None  # set by a subclass, unless the model runs with its own head
        self._varlen: VarlenModel | None = None  # set by a subclass that supports it
        self._graphs: CudaGraphs | None = None  # of small batches
        self._base = pretrained.model  # without its head, where that runs apart
        self.label = 0  # the logit to read
        self._lock = Lock()
        self.counts = ScoringCounts()

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process gets the model's name and all settings, and opens the model itself."""
        subclass: Callable[..., ModelScorer] = type(self)  # which takes a name
        return partial(subclass, self._portable_name, **self._score_settings(), **self._given), ()

    @property
    def spec(self) -> ModelSpec | None:
        """How to open the model again, as an index remembers it."""
        return ModelSpec.of(self, self._portable_name, self._score_settings())

    @property
    def _portable_name(self) -> str:
        return portable_name(self._pretrained.source, self._pretrained.folder)

    def _score_settings(self) -> dict[str, Any]:
        """The arguments that change scores."""
        return {"dtype": self.dtype, **asdict(self.truncation), **self._own_settings()}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of weights, config, tokenizer and every setting that changes scores; computed on first use."""
        digest = blake2b(self._pretrained.hash_weights(), digest_size=16)
        settings = {
            "scorer": type(self).__name__,
            "config": self._pretrained.score_config(),
            "dtype": self.dtype,
            "limits": asdict(self.truncation),
            "template": self.template.settings(),
            **self._fingerprint_settings(),
        }
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        digest.update(self._pretrained.backend.to_str().encode())
        return f"{type(self).__name__}:{digest.hexdigest()}"

    def score(self, queries: Sequence[str], items: Sequence[str]) -> Scores:
        """One raw score per pair `(queries[i], items[i])`, in the order given; a repeated pair is computed once."""
        check_pairs(queries, items)
        if not len(queries):
            return np.empty(0, np.float32)
        query_texts, query_rows = _distinct(queries, "queries")
        item_texts, item_rows = _distinct(items, "items")
        keys, inverse = np.unique(query_rows * len(item_texts) + item_rows, return_inverse=True)
        query_rows, item_rows = np.divmod(keys, len(item_texts))
        scores = np.empty(len(keys), np.float32)
        if not self._pretrained.runs:
            check_half_precision(self.dtype)
        with self._torch.inference_mode(), without_cudnn_attention(self.device):
            texts = TextPairs(query_texts, query_rows, item_texts, item_rows)
            submitted = ((chunk, self._submit(texts.take(chunk))) for chunk in self._chunks(texts))
            for chunk, finish in _prefetch(submitted):
                scores[chunk] = finish()
        with self._lock:
            self.counts.pairs += len(queries)
        return check_scores(scores[inverse], queries, items)

    def _chunks(self, texts: TextPairs) -> Iterator[slice]:
        """The pairs that are prepared together."""
        size = largest = CHUNK_PAIRS
        if self._varlen is not None and self.device.type == "cuda":
            size = VARLEN_FIRST_CHUNK_PAIRS
            characters = sum(sum(map(len, side)) / len(side) for side in (texts.queries, texts.items))
            tokens = max(1.0, characters / CHARACTERS_PER_TOKEN + self.template.specials)
            largest = max(size, min(largest, int(VARLEN_CHUNK_BATCHES * self.batch_tokens / tokens)))
        start, pairs = 0, len(texts.query_rows)
        while start < pairs:
            yield slice(start, min(start + size, pairs))
            start, size = start + size, min(2 * size, largest)

    def _submit(self, texts: TextPairs) -> Callable[[], Scores]:
        """Run the pairs on the device; the returned function waits for their scores."""
        queries = _look_up(self._queries, texts.queries, texts.query_rows)
        items = _look_up(self._items, texts.items, texts.item_rows)
        passes = plan_passes(self.template, self.truncation, TokenSpans(queries, items))

        def describe(row: int) -> str:
            pair = passes.pair[row]
            return describe_pair(texts.queries[texts.query_rows[pair]], texts.items[texts.item_rows[pair]])

        order: list[Rows] = []
        outputs: list[Any] = []
        padded_tokens = 0
        for rows, batch in _prefetch(self._batches(passes.spans, describe)):
            outputs += self._forward(batch, rows, describe)
            order.append(rows)
            padded_tokens += batch.tokens
        self._count(passes, padded_tokens)
        fetch = self._to_host(self._torch.cat(outputs))

        def finish() -> Scores:
            scores = np.empty(len(passes.pair), np.float32)
            scores[np.concatenate(order)] = fetch()
            return max_over_windows(scores, passes.pair, len(texts.query_rows))

        return finish

    def _batches(self, spans: TokenSpans, describe: Describe) -> Iterator[tuple[Rows, PaddedBatch | VarlenBatch]]:
        self._check_vocabulary(spans)
        self._check_spans(spans, describe)
        if self._varlen is not None:
            yield from self._varlen_batches(self._varlen, spans)
            return
        for rows in length_buckets(self.template.lengths(spans), self.batch_tokens):
            yield rows, self._pad(spans.take(rows))

    def _varlen_batches(self, varlen: VarlenModel, spans: TokenSpans) -> Iterator[tuple[Rows, VarlenBatch]]:
        """Each text is copied once, and pairs are joined on the device; a CPU needs equal lengths together."""
        lengths = self.template.lengths(spans)
        order, limit = np.arange(len(lengths)), self.batch_tokens
        if self.device.type != "cuda":
            order = np.lexsort((-lengths, spans.queries.starts)) if varlen.shares_queries else np.lexsort((-lengths,))
        else:  # batches of about equal size
            total, longest = int(lengths.sum()), int(lengths.max())
            batches = max(1, ceil(total / max(1, limit - longest)))
            limit = min(limit, ceil(total / batches) + longest)
        on_device = DeviceTokens(spans, self._to_device)
        for rows in batches_in_order(lengths[order], limit):
            chosen = order[rows]
            yield chosen, VarlenBatch(spans.take(chosen), lengths[chosen], on_device)

    def _check_vocabulary(self, spans: TokenSpans) -> None:
        """On a GPU an id without an embedding would end the process with a mere assertion."""
        template = self.template
        specials = (*template.prefix, *template.middle, *template.suffix, template.pad)
        largest = int(max(spans.queries.flat.max(initial=0), spans.items.flat.max(initial=0), *specials))
        if largest >= self._embeddings:
            raise InputError(
                f"{self._pretrained.source} has {self._embeddings} token embeddings, but its tokenizer returned token "
                f"{largest}: they do not belong together. Save the model with its own tokenizer."
            )

    def _pad(self, spans: TokenSpans) -> PaddedBatch:
        """Only ids and lengths are copied; masks and token types are made on the device."""
        lengths, ids = self.template.lengths(spans), self.template.assemble(spans)
        inputs = {"input_ids": self._to_device(ids).long()}
        counts = (spans.queries.lengths, spans.items.lengths, lengths)
        query_lengths, item_lengths, all_lengths = self._to_device(np.stack(counts))
        columns = self._torch.arange(ids.shape[1], device=self.device)
        if lengths.min() < ids.shape[1]:
            inputs["attention_mask"] = (columns[None, :] < all_lengths[:, None]).long()
        if self.template.first_type is not None:
            inputs["token_type_ids"] = self.template.token_types(columns, query_lengths[:, None], item_lengths[:, None])
        return PaddedBatch(inputs, lengths, query_lengths, item_lengths)

    def _to_device(self, array: NDArray[Any]) -> Any:
        tensor = self._torch.from_numpy(array)
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _to_host(self, values: Any) -> Callable[[], Scores]:
        """Start copying the values; the returned function waits for them, and for no later work."""
        if self.device.type != "cuda":
            return lambda: np.asarray(values.cpu().numpy())
        copied = values.to("cpu", non_blocking=True)
        event = self._torch.cuda.Event()
        event.record()

        def wait() -> Scores:
            event.synchronize()
            return np.asarray(copied.numpy())

        return wait

    def _forward(self, batch: PaddedBatch | VarlenBatch, rows: Rows, describe: Describe) -> list[Any]:
        """The scores, still on the device; a batch that runs out of memory is halved, as are later ones."""
        try:
            return [self._read_scores(batch)]
        except self._torch.cuda.OutOfMemoryError as error:
            if len(rows) == 1:
                raise ScorerError(f"The device has too little memory for {describe(int(rows[0]))}.") from error
        # Outside the handler, whose traceback would hold the failed pass's memory.
        if self._varlen is not None:
            self._varlen.clear()
        self._torch.cuda.empty_cache()
        self.batch_tokens = max(1, min(self.batch_tokens, batch.tokens) // 2)
        logger.warning("A batch did not fit in the device's memory; batch_tokens is now %d.", self.batch_tokens)
        middle = len(rows) // 2
        return [
            score
            for half in (slice(0, middle), slice(middle, None))
            for score in self._forward(batch.take(half), rows[half], describe)
        ]

    def _count(self, passes: ForwardPasses, padded_tokens: int) -> None:
        tokens = int(self.template.lengths(passes.spans).sum())
        with self._lock:
            cut_before = self.counts.items_cut + self.counts.queries_cut
            self.counts.passes += len(passes.pair)
            self.counts.items_cut += passes.items_cut
            self.counts.queries_cut += passes.queries_cut
            self.counts.tokens += tokens
            self.counts.padding += padded_tokens - tokens
        if not cut_before and passes.items_cut + passes.queries_cut:
            logger.warning(
                "%d items and %d queries were cut to max_length %d; see .counts for the running totals, and "
                "long_items='max' to score long items whole. This is logged once.",
                passes.items_cut,
                passes.queries_cut,
                self.truncation.max_length,
            )

    def _prepare(self, base: Any, head: VarlenHead | None) -> None:
        """Run this model and its head, padding-free if possible and in int8 if wanted; a subclass calls it once."""
        self._base, self._head = base, head
        if head is not None and self._pretrained.runs:
            self._varlen = make_varlen(base, head, self.template)
        if self._varlen is not None and self._varlen.capturable:
            self._graphs = CudaGraphs(self._varlen, max_length=self.truncation.max_length)
        model, varlen = self._pretrained.model, self._varlen
        if varlen and self.device.type == "cpu" and self.dtype == "float32":
            use_onednn(varlen.linears)
        if self.dtype != "int8":
            return
        linears = varlen.linears if varlen else encoder_linears(model)
        forward = varlen.forward if varlen else lambda encoded: model(**encoded)
        quantize_linears(linears, forward, self._pretrained.tokenizer, max_length=self.truncation.max_length)
        if varlen:
            varlen.ops = int8_ops()

    def _own_settings(self) -> dict[str, Any]:
        """The arguments that only the subclass takes."""
        return {}

    def _fingerprint_settings(self) -> dict[str, Any]:
        """Those of them that change scores, for the fingerprint."""
        return self._own_settings()

    def _check_spans(self, spans: TokenSpans, describe: Describe) -> None:
        """A subclass may reject pairs here, before they reach the device."""

    def _read_scores(self, batch: PaddedBatch | VarlenBatch) -> Any:
        """(pairs,) float32 on the device."""
        if isinstance(batch, VarlenBatch):
            assert self._varlen is not None
            logits = None if self._graphs is None else self._graphs.logits(batch)
            logits = self._varlen.logits(batch) if logits is None else logits
        elif self._head is None:
            logits = self._pretrained.model(**batch.inputs).logits
        else:
            states, pairs = batch.join(self._base(**batch.inputs).last_hidden_state)
            logits = self._head.logits(head_states(self._head, states, pairs.layout), pairs)
        return logits[:, self.label].float()


def plain_format(pretrained: Pretrained, tokenize: Tokenize) -> PairFormat:
    """Pairs as the tokenizer joins them."""
    return PairFormat(find_template(pretrained.tokenizer, tokenize, pretrained.pad), tokenize, tokenize)


def _distinct(texts: Sequence[str], name: str) -> tuple[list[str], Rows]:
    """The distinct texts, and the row of each given text among them."""
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"`{name}` must be strings, got {type(text).__name__}: {str(text)[:80]!r}.")
    rows = dict(zip(dict.fromkeys(texts), count(), strict=False))
    return list(rows), np.fromiter(map(rows.__getitem__, texts), np.int64, len(texts))


def _look_up(store: TokenStore, texts: list[str], rows: Rows) -> Ragged:
    """The tokens of `texts[rows[i]]`, each text of which is looked up once."""
    if len(texts) <= len(rows):  # most of them are used, or all
        return store.lookup(texts).take(rows)
    used, inverse = np.unique(rows, return_inverse=True)
    return store.lookup([texts[row] for row in used]).take(inverse)


def _prefetch(work: Iterator[Work]) -> Iterator[Work]:
    """The work, each piece of which is prepared before the one before it is done: doing may wait for the device."""
    current = next(work, None)
    while current is not None:
        following = next(work, None)
        yield current
        current = following
