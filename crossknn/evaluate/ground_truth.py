"""Exact scores of all query-item pairs: the ground truth of an evaluation, stored on disk and resumed after a kill."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from crossknn._checks import check_engine, check_positive, invalid
from crossknn.engines.local import LOCAL
from crossknn.errors import InputError
from crossknn.items.items import Items
from crossknn.models.fingerprints import is_unnamed
from crossknn.scorers.base import score_pairs
from crossknn.search.results import Hit, Hits
from crossknn.storage.atomic import digest
from crossknn.storage.block_file import FORMAT, BlockFile
from crossknn.types import Engine, Job, Progress, Rows, Scorer, Scores
from crossknn.vectors.ranking import top_rows

STEP: Final = "exact scores"
BLOCK_PAIRS: Final = 2**16  # stored at a time, unless one query has more
CALL_PAIRS: Final = 2**15  # in one call of the scorer


def exact_scores(
    items: Items,
    queries: Sequence[str],
    scorer: Scorer,
    folder: str | Path,
    *,
    block: int | None = None,
    engine: Engine = LOCAL,
    progress: Progress | None = None,
) -> Scores:
    """(queries, items) scores of all pairs, memory-mapped from a file in `folder`.

    The first run makes queries × items calls. An interrupted run is resumed after its last complete block, a finished
    one makes no call; of several concurrent processes one scores while the others wait. Stored scores are verified,
    and damaged ones are computed again.

    Args:
        items: The items.
        queries: The evaluation queries.
        scorer: The cross-encoder.
        folder: May hold many matrices: a file is named by a hash of items, queries and scorer.
        block: Queries stored at a time.
        engine: Where pairs are scored.
        progress: Called after every block.
    """
    if isinstance(queries, str) or not len(queries) or not all(isinstance(query, str) for query in queries):
        raise invalid("queries", "a nonempty list of strings", queries)
    check_engine(engine)
    if is_unnamed(scorer.fingerprint):
        raise InputError("The scorer has no name to store scores under: give function_scorer a fingerprint.")
    if block is not None:
        check_positive("block", block)
    run = _Run(items, queries, scorer, engine, progress)
    file = run.block_file(Path(folder))
    scores = file.load()
    if scores is not None:
        run.report(len(queries))
        return scores
    with file.resume() as missing:
        run.score_missing([query for gap in missing for query in gap], file, block)
    return file.map()


def truth_rows(scores: Scores, k: int) -> list[Rows]:
    """The rows of the `k` largest scores of each query, best first, ties to the lower row."""
    check_positive("k", k)
    return [top_rows(query_scores, k).rows for query_scores in scores]


def truth_hits(items: Items, queries: Sequence[str], scores: Scores, k: int) -> list[Hits]:
    """The same as the hits of exact search, which `compare` takes as ground truth."""
    if scores.shape != (len(queries), len(items)):
        raise invalid("scores", f"of these queries and items, ({len(queries)}, {len(items)})", scores.shape)
    truth = []
    for query, query_scores, rows in zip(queries, scores, truth_rows(scores, k), strict=True):
        found = zip(items.ids_of(rows), query_scores[rows].tolist(), rows.tolist(), strict=True)
        hits = tuple(Hit(id_, score, None, round=1, proposed_by="exact", row=row) for id_, score, row in found)
        truth.append(Hits(query, hits, calls=len(items), rounds=1))
    return truth


@dataclass(frozen=True)
class _Run:
    items: Items
    queries: Sequence[str]
    scorer: Scorer
    engine: Engine
    progress: Progress | None

    def block_file(self, folder: Path) -> BlockFile:
        inputs = {
            "items": self.items.fingerprint,
            "queries": _hash_queries(self.queries),
            "scorer": self.scorer.fingerprint,
        }
        name = digest(json.dumps({"format": FORMAT, **inputs}, sort_keys=True).encode())
        rows, width = len(self.queries), self.items.__len__
        return BlockFile(folder / f"{name}.npy", inputs, rows=rows, width=width, dtype=np.float32)

    def score_missing(self, missing: Sequence[int], file: BlockFile, block: int | None) -> None:
        block = block or max(1, BLOCK_PAIRS // len(self.items))
        done = len(self.queries) - len(missing)
        self.report(done)
        with closing(self._score(missing)) as scored:
            while some := dict(islice(scored, block)):
                file.write(some)
                done += len(some)
                self.report(done)

    def report(self, done: int) -> None:
        if self.progress is not None:
            self.progress(STEP, done * len(self.items), len(self.queries) * len(self.items))

    def _score(self, queries: Sequence[int]) -> Generator[tuple[int, Scores], None, None]:
        """Each query and its scores, (1, items), as they are done.

        Which pairs share a call does not depend on the other queries.
        """
        starts = range(0, len(self.items), CALL_PAIRS)
        parts: dict[int, dict[int, Scores]] = {}  # of unfinished queries, by place
        with closing(self.engine.run(score_pairs, self.scorer, self._jobs(queries, starts))) as scored:
            for number, scores in scored:
                query, place = divmod(number, len(starts))
                found = parts.setdefault(query, {})
                found[place] = scores
                if len(found) == len(starts):
                    del parts[query]
                    yield query, np.concatenate([found[at] for at in range(len(starts))])[None]

    def _jobs(self, queries: Sequence[int], starts: range) -> Iterator[Job]:
        """The texts of each call, numbered by query and by place among the query's calls."""
        for query in queries:
            for place, first in enumerate(starts):
                texts = self.items.texts_of(np.arange(first, min(first + CALL_PAIRS, len(self.items))))
                yield query * len(starts) + place, ([self.queries[query]] * len(texts), texts)


def _hash_queries(queries: Sequence[str]) -> str:
    """Equal for equal texts in the same order."""
    total = blake2b(b"crossknn queries 1", digest_size=16)
    for query in queries:
        text = query.encode("utf-8", "surrogatepass")
        total.update(len(text).to_bytes(8, "little") + text)
    return total.hexdigest()
