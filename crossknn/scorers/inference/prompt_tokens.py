"""Prompts of rerankers: the text around a query and an item, and its tokens.

A prompt is tokenized once, and each query and item once, although a tokenizer may merge the end of a text with what
follows it ("?" and a line break are one token for Qwen). Each text is therefore tokenized together with the characters
around it that it may merge with. Where they are is found by trying texts of all kinds, and the result is compared with
the tokens of whole prompts before any pair is scored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from crossknn.errors import InputError
from crossknn.scorers.inference.token_store import Tokenize, Tokens

QUERY, ITEM = "{query}", "{item}"
FILLER = "a"  # stands for a text where its tokens do not matter
# How texts may begin and end, as far as tokenizers tell characters apart.
PROBE_TEXTS: Final = (
    "a",
    "Rivers freeze from the top down.",
    "why is ice slippery?",
    "don't",
    "it's (so)",
    "42",
    "3.14",
    "",
    " ",
    "\n",
    " leading and trailing ",
    "\n\nlines\n\n",
    "\ttabs\t",
    "\r\n",
    ": - :",
    "<tag>",
    "'s",
    "Ünïcödé — “quotes”",
    "漢字",
    "🙂",
    "é\u0301",
    "_under_",
    "!?\n",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text around a query and an item.

    The names of the fields are part of a scorer's fingerprint.

    Attributes:
        parts: The prompt with {query} and {item} in their places. Several parts are tokenized one by one, as the code
            of some makers does it.
        special_tokens: Whether the tokenizer adds its own special tokens around the whole, as it does to any text. A
            chat template names its own.
        strip_query: Whether white space around a query is dropped.
        strip_item: The same for an item.
    """

    parts: tuple[str, ...]
    special_tokens: bool
    strip_query: bool = False
    strip_item: bool = False

    def __post_init__(self) -> None:
        text = "".join(self.parts)
        for name in (QUERY, ITEM):
            if text.count(name) != 1:
                raise InputError(f"`template` must contain {name} exactly once, got {text!r}.")

    @property
    def item_first(self) -> bool:
        """Whether the item stands before the query."""
        text = "".join(self.parts)
        return text.index(ITEM) < text.index(QUERY)

    def render(self, query: str, item: str) -> tuple[str, ...]:
        """The parts with these texts in their places."""
        texts = {QUERY: query.strip() if self.strip_query else query, ITEM: item.strip() if self.strip_item else item}
        return tuple("".join(texts.get(piece, piece) for piece in split_part(part)) for part in self.parts)


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """Tokens of a text in its place in a prompt, with those of the characters around it that it may merge with."""

    tokenize: Tokenize  # of texts alone
    left: str
    right: str
    skipped: int  # first tokens, which belong to `left` and stand in the prompt's own tokens
    strip: bool

    def __call__(self, texts: list[str]) -> list[Tokens]:
        stripped = [text.strip() for text in texts] if self.strip else texts
        rows = self.tokenize([f"{self.left}{text}{self.right}" for text in stripped])
        return [row[self.skipped :] for row in rows] if self.skipped else rows


