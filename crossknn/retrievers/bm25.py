"""BM25, with the term weights of bm25s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from crossknn._checks import check_choice, invalid
from crossknn.retrievers.analyzer import Analyzer, import_bm25s
from crossknn.retrievers.base import TEXT_BLOCK, ScoringRetriever, check_fitted
from crossknn.retrievers.postings import Postings, TermCounts, count_terms
from crossknn.types import Scores

if TYPE_CHECKING:
    from crossknn.items.items import Items

WEIGHT_BLOCK: Final = 2**20  # postings weighted at once
METHODS: Final = ("lucene", "robertson", "atire", "bm25l", "bm25+")
SHIFTED_METHODS: Final = ("bm25l", "bm25+")  # in which absent terms contribute to an item's score, too
DELTA: Final = 0.5  # of these two, as in bm25s


class Bm25(ScoringRetriever):
    """BM25 over lower-cased, stemmed words of two letters or more, without stop words.

    A query that shares no word with any item scores 0 everywhere; a word that occurs twice in a query counts twice.

    Args:
        k1: Term frequency saturation. The default is customary for passages, as that of `b`.
        b: Length normalization, between 0 and 1.
        stemmer: A language of PyStemmer, or None.
        stopwords: A language that bm25s has stop words for, a list of words, or None.
        method: "lucene", "robertson", "atire", "bm25l" or "bm25+".
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
        super().__init__(name)
        if not (math.isfinite(k1) and k1 >= 0):
            raise invalid("k1", "a finite nonnegative number", k1)
        if not 0 <= b <= 1:
            raise invalid("b", "between 0 and 1", b)
        check_choice("method", method, METHODS)
        self.k1, self.b, self.method = k1, b, method
        self._analyzer = Analyzer(stemmer, stopwords)
        self._postings: Postings  # once fitted

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that determines a score, as plain values."""
        return {"k1": self.k1, "b": self.b, "method": self.method, **self._analyzer.settings}

    def fit(self, items: Items) -> Self:
        counts = count_terms(self._analyzer.tokenize(items.iter_texts(block=TEXT_BLOCK)))
        return self.restore(self._weigh(counts), len(items))

    def restore(self, postings: Postings, n_items: int) -> Self:
        """Use the postings of a fitted retriever with the same settings."""
        self._postings, self.n_items = postings, n_items
        return self

    @property
    def postings(self) -> Postings:
        """The inverted index of the items."""
        check_fitted(self.n_items, self.name)
        return self._postings

    def scores(self, query: str) -> Scores:
        return self.postings.score(self._analyzer.stems(query), self._fitted_items)

    def _weigh(self, counts: TermCounts) -> Postings:
        """Weights by the formulas of bm25s, vectorized over postings instead of its loop over items."""
        scoring, document_frequencies = import_bm25s("bm25s.scoring"), np.diff(counts.starts)
        mean_length = counts.lengths.mean() if len(counts.rows) else 1.0
        settings = {"l_avg": mean_length, "k1": self.k1, "b": self.b, "delta": DELTA}
        idf_of, tf_of = scoring._select_idf_scorer(self.method), scoring._select_tfc_scorer(self.method)
        frequencies = dict(enumerate(document_frequencies.tolist()))
        idf = scoring._build_idf_array(frequencies, len(counts.lengths), idf_of)
        absent = np.empty(0, np.float32)
        if self.method in SHIFTED_METHODS:
            absent = scoring._build_nonoccurrence_array(
                frequencies, len(counts.lengths), idf_of, tf_of, l_d=mean_length, **settings
            )
        stems = np.repeat(np.arange(len(idf), dtype=np.int32), document_frequencies)
        weights = np.empty(len(stems), np.float32)
        for start in range(0, len(weights), WEIGHT_BLOCK):
            block = slice(start, start + WEIGHT_BLOCK)
            tf, lengths = counts.frequencies[block].astype(np.float32), counts.lengths[counts.rows[block]]
            weighted = idf[stems[block]] * tf_of(tf_array=tf, l_d=lengths, **settings)
            weights[block] = weighted - absent[stems[block]] if len(absent) else weighted
        return Postings(counts.stems, counts.starts, counts.rows, weights, absent)
