"""Exact scores of all query-item pairs: the ground truth of an evaluation, stored on disk and resumed after a kill."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
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
    and damaged ones are computed again. The folder may hold many matrices: a file is named by a hash of items, queries
    and scorer. `block` queries are stored at a time, each block followed by a call of `progress`.
    """
    if isinstance(queries, str) or not len(queries) or not all(isinstance(query, str) for query in queries):
        raise invalid("queries", "a nonempty list of strings", queries)
    check_engine(engine)
    if is_unnamed(scorer.fingerprint):
        raise InputError("The scorer has no name to store scores under: give function_scorer a fingerprint.")
    if block is not None:
        check_positive("block", block)

    def report(done: int) -> None:
        if progress is not None:
            progress(STEP, done * len(items), len(queries) * len(items))

    file = _block_file(items, queries, scorer, Path(folder))
    scores = file.load()
    if scores is not None:
        report(len(queries))
        return scores
    with file.resume() as gaps:
        missing = [query for gap in gaps for query in gap]
        done = len(queries) - len(missing)
        report(done)
        with closing(_score(items, queries, missing, scorer, engine)) as scored:
            while some := dict(islice(scored, block or max(1, BLOCK_PAIRS // len(items)))):
                file.write(some)
                done += len(some)
                report(done)
    return file.map()


def count_unscored(items: Items, queries: Sequence[str], scorer: Scorer, folder: str | Path) -> int:
    """The calls that `exact_scores` has left to make."""
    return (len(queries) - _block_file(items, queries, scorer, Path(folder)).count_rows()) * len(items)


def _block_file(items: Items, queries: Sequence[str], scorer: Scorer, folder: Path) -> BlockFile:
    """The file of these scores, named by a hash of what they depend on."""
    texts = blake2b(b"crossknn queries 1", digest_size=16)
    for query in queries:
        text = query.encode("utf-8", "surrogatepass")
        texts.update(len(text).to_bytes(8, "little") + text)
    inputs = {"items": items.fingerprint, "queries": texts.hexdigest(), "scorer": scorer.fingerprint}
    name = digest(json.dumps({"format": FORMAT, **inputs}, sort_keys=True).encode())
    return BlockFile(folder / f"{name}.npy", inputs, rows=len(queries), width=items.__len__, dtype=np.float32)


def _score(
    items: Items, queries: Sequence[str], missing: Sequence[int], scorer: Scorer, engine: Engine
) -> Generator[tuple[int, Scores], None, None]:
    """Each of the missing queries and its scores, (1, items), as they are done.

    Which pairs share a call does not depend on the other queries.
    """
    starts = range(0, len(items), CALL_PAIRS)

    def jobs() -> Iterator[Job]:
        """The texts of each call, numbered by query and by place among the query's calls."""
        for query in missing:
            for place, first in enumerate(starts):
                texts = items.texts_of(np.arange(first, min(first + CALL_PAIRS, len(items))))
                yield query * len(starts) + place, ([queries[query]] * len(texts), texts)

    parts: dict[int, dict[int, Scores]] = {}  # of unfinished queries, by place
    with closing(engine.run(score_pairs, scorer, jobs())) as scored:
        for number, scores in scored:
            query, place = divmod(number, len(starts))
            found = parts.setdefault(query, {})
            found[place] = scores
            if len(found) == len(starts):
                del parts[query]
                yield query, np.concatenate([found[at] for at in range(len(starts))])[None]


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