class PromptTokens(NamedTuple):
    """A prompt in tokens: its own, and tokenizers for the two texts."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    query: TextTokenizer
    item: TextTokenizer
    query_tail: tuple[int, ...]  # last tokens of every query that is cut: those of its `right`
    item_tail: tuple[int, ...]


def tokenize_prompt(prompt: Prompt, backend: Any, tokenize: Tokenize, *, source: str) -> PromptTokens:
    """The tokens of a prompt, or `InputError` if texts cannot be tokenized apart from it.

    `backend` is a `tokenizers.Tokenizer` and `tokenize` gives its tokens of each text, without special tokens.
    """
    strips = {QUERY: prompt.strip_query, ITEM: prompt.strip_item}
    leading, trailing = added_special_tokens(backend) if prompt.special_tokens else ([], [])
    static = [leading]  # tokens before, between and behind the two texts
    texts: dict[str, tuple[TextTokenizer, tuple[int, ...]]] = {}
    borders = _Borders(backend)
    for part in prompt.parts:
        pieces = split_part(part)
        cuts = []  # characters of the part, with "a" for each text, where a text's tokens begin and end
        for number, name in enumerate(pieces):
            if name in (QUERY, ITEM):
                place = _Place.find(pieces, number, backend, borders, source)
                texts[name] = place.tokenizer(tokenize, strip=strips[name], source=source), place.tail()
                cuts.append(place.bounds(FILLER))
        if any(end > start for (_, end), (start, _) in pairwise(cuts)):
            raise _inseparable(source)
        before, *others = _static_tokens(backend.encode(_fill(pieces), add_special_tokens=False), cuts)
        static[-1] += before
        static += others
    static[-1] += trailing
    prefix, middle, suffix = (tuple(tokens) for tokens in static)
    (query, query_tail), (item, item_tail) = texts[QUERY], texts[ITEM]
    tokens = PromptTokens(prefix, middle, suffix, query, item, query_tail, item_tail)
    _verify(tokens, prompt, backend, source)
    return tokens


def _static_tokens(encoding: Any, cuts: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The tokens before the first cut, between the cuts and behind the last one."""
    static: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for token, (_, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if not any(start < end <= stop for start, stop in cuts):
            static[sum(end > stop for _, stop in cuts)].append(token)
    return static


def added_special_tokens(backend: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer adds before and behind every text."""
    whole, plain = backend.encode("a").ids, backend.encode("a", add_special_tokens=False).ids
    at = next(start for start in range(len(whole)) if whole[start : start + len(plain)] == plain)
    return list(whole[:at]), list(whole[at + len(plain) :])


class _Borders:
    """Places in a static text that no token spans, whatever the texts beside it are.

    A tokenizer that splits texts into words first merges nothing beyond them, so that what was tried tells. Others
    (SentencePiece without a pre-tokenizer, as of Gemma) may merge any characters that stand side by side in some token.
    """

    def __init__(self, backend: Any) -> None:
        self._normalize = backend.normalizer.normalize_str if backend.normalizer else lambda text: text
        sample = self._normalize("a b\nc d")
        splitter = backend.pre_tokenizer
        self._words = splitter is not None and len(splitter.pre_tokenize_str(sample)) > 1
        self._added = tuple(token.content for token in backend.get_added_tokens_decoder().values())
        vocabulary = () if self._words else set(backend.get_vocab(with_added_tokens=False)) - set(self._added)
        self._pairs = {pair for token in vocabulary for pair in pairwise(token)}

    def hold(self, text: str, at: int) -> bool:
        """Whether tokens never span this place of a static text."""
        if self._words or text[:at].endswith(self._added) or text[at:].startswith(self._added):
            return True
        if not 0 < at < len(text):
            return False
        return self._pairs.isdisjoint(pairwise(self._normalize(text[at - 1 : at + 1])))


@dataclass(frozen=True, slots=True)
class _Place:
    """A text's place in a part of a prompt, and how far around it tokens may span both.

    Attributes:
        left: The part before the text, with "a" for another text.
        right: The part behind it.
        before: Characters of `left` that the text may merge with.
        behind: Characters of `right` that it may merge with.
    """

    encode: Callable[[str], Any]
    left: str
    right: str
    before: int
    behind: int

    @classmethod
    def find(cls, pieces: Sequence[str], number: int, backend: Any, borders: _Borders, source: str) -> _Place:
        left, right = _fill(pieces[:number]), _fill(pieces[number + 1 :])

        def encode(text: str) -> Any:
            return backend.encode(text, add_special_tokens=False)

        def beside(at: int) -> int:
            """Characters of the static text at this place, 0 where there is none."""
            is_static = 0 <= at < len(pieces) and pieces[at] not in (QUERY, ITEM)
            return len(pieces[at]) if is_static else 0

        spanned_before: set[int] = set()  # distances from the text that some token spans
        spanned_behind: set[int] = set()
        for text in PROBE_TEXTS:
            start, end = len(left), len(left) + len(text)
            for first, last in encode(left + text + right).offsets:
                spanned_before.update(range(max(0, start - last + 1), start - first))
                spanned_behind.update(range(max(0, first - end + 1), last - end))
        before = next(
            (
                n
                for n in range(beside(number - 1) + 1)
                if n not in spanned_before and (n == len(left) or borders.hold(left, len(left) - n))
            ),
            None,
        )
        behind = next(
            (
                n
                for n in range(beside(number + 1) + 1)
                if n not in spanned_behind and (n == len(right) or borders.hold(right, n))
            ),
            None,
        )
        if before is None or behind is None:
            raise _inseparable(source)
        return cls(encode, left, right, before, behind)

    def bounds(self, text: str) -> tuple[int, int]:
        """The characters of the part that are tokenized with the text."""
        return len(self.left) - self.before, len(self.left) + len(text) + self.behind

    def tokens(self, text: str) -> list[int]:
        """The text's tokens in the whole part."""
        start, end = self.bounds(text)
        encoding = self.encode(self.left + text + self.right)
        return [
            token
            for token, (first, last) in zip(encoding.ids, encoding.offsets, strict=True)
            if start <= first and last <= end and (first < last or start < first)
        ]

    def tokenizer(self, tokenize: Tokenize, *, strip: bool, source: str) -> TextTokenizer:
        """A tokenizer of texts in this place, with as little of the prompt around them as gives the same tokens."""
        right = self.right[: self.behind]
        expected = [self.tokens(text) for text in PROBE_TEXTS]
        for before in range(self.before, len(self.left) + 1):
            found = TextTokenizer(tokenize, self.left[len(self.left) - before :], right, 0, strip=False)
            rows = [row.tolist() for row in found(list(PROBE_TEXTS))]
            skipped = len(rows[0]) - len(expected[0])
            if skipped >= 0 and all(row[skipped:] == tokens for row, tokens in zip(rows, expected, strict=True)):
                return replace(found, skipped=skipped, strip=strip)
        raise _inseparable(source)

    def tail(self) -> tuple[int, ...]:
        """The tokens behind a text that are tokenized with it."""
        encoding = self.encode(self.left + FILLER + self.right)
        start = len(self.left) + len(FILLER)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return tuple(token for token, (first, last) in spans if start <= first and last <= start + self.behind)


def split_part(part: str) -> list[str]:
    """The static texts and the places of a part: "<q> {query}" is "<q> " and "{query}"."""
    return [piece for piece in re.split(r"(\{query\}|\{item\})", part) if piece]


def _fill(pieces: Sequence[str]) -> str:
    return "".join(FILLER if piece in (QUERY, ITEM) else piece for piece in pieces)


def _inseparable(source: str) -> InputError:
    return InputError(
        f"The tokenizer of {source} merges the texts of the template with each other, so that they cannot be tokenized "
        "apart. Put a line break or a special token between them."
    )


def _verify(tokens: PromptTokens, prompt: Prompt, backend: Any, source: str) -> None:
    leading, trailing = added_special_tokens(backend) if prompt.special_tokens else ([], [])
    for query, item in zip(PROBE_TEXTS, reversed(PROBE_TEXTS), strict=True):
        (query_ids,), (item_ids,) = tokens.query([query]), tokens.item([item])
        first, second = (item_ids, query_ids) if prompt.item_first else (query_ids, item_ids)
        ids = [*tokens.prefix, *first.tolist(), *tokens.middle, *second.tolist(), *tokens.suffix]
        parts = prompt.render(query, item)
        expected = [token for part in parts for token in backend.encode(part, add_special_tokens=False).ids]
        if ids != [*leading, *expected, *trailing]:
            raise _inseparable(source)
