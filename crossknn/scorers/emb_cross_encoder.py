"""The [emb]-CE of the AXN paper: a cross-encoder whose score is the dot product of two pooled vectors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from crossknn._checks import check_choice, invalid
from crossknn._imports import import_extra
from crossknn.errors import InputError, ScorerError
from crossknn.models.hub import EMBEDDED, find_model
from crossknn.scorers.inference.engine import Describe, ModelScorer, ModelSettings
from crossknn.scorers.inference.pairs import PairTemplate, TokenSpans
from crossknn.scorers.inference.varlen import JoinedPairs
from crossknn.storage.atomic import disk_errors

POOLING_FILE = "crossknn_pooling.json"
QUERY_POOLINGS = ("cls", "mean", "mention")
ITEM_POOLINGS = ("sep", "mean", "title")


@dataclass(frozen=True, slots=True)
class Pooling:
    """The vectors of the joint encoding that represent query and item; the arguments of `EmbCrossEncoder`."""

    query_pooling: str = "cls"
    item_pooling: str = "sep"
    mention_tokens: tuple[str, str] | None = None
    title_token: str | None = None

    def __post_init__(self) -> None:
        check_choice("query_pooling", self.query_pooling, QUERY_POOLINGS)
        check_choice("item_pooling", self.item_pooling, ITEM_POOLINGS)
        if (self.query_pooling == "mention") != (self.mention_tokens is not None):
            raise InputError("`query_pooling` 'mention' and `mention_tokens` (before, after) need each other.")
        if (self.item_pooling == "title") != (self.title_token is not None):
            raise InputError("`item_pooling` 'title' and `title_token` need each other.")


class EmbCrossEncoder(ModelScorer):
    """The dot product of a query vector and an item vector, both from one encoding of the pair.

    A folder that `save` wrote knows its poolings. A mean over a text without tokens is the zero vector. Further
    arguments are those of `CrossEncoder`.

    Args:
        name: A folder or a hub name.
        query_pooling: "cls", the first token; "mean" over the query's tokens; "mention", the mean of the two
            `mention_tokens` around the mention.
        item_pooling: "sep", the special token before the item; "mean" over the item's tokens; "title", the
            `title_token` after its title.
        mention_tokens: The special tokens before and after a mention.
        title_token: The special token after a title.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        query_pooling: str | None = None,
        item_pooling: str | None = None,
        mention_tokens: tuple[str, str] | None = None,
        title_token: str | None = None,
        **settings: Unpack[ModelSettings],
    ) -> None:
        super().__init__(name, kind="AutoModel", as_transformers=True, **settings)
        given = {
            "query_pooling": query_pooling,
            "item_pooling": item_pooling,
            "mention_tokens": None if mention_tokens is None else tuple(mention_tokens),
            "title_token": title_token,
        }
        self.pooling = _choose_pooling(given, _saved_pooling(self._pretrained.folder), self._pretrained.source)
        self._marker_ids = self._find_markers()
        self._prepare(self._pretrained.model, EmbHead(self.pooling, self._marker_ids, self.template))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model, tokenizer and poolings to a folder that `EmbCrossEncoder` opens."""
        target = Path(folder)
        with disk_errors(target, "the model cannot be written"):
            self._pretrained.model.save_pretrained(target)
            self._pretrained.tokenizer.save_pretrained(target)
            (target / POOLING_FILE).write_text(json.dumps(asdict(self.pooling), indent=1) + "\n", encoding="utf-8")

    def _find_markers(self) -> dict[str, int]:
        """The ids of the special tokens that the poolings read."""
        if self.pooling.query_pooling == "cls" and not self.template.prefix:
            raise InputError("`query_pooling` 'cls' needs a tokenizer with a special token before a pair.")
        if self.pooling.item_pooling == "sep" and not self.template.middle:
            raise InputError("`item_pooling` 'sep' needs a tokenizer with a special token between the two texts.")
        if self.pooling.item_pooling == "title" and self.truncation.long_items == "max":
            raise InputError(
                "`long_items` must be 'cut' with `item_pooling` 'title', which reads the title in each window."
            )
        tokens = [*(self.pooling.mention_tokens or ()), self.pooling.title_token]
        return {token: self._marker_id(token) for token in tokens if token is not None}

    def _marker_id(self, token: str) -> int:
        ids = self._pretrained.backend.encode(f"a {token} b", add_special_tokens=False).ids
        number = self._pretrained.backend.token_to_id(token)
        if number is None or number not in ids:
            raise InputError(
                f"{token!r} must be one token of the tokenizer of {self._pretrained.source}. Add it with "
                "tokenizer.add_special_tokens, train the model with it and save both."
            )
        return int(number)

    def _check_spans(self, spans: TokenSpans, describe: Describe) -> None:
        """Raise `ScorerError` for a pair without the special tokens that its poolings read."""
        for token, marker in self._marker_ids.items():
            text, rows = "query", spans.queries
            if token == self.pooling.title_token:
                text, rows = "item", spans.items
            before = np.concatenate([[0], np.cumsum(rows.flat == marker)])
            missing = np.flatnonzero(before[rows.starts + rows.lengths] == before[rows.starts])
            if len(missing):
                raise ScorerError(
                    f"The {text} has no {token!r}, or it was cut off (max_length {self.truncation.max_length}), in "
                    f"{describe(int(missing[0]))}."
                )

    def _own_settings(self) -> dict[str, Any]:
        return asdict(self.pooling)

    def _fingerprint_settings(self) -> dict[str, Any]:
        return {"pooling": self._own_settings()}


class EmbHead:
    """The dot product of the two pooled vectors of each pair, in float32."""

    token = None  # all tokens are read

    def __init__(self, pooling: Pooling, marker_ids: Mapping[str, int], template: PairTemplate) -> None:
        self._pooling = pooling
        self._marker_ids = marker_ids
        self._template = template

    def logits(self, states: Any, pairs: JoinedPairs) -> Any:
        """(pairs, 1) from (tokens, dim) states."""
        states = states.float()
        query_starts = self._query_starts(pairs)
        item_starts = query_starts + pairs.query_lengths + len(self._template.middle)
        query = self._query_vectors(states, pairs, query_starts)
        return (query * self._item_vectors(states, pairs, item_starts)).sum(-1, keepdim=True)

    def _query_starts(self, pairs: JoinedPairs) -> Any:
        """(pairs,) the row of each query's first token."""
        return pairs.layout.cu_seqlens[:-1].long() + len(self._template.prefix)

    def _query_vectors(self, states: Any, pairs: JoinedPairs, starts: Any) -> Any:
        if self._pooling.query_pooling == "cls":
            return states[pairs.layout.cu_seqlens[:-1].long()]
        if self._pooling.mention_tokens is None:
            return _mean(states, pairs, starts, pairs.query_lengths)
        rows = [self._find(pairs, token, starts, pairs.query_lengths) for token in self._pooling.mention_tokens]
        return (states[rows[0]] + states[rows[1]]) / 2

    def _item_vectors(self, states: Any, pairs: JoinedPairs, starts: Any) -> Any:
        if self._pooling.item_pooling == "sep":
            return states[starts - 1]
        if self._pooling.title_token is None:
            return _mean(states, pairs, starts, pairs.item_lengths)
        return states[self._find(pairs, self._pooling.title_token, starts, pairs.item_lengths)]

    def _find(self, pairs: JoinedPairs, token: str, starts: Any, lengths: Any) -> Any:
        """(pairs,) the row of the first such token of each text."""
        rows, pair = _rows_and_pairs(pairs)
        hits = (pairs.ids == self._marker_ids[token]) & (rows >= starts[pair]) & (rows < (starts + lengths)[pair])
        last = len(rows) - 1
        return starts.new_full(starts.shape, last).scatter_reduce(0, pair, rows.where(hits, last), "amin")


