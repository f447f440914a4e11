"""Sources of scored lists for a learning: the searches of a service, the score log of a build, a score cache."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.indexing.pair_scoring import TextCodes
from crossknn.indexing.score_matrix import group_positions
from crossknn.indexing.teaching.teach import KnownList
from crossknn.items.items import Items
from crossknn.scorers.cached import SIGNATURE, read_cached_lists
from crossknn.storage.atomic import digest, disk_errors, write_atomic
from crossknn.storage.regular_files import open_regular, read_regular
from crossknn.storage.score_log import LOG_FILE, Chunk, Hashes, ScoreLog, hash_texts
from crossknn.storage.search_log import FACTS, LoggedSearch, parse_search, read_searches, to_line

logger = logging.getLogger(__name__)


def read_scored_lists(
    source: str | Path, queries: Sequence[str], items: Items, *, scorer: str
) -> Iterator[LoggedSearch]:
    """The lists of scored items in a source, for `Index.learn`.

    A score log and a cache hold hashes instead of texts, so only lists of known texts are found.

    Args:
        source: A folder of `crossknn serve --learn`, the work folder of a build, or a file of `Cached`.
        queries: Texts whose lists may be in a score log or a cache, such as `index.queries`. A folder of searches has
            its own, and so has a cache with `keep_queries`.
        items: Those of the index.
        scorer: Fingerprint.

    Raises:
        InputError: If the source is none of these, is of another scorer, or has scores and no list of these texts.
    """
    path = Path(source)
    with disk_errors(path, "it cannot be read"):
        if (path / FACTS).is_file():
            return read_searches(path, scorer=scorer)
        folder = next((one for one in (path / "scores", path) if (one / LOG_FILE).is_file()), None)
        if folder is not None:
            log = ScoreLog.open(folder, scorer=scorer)
            return _match(path, [log.read(name) for name in log.chunks], queries, items)
        if _begins_with(path, SIGNATURE):
            cached = read_cached_lists(path, scorer=scorer)
            return _match(path, [cached.scores], [*queries, *cached.queries], items)
    raise InputError(
        f"{path}: no source of scores. Give a folder of `crossknn serve --learn`, the work folder of a build, or the "
        "file of a score cache."
    )


@contextmanager
def open_scored_lists(
    sources: Sequence[str | Path],
    queries: Sequence[str],
    items: Items,
    *,
    scorer: str,
    work_dir: str | Path,
    key: str = "",
) -> Iterator[list[LoggedSearch]]:
    """The lists of all sources, the same ones until the block has ended; an interrupted one has not.

    A learning that is killed and run again needs the lists it began with, while its own calls, or a service, add to the
    sources: they are kept in a file of the work folder. `key` is of everything else that the learning depends on.
    """
    names = [key, scorer, items.fingerprint, *(str(Path(source).resolve()) for source in sources)]
    path = Path(work_dir) / f"lists-{digest(json.dumps(names).encode())}.jsonl"
    with disk_errors(path, "the lists to learn from cannot be kept"):
        lines = read_kept_lists(path) if path.exists() else None
        if lines is not None:
            logger.warning("%s: an interrupted learning is resumed with its %d lists", path, len(lines))
        else:
            if path.exists():
                logger.warning("%s: damaged; the lists are read from their sources again", path)
            lists = [one for source in sources for one in read_scored_lists(source, queries, items, scorer=scorer)]
            lines = [to_line(*one) for one in lists]
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, b"".join([*lines, _end_of(lines)]), private=True)
    searches = [search for line in lines if (search := parse_search(line)) is not None]
    try:
        yield searches
    except InputError as error:  # which the next run would meet again with the same lists, unless it is of the disk
        if not isinstance(error.__cause__, OSError):
            path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def read_kept_lists(path: Path) -> list[bytes] | None:
    """The lines of a file of lists; None if it is damaged."""
    *lines, end = read_regular(path).splitlines(keepends=True) or [b""]
    return lines if end == _end_of(lines) else None


def _end_of(lines: list[bytes]) -> bytes:
    """The last line of a file of lists."""
    return digest(b"".join(lines)).encode() + b"\n"


def merge_lists(searches: Iterable[LoggedSearch], items: Items) -> list[KnownList]:
    """One list per query, of the items that are there; of a pair that was scored twice, the first score.

    Queries that no encoder takes, scores that are not finite and lists of fewer than two items are left out;
    `InputError` if no list remains.
    """
    valid = [search for search in searches if is_valid_query(search.query)]
    rows = items.rows_of(dict.fromkeys(id_ for search in valid for id_ in search.ids), missing="skip")
    row_of = dict(zip(items.ids_of(rows), rows.tolist(), strict=True))
    merged: dict[str, dict[int, float]] = {}
    for search in valid:
        scores = merged.setdefault(search.query, {})
        for id_, score in zip(search.ids, search.scores, strict=True):
            if id_ in row_of and math.isfinite(score):
                scores.setdefault(row_of[id_], float(score))
    known = [
        KnownList(query, np.array(list(scores), np.int64), np.array(list(scores.values()), np.float32))
        for query, scores in merged.items()
        if len(scores) > 1
    ]
    if not known:
        raise InputError("there must be searches that scored at least two of the index's items, got none.")
    return known


def is_valid_query(query: str) -> bool:
    """Whether a query is neither blank nor invalid Unicode."""
    return bool(query.strip()) and not any("\ud800" <= character <= "\udfff" for character in query)


def _match(path: Path, chunks: Sequence[Chunk], queries: Sequence[str], items: Items) -> Iterator[LoggedSearch]:
    """The lists whose query and items have these texts; `InputError` if there are scores and none matches."""
    chunks = [chunk for chunk in chunks if len(chunk.scores)]
    if not chunks:
        raise InputError(f"{path}: holds no scores yet.")
    of_queries = np.concatenate([chunk.queries for chunk in chunks])
    numbers = _places(queries, of_queries)
    rows = _places(items.texts, np.concatenate([chunk.items for chunk in chunks]))
    scores = np.concatenate([chunk.scores for chunk in chunks])
    if (rows < 0).all():
        raise InputError(f"{path}: none of its {len(scores):,} scores is of the index's items.")
    found = np.flatnonzero((numbers >= 0) & (rows >= 0))
    if not len(found):
        raise InputError(
            f"{path}: holds {len(scores):,} scores of {len(np.unique(of_queries)):,} queries by their hashes, and none "
            "is of the index's train queries. Give the texts of its queries as `queries`."
        )
    return (
        LoggedSearch(queries[int(numbers[places[0]])], items.ids_of(rows[places]), scores[places])
        for positions in group_positions(numbers[found])
        for places in [found[positions]]
    )


def _places(texts: Sequence[str], hashes: Hashes) -> NDArray[np.int64]:
    """The place of the first text with each hash, -1 where there is none."""
    codes = TextCodes(hash_texts(texts))
    first = np.append(np.unique(codes.codes, return_index=True)[1], -1)
    return first[codes.find(hashes)].astype(np.int64)


def _begins_with(path: Path, start: bytes) -> bool:
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(len(start)) == start
