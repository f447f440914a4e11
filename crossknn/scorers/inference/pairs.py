"""Pairs of texts as token ids: the tokenizer's template, truncation to the model's length, sliding windows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from crossknn._checks import check_choice, check_positive
from crossknn.errors import InputError
from crossknn.scorers.inference.token_store import Counts, Ragged, Tokenize, Tokens
from crossknn.types import Rows, Scores

LongItems = Literal["cut", "max"]

PROBE_PAIRS = (
    ("how do rivers freeze", "Rivers freeze from the top down."),
    ("A", "b c"),
    ("", "an item beside an empty query"),
    ("a query beside an empty item", ""),
    ("", ""),
    ("  spaces around ", " and  doubled  spaces\tand\nlines "),
    ("Ünïcödé — “quotes”", "漢字 and emoji 🙂, 3.14 (x_y)"),
    ("word " * 40, "another-word, " * 60),
)


@dataclass(frozen=True, slots=True)
class TypeStep:
    """The token type grows by `step` from a position on: `offset`, plus the query's length, plus the item's."""

    step: int
    offset: int
    after_query: bool
    after_item: bool


@dataclass(frozen=True, slots=True)
class TokenSpans:
    """The tokens of pairs, each with a row of `queries` and a row of `items`."""

    queries: Ragged
    items: Ragged

    def take(self, rows: Rows) -> TokenSpans:
        """The spans of some of the pairs, in the order of `rows`."""
        return TokenSpans(self.queries.take(rows), self.items.take(rows))


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """`prefix` query `middle` item `suffix`: the special ids around the two texts, and their token types.

    The names of the fields are part of a scorer's fingerprint.
    """

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    first_type: int | None  # None: the model takes no token types
    type_steps: tuple[TypeStep, ...]
    cut_left: bool  # truncation drops a text's first tokens instead of its last
    item_first: bool = False  # `prefix` item `middle` query `suffix`
    is_prompt: bool = False  # truncation cuts the item only, as long as the query leaves it a quarter of the room
    query_tail: tuple[int, ...] = ()  # last tokens of a query that was cut, which are the template's
    item_tail: tuple[int, ...] = ()

    @property
    def specials(self) -> int:
        """The number of special tokens of a pair."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def lengths(self, spans: TokenSpans) -> Counts:
        """(pairs,) all tokens of each pair."""
        return self.specials + spans.queries.lengths + spans.items.lengths

    def assemble(self, spans: TokenSpans) -> Tokens:
        """(pairs, longest) int32: the ids of each pair, padded on the right."""
        totals = self.lengths(spans)
        width = int(totals.max())
        ids = np.full((len(totals), width), self.pad, np.int32)
        self._fill(ids.reshape(-1), np.arange(len(totals)) * width, spans)
        return ids

    def concatenate(self, spans: TokenSpans) -> Tokens:
        """(tokens,) int32: the ids of all pairs, end to end."""
        totals = self.lengths(spans)
        ids = np.empty(totals.sum(), np.int32)
        self._fill(ids, np.cumsum(totals) - totals, spans)
        return ids

    def _fill(self, flat: Tokens, starts: Counts, spans: TokenSpans) -> None:
        """Write the ids of each pair from its start on."""
        first, second = (spans.items, spans.queries) if self.item_first else (spans.queries, spans.items)
        first_at = starts + len(self.prefix)
        middle_at = first_at + first.lengths
        second_at = middle_at + len(self.middle)
        suffix_at = second_at + second.lengths
        for special, at in ((self.prefix, starts), (self.middle, middle_at), (self.suffix, suffix_at)):
            for shift, token in enumerate(special):
                flat[at + shift] = token
        first.copy_to(flat, first_at)
        second.copy_to(flat, second_at)

    def settings(self) -> dict[str, Any]:
        """The fields that differ from their defaults, and those without one, for a fingerprint."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def token_types(self, positions: Any, query_lengths: Any, item_lengths: Any) -> Any:
        """The types of tokens at these positions of their pairs; arrays or tensors of shapes that broadcast."""
        types = (self.first_type or 0) + 0 * (positions + query_lengths)
        for step in self.type_steps:
            at = step.offset + query_lengths * step.after_query + item_lengths * step.after_item
            types = types + step.step * (positions >= at)
        return types


class PairFormat(NamedTuple):
    """How pairs become tokens: the template, and functions from texts to their tokens in it."""

    template: PairTemplate
    tokenize_queries: Tokenize
    tokenize_items: Tokenize


def find_template(tokenizer: Any, tokenize: Any, pad: int) -> PairTemplate:
    """A fast tokenizer's own way to join a pair, or `InputError` if it cannot be reproduced.

    `tokenize` returns the token ids of each text alone (`token_store.fast_tokenize`).
    """
    name = type(tokenizer).__name__
    query, item = PROBE_PAIRS[0]
    encoded = tokenizer([query], [item])
    ids: list[int] = encoded["input_ids"][0]
    types: list[int] | None = encoded["token_type_ids"][0] if "token_type_ids" in encoded else None
    texts = encoded.sequence_ids(0)  # 0 for the query's tokens, 1 for the item's, None for special ones
    positions = [[at for at, text in enumerate(texts) if text == part] for part in (0, 1)]
    bounds = [bound for part in positions if part for bound in (part[0], part[-1] + 1)]
    contiguous = all(len(part) == part[-1] + 1 - part[0] for part in positions if part)
    if len(bounds) != 4 or not contiguous or bounds[1] > bounds[2]:
        raise InputError(f"The tokenizer ({name}) does not tell which tokens are the query's and which the item's.")
    template = PairTemplate(
        prefix=tuple(ids[: bounds[0]]),
        middle=tuple(ids[bounds[1] : bounds[2]]),
        suffix=tuple(ids[bounds[3] :]),
        pad=pad,
        first_type=None if types is None else types[0],
        type_steps=() if types is None else _type_steps(types, bounds),
        cut_left=getattr(tokenizer, "truncation_side", "right") == "left",
    )
    _verify(template, tokenizer, tokenize)
    return template


def _type_steps(types: list[int], bounds: list[int]) -> tuple[TypeStep, ...]:
    """The changes of the token type, at positions that hold for texts of any length."""
    query_start, query_end, item_start, item_end = bounds
    steps = []
    for at in range(1, len(types)):
        if types[at] == types[at - 1]:
            continue
        after_query, after_item = at >= query_end, at >= item_end
        offset = at - (query_end - query_start) * after_query - (item_end - item_start) * after_item
        steps.append(TypeStep(types[at] - types[at - 1], offset, after_query, after_item))
    return tuple(steps)


def _verify(template: PairTemplate, tokenizer: Any, tokenize: Any) -> None:
    separators = [str(token) for token in (tokenizer.sep_token, tokenizer.eos_token) if token]
    for query, item in (*PROBE_PAIRS, *((f"a {token} b", f"{token} c") for token in separators)):
        expected = tokenizer([query], [item], verbose=False)
        queries, items = Ragged.of(tokenize([query])), Ragged.of(tokenize([item]))
        ids = template.assemble(TokenSpans(queries, items))
        equal = ids[0].tolist() == list(expected["input_ids"][0])
        if equal and template.first_type is not None:
            types = template.token_types(np.arange(ids.shape[1]), queries.lengths[:, None], items.lengths[:, None])
            equal = types[0].tolist() == list(expected["token_type_ids"][0])
        if not equal:
            raise InputError(
                f"The tokenizer ({type(tokenizer).__name__}) joins the query {query!r} and the item {item!r} in a way "
                "that cannot be rebuilt from their own tokens. Score with crossknn.function_scorer instead."
            )


@dataclass(frozen=True, slots=True)
class Truncation:
    """The maximum length of a pair, and the treatment of longer ones; the arguments of `CrossEncoder`.

    The names of the fields are part of a scorer's fingerprint.
    """

    max_length: int
    max_query_tokens: int | None = None
    max_item_tokens: int | None = None
    long_items: LongItems = "cut"
    stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_query_tokens", "max_item_tokens", "stride"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_choice("long_items", self.long_items, ("cut", "max"))
        if self.stride is not None and self.long_items == "cut":
            raise InputError("`stride` needs `long_items` 'max': with 'cut' no windows slide over the items.")


@dataclass(frozen=True, slots=True)
class ForwardPasses:
    """Forward passes of the model, each over one pair or one window of a pair's item."""

    spans: TokenSpans
    pair: Rows  # (passes,) the pair of each pass, ascending
    items_cut: int  # pairs whose item was truncated
    queries_cut: int