def is_emb_cross_encoder(name: str | os.PathLike[str]) -> bool:
    """Whether this is a folder, or a model on the hub, that `EmbCrossEncoder.save` wrote."""
    if name == EMBEDDED:
        return False
    return (find_model(name, kind="AutoModel") / POOLING_FILE).is_file()


def _mean(states: Any, pairs: JoinedPairs, starts: Any, lengths: Any) -> Any:
    """(pairs, dim) the mean over the tokens of one text of each pair."""
    rows, pair = _rows_and_pairs(pairs)
    inside = (rows >= starts[pair]) & (rows < (starts + lengths)[pair])
    torch = import_extra("torch", extra="models")
    counts = pairs.layout.cu_seqlens.diff().long()
    sums = torch.segment_reduce(states * inside[:, None], "sum", lengths=counts, unsafe=True)
    return sums / lengths.clamp(min=1)[:, None]


def _rows_and_pairs(pairs: JoinedPairs) -> tuple[Any, Any]:
    """(tokens,) the row of each token, and its pair."""
    torch = import_extra("torch", extra="models")
    counts = pairs.layout.cu_seqlens.diff().long()
    rows = torch.arange(len(pairs.ids), device=counts.device)
    return rows, torch.repeat_interleave(counts, output_size=len(rows))


def _saved_pooling(folder: Path) -> Pooling | None:
    """The poolings that `save` wrote beside the weights, if any."""
    file = folder / POOLING_FILE
    if not file.is_file():
        return None
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        tokens = fields.get("mention_tokens")
        return Pooling(**{**fields, "mention_tokens": None if tokens is None else tuple(tokens)})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} does not describe a pooling: {error}") from error


def _choose_pooling(given: dict[str, Any], saved: Pooling | None, source: str) -> Pooling:
    chosen = {key: value for key, value in given.items() if value is not None}
    if saved is None:
        return Pooling(**chosen)
    for key, value in chosen.items():
        if value != getattr(saved, key):
            raise invalid(key, f"{getattr(saved, key)!r}, as {source} was saved with", value)
    return saved
