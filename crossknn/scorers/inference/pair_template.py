"""How a tokenizer joins a query and an item: found by asking it, and checked before any pair is scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.inference.token_store import Counts, Ragged, Tokens

PROBES = (
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
        """Where the step is, for every pair."""
        return self.offset + query_lengths * self.after_query + item_lengths * self.after_item


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """`prefix` query `middle` item `suffix`: the special ids around the two texts, and their token types."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    first_type: int | None  # None: the model takes no token types
    type_steps: tuple[TypeStep, ...]
    cut_left: bool  # the tokenizer drops a text's first tokens instead of its last

    @property
    def specials(self) -> int:
        """How many tokens of a pair belong to neither text."""
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    def assemble(self, pieces: PairPieces) -> Tokens:
        """(pairs, longest) int32: the ids of each pair, padded on the right."""
        totals = self.specials + pieces.query_lengths + pieces.item_lengths
        width = int(totals.max())
        ids = np.full((len(totals), width), self.pad, np.int32)
        rows = np.arange(len(totals)) * width
        query_at = rows + len(self.prefix)
        middle_at = query_at + pieces.query_lengths
        item_at = middle_at + len(self.middle)
        flat = ids.reshape(-1)
        for special, at in (
            (self.prefix, rows),
            (self.middle, middle_at),
            (self.suffix, item_at + pieces.item_lengths),
        ):
            for shift, token in enumerate(special):
                flat[at + shift] = token
        _copy_rows(pieces.queries, pieces.query_starts, pieces.query_lengths, flat, query_at)
        _copy_rows(pieces.items, pieces.item_starts, pieces.item_lengths, flat, item_at)
        return ids

    def token_types(self, positions: Any, query_lengths: Any, item_lengths: Any) -> Any:
        """Of tokens at these positions of their pairs, in any shapes that fit; numpy arrays and tensors alike."""
        types = (self.first_type or 0) + 0 * (positions + query_lengths)
        for step in self.type_steps:
            types = types + step.step * (positions >= step.position(query_lengths, item_lengths))
        return types


@dataclass(frozen=True, slots=True)
class PairPieces:
    """Which tokens of which buffer make up each pair; all but the two buffers have one entry per pair."""

    queries: Tokens
    query_starts: Counts
    query_lengths: Counts
    items: Tokens
    item_starts: Counts
    item_lengths: Counts

    def take(self, rows: Any) -> PairPieces:
        """The pieces of some of the pairs, in the order of `rows`."""
        return PairPieces(
            self.queries,
            self.query_starts[rows],
            self.query_lengths[rows],
            self.items,
            self.item_starts[rows],
            self.item_lengths[rows],
        )


def _copy_rows(source: Tokens, starts: Counts, lengths: Counts, target: Tokens, at: Counts) -> None:
    """`target[at[i] : at[i] + lengths[i]] = source[starts[i] : starts[i] + lengths[i]]` for all rows at once."""
    ends = np.cumsum(lengths)
    if not len(ends) or not ends[-1]:
        return
    steps = np.arange(ends[-1])
    before = ends - lengths
    target[np.repeat(at - before, lengths) + steps] = source[np.repeat(starts - before, lengths) + steps]


def find_template(tokenizer: Any, tokenize: Any) -> PairTemplate:
    """The tokenizer's own way to join a pair, or `InputError` where assembling it anew would differ.

    `tokenize` gives the token ids of a text on its own (see `token_store.fast_tokenize`).
    """
    name = type(tokenizer).__name__
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(f"the model's tokenizer must be a fast one (with a tokenizer.json). Got {name} instead.")
    if tokenizer.pad_token_id is None:
        raise InputError(f"the model's tokenizer ({name}) must have a padding token. Set its pad_token and save it.")
    query, item = PROBES[0]
    encoded = tokenizer([query], [item])
    parts = [-1 if part is None else int(part) for part in encoded.sequence_ids(0)]
    ids: list[int] = encoded["input_ids"][0]
    types: list[int] | None = encoded["token_type_ids"][0] if "token_type_ids" in encoded else None
    if _texts_in_order(parts) != [0, 1]:
        raise InputError(f"the tokenizer ({name}) does not say which tokens are the query's and which the item's.")
    cuts = [parts.index(0), _last(parts, 0) + 1, parts.index(1), _last(parts, 1) + 1]
    template = PairTemplate(
        prefix=tuple(ids[: cuts[0]]),
        middle=tuple(ids[cuts[1] : cuts[2]]),
        suffix=tuple(ids[cuts[3] :]),
        pad=int(tokenizer.pad_token_id),
        first_type=None if types is None else types[0],
        type_steps=() if types is None else _type_steps(types, cuts),
        cut_left=getattr(tokenizer, "truncation_side", "right") == "left",
    )
    _verify(template, tokenizer, tokenize)
    return template


def _texts_in_order(parts: list[int]) -> list[int]:
    return [part for at, part in enumerate(parts) if part != -1 and (at == 0 or parts[at - 1] != part)]


def _last(parts: list[int], part: int) -> int:
    return len(parts) - 1 - parts[::-1].index(part)


def _type_steps(types: list[int], cuts: list[int]) -> tuple[TypeStep, ...]:
    """Where the token type changes, as positions that hold for texts of any length."""
    query_start, query_end, item_start, item_end = cuts
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
    for query, item in (*PROBES, *((f"a {token} b", f"{token} c") for token in separators)):
        wanted = tokenizer([query], [item], verbose=False)
        queries, items = Ragged.of(tokenize([query])), Ragged.of(tokenize([item]))
        pieces = PairPieces(queries.flat, queries.starts, queries.lengths, items.flat, items.starts, items.lengths)
        ids = template.assemble(pieces)
        same = ids[0].tolist() == list(wanted["input_ids"][0])
        if same and template.first_type is not None:
            types = template.token_types(np.arange(ids.shape[1]), queries.lengths[:, None], items.lengths[:, None])
            same = types[0].tolist() == list(wanted["token_type_ids"][0])
        if not same:
            raise InputError(
                f"the tokenizer ({type(tokenizer).__name__}) joins the query {query!r} and the item {item!r} in a way "
                "that cannot be rebuilt from their own tokens. Score with crossknn.function_scorer instead."
            )
