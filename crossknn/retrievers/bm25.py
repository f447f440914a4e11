"""BM25, as bm25s weighs words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from crossknn.errors import InputError
from crossknn.retrievers.analyzer import Words, import_bm25s
from crossknn.retrievers.base import check_fitted, check_name, check_request
from crossknn.retrievers.postings import Counts, Postings, count_stems
from crossknn.retrievers.side_by_side import map_queries
from crossknn.types import Mask, Proposal, Scores
from crossknn.vectors.ranking import top_rows

if TYPE_CHECKING:
    from crossknn.items.items import Items

BLOCK = 10_000  # texts read at a time
WEIGHED = 2**20  # postings at a time
METHODS = ("lucene", "robertson", "atire", "bm25l", "bm25+")
COUNTS_ABSENT = ("bm25l", "bm25+")  # in which an item's score has a part for words that it does not hold
DELTA = 0.5  # of these two, as in bm25s


class Bm25:
    """BM25 over lower-cased, stemmed words of two letters or more, without stop words.

    `k1` and `b` default to the values customary for passages. `stemmer` is a language of PyStemmer or
    None; `stopwords` a language that bm25s knows, a list of words, or None. A query that shares no
    word with any item scores 0 everywhere; a word that occurs twice in a query counts twice.
    """

    def __init__(
        self,
        k1: float = 0.9,
        b: float = 0.4,
        *,
        stemmer: str | None = "english",
        stopwords: str | Sequence[str] | None = "english",
        method: str = "lucene",
        name: str = "bm25",
    ) -> None:
        if not (math.isfinite(k1) and k1 >= 0):
            raise InputError(f"k1 must be a finite number of at least 0. Got {k1!r} instead.")
        if not 0 <= b <= 1:
            raise InputError(f"b must be between 0 and 1. Got {b!r} instead.")
        if method not in METHODS:
            raise InputError(f"method must be one of {', '.join(METHODS)}. Got {method!r} instead.")
        self.k1, self.b, self.method = k1, b, method
        self.name = check_name(name)
        self.n_items: int | None = None
        self._words = Words(stemmer, stopwords)
        self._postings: Postings | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides a score, as plain values."""
        return {"k1": self.k1, "b": self.b, "method": self.method, **self._words.settings}

    def fit(self, items: Items) -> Self:
        counts = count_stems(self._words.tokenize(items.iter_texts(block=BLOCK)))
        return self.use(self._weigh(counts), len(items))

    def use(self, postings: Postings, n_items: int) -> Self:
        """Be fitted by what another one with the same settings was fitted to."""
        self._postings, self.n_items = postings, n_items
        return self

    @property
    def postings(self) -> Postings:
        """What it was fitted to."""
        check_fitted(self.n_items, self.name)
        assert self._postings is not None
        return self._postings

    def scores(self, query: str) -> Scores:
        """(items,) float32: the query's score with every item."""
        n_items = check_fitted(self.n_items, self.name)
        return self.postings.score(self._words.stems(query), n_items)

    def retrieve(self, queries: Sequence[str], n: int, *, allowed: Mask | None = None) -> list[Proposal]:
        n_items = check_fitted(self.n_items, self.name)
        check_request(n_items, queries, n, allowed)
        return map_queries(lambda query: top_rows(self.scores(query), n, allowed), queries, n_items)

    def _weigh(self, counts: Counts) -> Postings:
        """By the formulas of bm25s, whose own loop over items would take most of the time."""
        scoring, holding = import_bm25s("bm25s.scoring"), np.diff(counts.starts)
        mean = counts.lengths.mean() if len(counts.rows) else 1.0
        settings = {"l_avg": mean, "k1": self.k1, "b": self.b, "delta": DELTA}
        idf_of, share_of = scoring._select_idf_scorer(self.method), scoring._select_tfc_scorer(self.method)
        frequencies = dict(enumerate(holding.tolist()))
        idf = scoring._build_idf_array(frequencies, len(counts.lengths), idf_of)
        absent = np.empty(0, np.float32)
        if self.method in COUNTS_ABSENT:
            absent = scoring._build_nonoccurrence_array(
                frequencies, len(counts.lengths), idf_of, share_of, l_d=mean, **settings
            )
        stems = np.repeat(np.arange(len(idf), dtype=np.int32), holding)
        weights = np.empty(len(stems), np.float32)
        for start in range(0, len(weights), WEIGHED):
            some = slice(start, start + WEIGHED)
            times, lengths = counts.times[some].astype(np.float32), counts.lengths[counts.rows[some]]
            weighed = idf[stems[some]] * share_of(tf_array=times, l_d=lengths, **settings)
            weights[some] = weighed - absent[stems[some]] if len(absent) else weighed
        return Postings(counts.stems, counts.starts, counts.rows, weights, absent)