def plan_passes(template: PairTemplate, truncation: Truncation, whole: TokenSpans) -> ForwardPasses:
    """The forward passes of pairs, given all tokens of their texts."""
    room = truncation.max_length - template.specials
    full_query, full_item = whole.queries.lengths, whole.items.lengths
    query_limit = _clip(full_query, truncation.max_query_tokens)
    item_limit = _clip(full_item, truncation.max_item_tokens)
    if template.is_prompt:
        query_kept = np.minimum(query_limit, np.maximum(room * 3 // 4, room - item_limit))
        item_kept = np.minimum(item_limit, room - query_kept)
    else:
        query_kept, item_kept = longest_first(query_limit, item_limit, room)
    pair = np.arange(len(full_query))
    windowed = truncation.long_items == "max"
    item_read = item_limit if windowed else item_kept  # tokens read in some pass
    query_starts = whole.queries.starts + (full_query - query_kept) * template.cut_left
    item_starts = whole.items.starts + (full_item - item_read) * template.cut_left
    if windowed:
        pair, shift = sliding_windows(item_limit, item_kept, truncation.stride)
        item_starts = item_starts[pair] + shift
    queries = Ragged(whole.queries.flat, query_starts[pair], query_kept[pair])
    items = Ragged(whole.items.flat, item_starts, item_kept[pair])
    queries = queries.with_tail(template.query_tail, (query_kept < full_query)[pair])
    ends = whole.items.starts + full_item
    items = items.with_tail(template.item_tail, items.starts + items.lengths < ends[pair])
    cut = int((item_read < full_item).sum()), int((query_kept < full_query).sum())
    return ForwardPasses(TokenSpans(queries, items), pair, *cut)


def longest_first(query_lengths: Counts, item_lengths: Counts, room: int) -> tuple[Counts, Counts]:
    """The lengths that fit in `room` together when tokens are dropped from the longer text first.

    The closed form of the fast tokenizers' `longest_first`: where both texts are longer than half the room,
    each gets half, and an odd token goes to the longer one (to the item where they are equal). Tokenizers before
    0.23.3 give it to the item where each text alone is longer than the room.
    """
    fits = query_lengths + item_lengths <= room
    shorter = np.minimum(query_lengths, item_lengths)
    longer = np.maximum(shorter, room - shorter)
    both = shorter + longer > room
    shorter = np.where(both, room // 2, shorter)
    longer = np.where(both, room - room // 2, longer)
    query_longer = query_lengths > item_lengths
    query_kept = np.where(fits, query_lengths, np.where(query_longer, longer, shorter))
    item_kept = np.where(fits, item_lengths, np.where(query_longer, shorter, longer))
    return query_kept, item_kept


def _clip(lengths: Counts, limit: int | None) -> Counts:
    return lengths if limit is None else np.minimum(lengths, limit)


def sliding_windows(lengths: Counts, window: Counts, stride: int | None) -> tuple[Rows, Counts]:
    """(pair, start) of windows that cover each item; the last one ends where the item ends.

    Without a stride a window slides by half its length.
    """
    step = np.maximum(1, np.minimum(window, window // 2 if stride is None else stride))
    counts = 1 + -(-(lengths - window) // step)
    pair = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pair, np.minimum(number * step[pair], (lengths - window)[pair])


def max_over_windows(scores: Scores, pair: Rows, pairs: int) -> Scores:
    """(pairs,) the largest score among the passes of each pair."""
    if len(pair) == pairs:
        return scores
    best: Scores = np.maximum.reduceat(scores, np.searchsorted(pair, np.arange(pairs)))
    return best
