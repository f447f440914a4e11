"""Which share of matching pairs is found: `match` against blocking and reranking, at equal numbers of calls?

    python -m benchmarks.matching --packages <debian-packages folder> --scorer <cross-encoder> --matrix <score folder> …

A self-join of package names with their short descriptions: a pair is judged a match if both packages describe the same
software, which their long descriptions, not shown to any model, tell. All pairs are scored once, for the truth. And a
match of two tables, titles of papers to abstracts, in a folder of exact scores. Blocking scores the best candidates of
every record by BM25, vectors or both, rank by rank, or the most similar pairs of all, until the calls are spent.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from benchmarks.result_files import write_result
from crossknn.evaluate.tasks import read_matrix
from crossknn.scorers.base import score_pairs
from crossknn.types import Encoder, Retriever, Rows, Scorer

MEAN_CALLS = (10, 20, 50)  # per record
MATCHES_PER_RECORD = (1, 5, 20)  # that the cross-encoder's own thresholds leave, on average
SHOWN_CHARACTERS = 120  # of long descriptions, by which packages of one software are known
LARGEST_GROUP = 8
TRUTH_BATCH = 4096


@dataclass(frozen=True)
class Setting:
    """Tables, models, and all scores: −∞ in a self-join for pairs whose query is not the earlier record."""

    name: str
    left: ck.Items
    right: ck.Items
    scorer: Scorer
    encoder: Encoder
    retrievers: Sequence[Retriever]
    scores: np.ndarray  # (left, right)
    judged: np.ndarray  # (left, right), in the same half

    @property
    def self_join(self) -> bool:
        return self.left is self.right


def main() -> None:
    options = read_options()
    report: dict[str, Any] = {"sets": []}
    makers: list[Callable[[], Setting]] = [partial(matrix_setting, folder) for folder in options.matrix]
    makers += [partial(package_setting, options)] if options.packages else []
    for make in makers:
        report["sets"].append(measure(make()))
        write_result(options.out, report, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--records", type=int, default=800)
    parser.add_argument("--scorer", default="embedded")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--encoder", default="embedded")
    parser.add_argument("--matrix", type=Path, nargs="*", default=[])
    parser.add_argument("--work", type=Path, default=Path(".work"), help="keeps exact scores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/matching.json"))
    return parser.parse_args()


def package_setting(options: argparse.Namespace) -> Setting:
    """Packages of software that has some in several sections, and as many others."""
    names, texts, software = draw_packages(options.packages / "corpus.jsonl", options.records)
    items = ck.Items(texts, ids=names)
    options.work.mkdir(parents=True, exist_ok=True)
    scorer = ck.Cached(
        ck.CrossEncoder(options.scorer, device=options.device, dtype=options.dtype), options.work / "matching.db"
    )
    left, right = np.triu_indices(len(items), 1)
    scores = np.full((len(items), len(items)), -np.inf, np.float32)
    for start in range(0, len(left), TRUTH_BATCH):
        one, other = left[start : start + TRUTH_BATCH], right[start : start + TRUTH_BATCH]
        scores[one, other] = score_pairs(scorer, items.texts_of(one), items.texts_of(other))
    judged = np.triu(software[:, None] == software[None], 1)
    encoder = ck.SentenceEncoder(options.encoder, device=options.device)
    return Setting("debian-packages", items, items, scorer, encoder, (), scores, judged)


def draw_packages(path: Path, count: int) -> tuple[list[str], list[str], np.ndarray]:
    """Names, shown texts, and the number of each package's software."""
    groups: dict[str, list[dict[str, str]]] = defaultdict(list)
    with path.open(encoding="utf-8") as lines:
        for package in map(json.loads, lines):
            short, _, long = package["text"].partition(". ")
            if len(long) >= SHOWN_CHARACTERS:
                shown = f"{package['_id']}: {short}"
                groups[long[:SHOWN_CHARACTERS].lower()].append({**package, "shown": shown})
    rng = random.Random(0)
    several = [
        one for one in groups.values() if 2 <= len(one) <= LARGEST_GROUP and len({p["section"] for p in one}) > 1
    ]
    single = [one for one in groups.values() if len(one) == 1]
    chosen: list[tuple[int, dict[str, str]]] = []
    for pool, size in ((several, count // 2), (single, count)):
        for group in rng.sample(pool, len(pool)):
            if len(chosen) + len(group) > size:
                break
            number = len({software for software, _ in chosen})
            chosen += [(number, package) for package in group]
    rng.shuffle(chosen)
    packages = [package for _, package in chosen]
    return [one["_id"] for one in packages], [one["shown"] for one in packages], np.array([n for n, _ in chosen])


def matrix_setting(folder: Path) -> Setting:
    """The test queries of a folder of exact scores as one table, its items as the other."""
    task = read_matrix(folder)
    assert task.judged is not None
    left = ck.Items(list(task.queries))
    judged = np.zeros(task.scores.shape, np.bool_)
    places = {query: place for place, query in enumerate(task.queries)}
    for query, relevant in zip(task.judged.texts, task.judged.relevant, strict=True):
        judged[places[query], task.items.rows_of(list(relevant))] = True
    scores = task.scores.astype(np.float32)
    return Setting(task.name, left, task.items, task.scorer, task.encoder, task.retrievers, scores, judged)


def measure(setting: Setting) -> dict[str, Any]:
    records = len(setting.left)
    finite = setting.scores[np.isfinite(setting.scores)]
    report: dict[str, Any] = {
        "set": setting.name,
        "records": [records, len(setting.right)],
        "pairs": int(finite.size),
        "judged": int(setting.judged.sum()),
        "thresholds": [],
    }
    rankings = {name: list(find(setting)) for name, find in RANKINGS.items()}
    for mean in MATCHES_PER_RECORD:
        pairs = mean * records // (2 if setting.self_join else 1)
        threshold = float(np.partition(finite, -pairs)[-pairs])
        true = setting.scores >= threshold
        judged = true & setting.judged
        found = {
            "matches_per_record": mean,
            "threshold": round(threshold, 3),
            "true": int(true.sum()),
            "precision": round(float(judged.sum() / true.sum()), 4),
            "judged_above": int(judged.sum()),
            "calls": [measure_calls(setting, rankings, threshold, true, judged, calls) for calls in MEAN_CALLS],
        }
        report["thresholds"].append(found)
        print(json.dumps(found), flush=True)
    return report


def measure_calls(
    setting: Setting,
    rankings: dict[str, list[tuple[int, int]]],
    threshold: float,
    true: np.ndarray,
    judged: np.ndarray,
    mean: int,
) -> dict[str, Any]:
    """The share of the cross-encoder's pairs and of the judged ones among them that each way finds."""
    limit = mean * len(setting.left)
    common = {"scorer": setting.scorer, "encoder": setting.encoder, "retrievers": setting.retrievers}
    other = None if setting.self_join else setting.right
    matches = ck.match(setting.left, other, threshold=threshold, max_calls=limit, sample=0, progress=False, **common)
    found = {"match": (matches.left_rows, matches.right_rows)}
    for name, ranking in rankings.items():
        chosen = np.array(ranking[: matches.calls])
        found[name] = chosen[:, 0], chosen[:, 1]
    estimated = ck.match(setting.left, other, threshold=threshold, max_calls=limit, progress=False, **common)
    assert estimated.recall is not None
    recall = float(true[estimated.left_rows, estimated.right_rows].sum() / true.sum())
    return {
        "mean": mean,
        "calls": matches.calls,
        "true_found": {name: share(true, *rows) for name, rows in found.items()},
        "judged_found": {name: share(judged, *rows) for name, rows in found.items()},
        "estimate": {
            "calls": estimated.recall.calls,
            "recall": round(recall, 4),
            "estimated": round(estimated.recall.recall, 4),
            "interval": [round(estimated.recall.low, 4), round(estimated.recall.high, 4)],
            "seconds": round(estimated.seconds, 1),
        },
        "seconds": round(matches.seconds, 1),
    }


def share(wanted: np.ndarray, left: Rows, right: Rows) -> float:
    return round(float(wanted[left, right].sum() / max(1, wanted.sum())), 4)


def block(retriever: str) -> Callable[[Setting], Iterator[tuple[int, int]]]:
    """Distinct pairs by their rank in the lists of all records, the best first."""

    def rank(setting: Setting) -> Iterator[tuple[int, int]]:
        searcher = ck.Searcher(
            setting.right, scorer=setting.scorer, encoder=setting.encoder, retrievers=setting.retrievers, progress=False
        )
        depth = min(len(setting.right), 2 * max(MEAN_CALLS) + 2)
        lists = searcher.retriever(retriever).retrieve(list(setting.left.texts), depth)
        seen: set[tuple[int, int]] = set()
        for place in range(depth):
            for record, one in enumerate(lists):
                if place < len(one) and not (setting.self_join and record == one.rows[place]):
                    row = int(one.rows[place])
                    pair = (min(record, row), max(record, row)) if setting.self_join else (record, row)
                    if pair not in seen:
                        seen.add(pair)
                        yield pair

    return rank


def most_similar(setting: Setting) -> Iterator[tuple[int, int]]:
    """All pairs by the inner product of their vectors, as far as the most calls go."""
    left = setting.encoder.encode_queries(list(setting.left.texts))
    products = left @ setting.encoder.encode_items(list(setting.right.texts)).T
    if setting.self_join:
        products[np.tril_indices(len(products))] = -np.inf
    count = min(max(MEAN_CALLS) * len(setting.left), products.size)
    best = np.argsort(-products, axis=None, kind="stable")[:count]
    yield from zip(*(rows.tolist() for rows in np.unravel_index(best, products.shape)), strict=True)


RANKINGS = {
    "bm25": block("bm25"),
    "dense": block("dense"),
    "fused": block("fused"),
    "most similar pairs": most_similar,
}

if __name__ == "__main__":
    main()
