"""The tokenizer's template for a pair of texts: inferred from it, and verified before any pair is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.inference.token_store import Counts, Ragged, Tokens

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

    def position(self, query_lengths: Any, item_lengths: Any) -> Any:
        """The position of the step in every pair."""
        return self.offset + query_lengths * self.after_query + item_lengths * self.after_item


@dataclass(frozen=True, slots=True)
class TokenSpans:
    """The tokens of each pair as spans of two buffers; all but the buffers have one entry per pair."""

    queries: Tokens
    query_starts: Counts
    query_lengths: Counts
    items: Tokens
    item_starts: Counts
    item_lengths: Counts

    def take(self, rows: Any) -> TokenSpans:
        """The spans of some of the pairs, in the order of `rows`."""
        query_starts, query_lengths = self.query_starts[rows], self.query_lengths[rows]
        item_starts, item_lengths = self.item_starts[rows], self.item_lengths[rows]
        return TokenSpans(self.queries, query_starts, query_lengths, self.items, item_starts, item_lengths)


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

    @property
    def specials(self) -> int:
        """The number of special tokens of a pair."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def lengths(self, spans: TokenSpans) -> Counts:
        """(pairs,) all tokens of each pair."""
        return self.specials + spans.query_lengths + spans.item_lengths

    def assemble(self, spans: TokenSpans) -> Tokens:
        """(pairs, longest) int32: the ids of each pair, padded on the right."""
        totals = self.lengths(spans)
        width = int(totals.max())
        ids = np.full((len(totals), width), self.pad, np.int32)
        rows = np.arange(len(totals)) * width
        query_at = rows + len(self.prefix)
        middle_at = query_at + spans.query_lengths
        item_at = middle_at + len(self.middle)
        suffix_at = item_at + spans.item_lengths
        flat = ids.reshape(-1)
        for special, at in ((self.prefix, rows), (self.middle, middle_at), (self.suffix, suffix_at)):
            for shift, token in enumerate(special):
                flat[at + shift] = token
        _copy_spans(spans.queries, spans.query_starts, spans.query_lengths, flat, query_at)
        _copy_spans(spans.items, spans.item_starts, spans.item_lengths, flat, item_at)
        return ids

    def token_types(self, positions: Any, query_lengths: Any, item_lengths: Any) -> Any:
        """The types of tokens at these positions of their pairs; arrays or tensors of shapes that broadcast."""
        types = (self.first_type or 0) + 0 * (positions + query_lengths)
        for step in self.type_steps:
            types = types + step.step * (positions >= step.position(query_lengths, item_lengths))
        return types


def _copy_spans(source: Tokens, starts: Counts, lengths: Counts, target: Tokens, at: Counts) -> None:
    """`target[at[i] : at[i] + lengths[i]] = source[starts[i] : starts[i] + lengths[i]]` for all rows at once."""
    ends = np.cumsum(lengths)
    if not len(ends) or not ends[-1]:
        return
    steps = np.arange(ends[-1])
    before = ends - lengths
    target[np.repeat(at - before, lengths) + steps] = source[np.repeat(starts - before, lengths) + steps]


def find_template(tokenizer: Any, tokenize: Any) -> PairTemplate:
    """The tokenizer's own way to join a pair, or `InputError` if it cannot be reproduced.

    Args:
        tokenizer: A fast tokenizer of transformers.
        tokenize: Returns the token ids of each text alone (`token_store.fast_tokenize`).
    """
    name = type(tokenizer).__name__
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"The model's tokenizer must be a fast one (with a tokenizer.json), got {name}.")
    if tokenizer.pad_token_id is None:
        raise InputError(f"The model's tokenizer ({name}) must have a padding token. Set its pad_token and save it.")
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
        pad=int(tokenizer.pad_token_id),
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
        spans = TokenSpans(queries.flat, queries.starts, queries.lengths, items.flat, items.starts, items.lengths)
        ids = template.assemble(spans)
        equal = ids[0].tolist() == list(expected["input_ids"][0])
        if equal and template.first_type is not None:
            types = template.token_types(np.arange(ids.shape[1]), queries.lengths[:, None], items.lengths[:, None])
            equal = types[0].tolist() == list(expected["token_type_ids"][0])
        if not equal:
            raise InputError(
                f"The tokenizer ({type(tokenizer).__name__}) joins the query {query!r} and the item {item!r} in a way "
                "that cannot be rebuilt from their own tokens. Score with crossknn.function_scorer instead."
            )
