"""Matching records: known answers, shared scores, budgets, equal texts, resuming after a kill, and files."""

import csv
import json
import os
import signal
import threading
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

import crossknn as ck
from crossknn.errors import InputError
from crossknn.matching.pair_scores import ScoreTable
from crossknn.search.calibration import ScoreCalibration
from crossknn.testing import MatrixScorer
from tests.kills import forking
from tests.matching.worlds import THRESHOLD, Table

SIZES = [3] * 12 + [1] * 30 + [6]


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.make(SIZES)


def pairs_of(matches: ck.Matches) -> set[tuple[int, int]]:
    return {(one.left_row, one.right_row) for one in matches}


def unordered(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(min(pair), max(pair)) for pair in pairs]


def test_a_self_join_scores_every_pair_once_and_the_earlier_record_as_the_query(table):
    models = table.models
    matches = ck.match(table.items, threshold=THRESHOLD, budget=200, **models)
    asked = models["scorer"].pairs
    assert len(asked) == len(set(unordered(asked))) == matches.calls == matches.new_calls
    assert all(query < item for query, item in asked)
    assert pairs_of(matches) == table.true_pairs
    assert [one.score for one in matches] == sorted((one.score for one in matches), reverse=True)
    assert all(one.score == table.matrix[one.left_row, one.right_row] for one in matches)


def test_a_small_budget_finds_most_pairs_and_goes_to_likely_ones(table):
    found = pairs_of(ck.match(table.items, threshold=THRESHOLD, budget=10, sample=0, **table.models))
    at_random = 10 * len(table.items) / (len(table.items) * (len(table.items) - 1) / 2)
    assert len(found & table.true_pairs) > 2 * at_random * len(table.true_pairs)
    assert found <= table.true_pairs


@pytest.mark.parametrize("limits", [{"budget": 3}, {"max_calls": 101}, {"budget": 5, "max_calls": 17}])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("encoder", [True, False])
def test_no_budget_is_ever_exceeded(table, limits, symmetric, encoder):
    models = table.models if encoder else {"scorer": table.scorer, "progress": False}
    matches = ck.match(table.items, threshold=THRESHOLD, symmetric=symmetric, **limits, **models)
    most = min(limits.get("max_calls", 1_000), len(table.items) * limits.get("budget", 1_000))
    assert 0 < matches.calls == models["scorer"].calls <= most


def test_no_record_has_more_calls_than_its_own_limit(table):
    models = table.models
    ck.match(table.items, table_of(table), threshold=THRESHOLD, budget=20, max_per_record=4, sample=0, **models)
    assert max(np.bincount([query for query, _ in models["scorer"].pairs])) == 4


def table_of(table: Table) -> ck.Items:
    return ck.Items(list(table.items.texts), ids=[f"other-{row}" for row in range(len(table.items))])


def test_symmetric_scores_are_the_mean_of_both_directions_and_cost_two_calls(table):
    models = table.models
    matches = ck.match(table.items, threshold=THRESHOLD, symmetric=True, budget=400, **models)
    asked = models["scorer"].pairs
    assert len(asked) == len(set(asked)) == matches.calls
    assert set(asked) == {(item, query) for query, item in asked}
    mean = (table.matrix + table.matrix.T) / 2
    assert np.allclose([one.score for one in matches], [mean[one.left_row, one.right_row] for one in matches])
    assert len(matches) == int((np.triu(mean, 1) * (mean >= THRESHOLD) > 0).sum())


def test_two_tables_are_matched_with_the_left_record_as_the_query(table):
    rows = np.arange(10)
    left, models = table.items.take(rows), table.models
    matches = ck.match(left, table_of(table), threshold=THRESHOLD, budget=len(table.items), **models)
    assert pairs_of(matches) == set(map(tuple, np.argwhere(table.matrix[rows] >= THRESHOLD).tolist()))
    assert {one.left for one in matches} == {f"id-{row}" for row in rows}
    assert {one.right[:6] for one in matches} == {"other-"}
    assert {query for query, _ in models["scorer"].pairs} == set(rows.tolist())


def test_k_keeps_the_best_matches_of_every_record(table):
    left = table.items.take(np.arange(10))
    matches = ck.match(left, table_of(table), k=1, budget=len(table.items), **table.models)
    assert [one.right_row for one in sorted(matches, key=lambda one: one.left_row)] == [
        int(line.argmax()) for line in table.matrix[:10]
    ]
    assert matches.recall is None


def test_records_of_equal_texts_share_their_scores_and_match_each_other(table):
    texts = [*table.items.texts, "record 0", "record 0"]
    items, models = ck.Items(texts), table.models
    models["vectors"] = np.concatenate([table.vectors, table.vectors[[0, 0]]])
    matches = ck.match(items, threshold=THRESHOLD, budget=200, **models)
    last = len(texts)
    like = [0, last - 2, last - 1]
    expected = set(table.true_pairs) | {(0, last - 2), (0, last - 1), (last - 2, last - 1)}
    for one, other in table.true_pairs:
        if 0 in (one, other):
            expected |= {tuple(sorted((row, one + other))) for row in like}
    assert pairs_of(matches) == expected
    assert len(models["scorer"].pairs) == len(set(unordered(models["scorer"].pairs)))


def test_blank_records_match_none(table):
    items = ck.Items([*table.items.texts, "", " "])
    models = table.models | {"vectors": np.concatenate([table.vectors, table.vectors[:2]])}
    assert pairs_of(ck.match(items, threshold=THRESHOLD, budget=200, **models)) == table.true_pairs


def test_one_record_has_no_match():
    items = ck.Items(["alone"])
    matches = ck.match(items, threshold=0.0, scorer=ck.function_scorer(lambda pairs: [1.0] * len(pairs)))
    assert (len(matches), matches.calls, matches.clusters()) == (0, 0, [])


def test_without_an_encoder_bm25_proposes():
    texts = ["red apple pie", "apple pie, red", "blue whale", "a whale that is blue", "gravel"]
    scorer = ck.function_scorer(lambda pairs: [len(set(q.split()) & set(i.split())) for q, i in pairs])
    matches = ck.match(ck.Items(texts), threshold=2, budget=2, sample=0, scorer=scorer)
    assert pairs_of(matches) == {(0, 1), (2, 3)}


def test_probabilities_come_from_the_calibration(table, tmp_path):
    models = table.models
    fit = {"slope": 2.0, "intercept": -1.0, "relevant": 10, "irrelevant": 10}
    ScoreCalibration(**fit, scorer=models["scorer"].fingerprint).save(tmp_path / "fit.json")
    matches = ck.match(table.items, min_probability=0.5, budget=200, calibration=tmp_path / "fit.json", **models)
    chances = [one.probability for one in matches]
    assert min(chances) >= 0.5
    assert min(one.score for one in matches) >= 0.5
    assert len(matches) == int((np.triu(table.matrix, 1) * (table.matrix >= 0.5) > 0).sum())
    with pytest.raises(InputError, match="min_probability"):
        ck.match(table.items, min_probability=0.5, **table.models)


def test_a_deadline_brings_back_what_was_found(table):
    models = table.models
    slow = ck.function_scorer(
        lambda pairs: (time.sleep(0.01 * len(pairs)), models["scorer"].score(*zip(*pairs, strict=True)))[1]
    )
    matches = ck.match(table.items, threshold=THRESHOLD, budget=50, deadline=0.4, **(models | {"scorer": slow}))
    assert matches.stopped == "deadline"
    assert matches.calls < 40 * len(table.items)
    assert matches.recall is None
    assert pairs_of(matches) <= table.true_pairs


class DyingScorer:
    """Writes down every pair that is paid for, and kills its process after some calls."""

    fingerprint = "dying"

    def __init__(self, table: Table, log, calls: int | None = None) -> None:
        self.scorer, self.log, self.calls = table.scorer, log, calls

    def score(self, queries, items):
        with self.log.open("a") as file:
            file.writelines(f"{query}|{item}\n" for query, item in zip(queries, items, strict=True))
        if self.calls is not None:
            self.calls -= 1
            if self.calls < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.scorer.score(queries, items)


@forking
def test_a_killed_run_is_resumed_with_an_equal_result_and_pays_for_no_stored_pair_twice(table, tmp_path):
    log, cache = tmp_path / "paid", tmp_path / "scores.db"

    def run(cache, calls=None):
        models = table.models | {"scorer": DyingScorer(table, log, calls)}
        return ck.match(table.items, threshold=THRESHOLD, budget=20, cache=cache, **models)

    child = os.fork()
    if not child:
        run(cache, calls=2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = log.read_text().splitlines()
    resumed = run(cache)
    paid = log.read_text().splitlines()
    lost = set(before) & set(paid[len(before) :])
    assert len(paid) - len(set(paid)) == len(lost)
    assert len(lost) < len(before)  # what the killed call was scoring
    assert resumed.new_calls == len(paid) - len(before)
    whole = run(tmp_path / "other.db")
    assert list(whole) == list(resumed)
    assert whole.recall == resumed.recall
    assert whole.calls == resumed.calls
    assert run(cache).new_calls == 0


def test_expected_recall_is_right_on_average(table):
    """Over many samples, where most pairs are found."""
    estimates, true = [], []
    for seed in range(20):
        matches = ck.match(table.items, threshold=THRESHOLD, max_calls=700, sample=300, seed=seed, **table.models)
        true.append(len(pairs_of(matches) & table.true_pairs) / len(table.true_pairs))
        estimates.append(matches.recall)
    assert abs(np.mean([one.recall for one in estimates]) - np.mean(true)) < 0.1
    covered = [one.low - 1e-9 <= share <= one.high + 1e-9 for one, share in zip(estimates, true, strict=True)]
    assert np.mean(covered) >= 0.8


def test_expected_recall_of_all_pairs_is_one(table):
    matches = ck.match(table.items, threshold=THRESHOLD, budget=200, **table.models)
    assert matches.recall is None or matches.recall.recall == 1.0


def test_clusters_are_components_or_pivots():
    matrix = np.full((6, 6), -1.0)
    for one, other in [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5)]:  # two triangles and a bridge
        matrix[one, other] = 1.0
    texts = [f"record {row}" for row in range(6)]
    scorer = MatrixScorer(matrix, queries=texts, items=texts)
    matches = ck.match(ck.Items(texts, ids=list("abcdef")), threshold=0.0, budget=20, sample=0, scorer=scorer)
    named = [[id_ for _, id_ in group] for group in matches.clusters()]
    assert named == [["a", "b", "c", "d", "e", "f"]]
    pivots = sorted(sorted(id_ for _, id_ in group) for group in matches.clusters("pivot"))
    assert pivots == [["a", "b", "c"], ["d", "e", "f"]]
    with pytest.raises(InputError, match="components"):
        matches.clusters("average")


def test_pairs_and_clusters_are_written(table, tmp_path):
    matches = ck.match(table.items, threshold=THRESHOLD, budget=200, sample=0, **table.models)
    for suffix in (".jsonl", ".csv", ".parquet"):
        matches.write(tmp_path / f"pairs{suffix}")
        matches.write_clusters(tmp_path / f"clusters{suffix}")
    lines = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [(one["left"], one["right"]) for one in lines] == [(one.left, one.right) for one in matches]
    assert lines[0]["left_fields"] == {"group": table.items.fields_of([matches[0].left_row])[0]["group"]}
    with (tmp_path / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(one["score"]) for one in rows] == [one.score for one in matches]
    assert pq.read_table(tmp_path / "pairs.parquet").column_names == [
        *("left", "right", "score", "left_group", "right_group")
    ]
    clusters = pq.read_table(tmp_path / "clusters.parquet").to_pylist()
    assert {one["cluster"] for one in clusters} == set(range(len(matches.clusters())))
    with pytest.raises(InputError, match=r"\.jsonl"):
        matches.write(tmp_path / "pairs.txt")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "threshold"),
        ({"threshold": 1.0, "min_probability": 0.5}, "either"),
        ({"threshold": float("nan")}, "threshold"),
        ({"threshold": 0.0, "budget": 0}, "budget"),
        ({"threshold": 0.0, "sample": -1}, "sample"),
        ({"k": 0}, "`k`"),
    ],
)
def test_wrong_options_are_refused_before_a_call(table, options, words):
    models = table.models
    with pytest.raises(InputError, match=words):
        ck.match(table.items, **options, **models)
    assert models["scorer"].calls == 0


def test_a_table_is_not_matched_with_itself_as_the_other(table):
    with pytest.raises(InputError, match="other"):
        ck.match(table.items, table.items, threshold=0.0, **table.models)


def test_a_score_table_finds_what_was_added():
    rng, table, known = np.random.default_rng(0), ScoreTable(), {}
    for keys in np.split(rng.permutation(1_000), sorted(rng.integers(0, 1_000, 30))):
        scores = rng.normal(size=len(keys)).astype(np.float32)
        table.add(keys, scores)
        known |= dict(zip(keys.tolist(), scores.tolist(), strict=True))
    keys = np.arange(-5, 1_005)
    assert np.array_equal(table.find(keys), [known.get(key, np.nan) for key in keys.tolist()], equal_nan=True)
    assert len(table) == 1_000


def test_two_tables_can_be_matched_in_both_directions(table):
    left, models = table.items.take(np.arange(8)), table.models
    matches = ck.match(left, table_of(table), threshold=THRESHOLD, symmetric=True, budget=200, **models)
    mean = ((table.matrix + table.matrix.T) / 2)[:8]
    assert pairs_of(matches) == set(map(tuple, np.argwhere(mean >= THRESHOLD).tolist()))
    assert matches.calls == len(models["scorer"].pairs)


def test_a_cancelled_search_makes_no_call(table):
    cancelled, models = threading.Event(), table.models
    cancelled.set()
    matches = ck.match(table.items, threshold=THRESHOLD, cancelled=cancelled, **models)
    assert (matches.stopped, matches.calls, models["scorer"].calls) == ("cancelled", 0, 0)


def test_an_index_brings_its_prior(table):
    models = table.models
    index = ck.Index.build(
        table.items,
        scorer=models["scorer"],
        encoder=table.item_encoder,
        queries=list(table.items.texts)[:30],
        factors=None,
        teach=False,
        prior=True,
        progress=False,
    )
    assert index.prior is not None
    search = {"scorer": models["scorer"], "encoder": table.item_encoder, "progress": False}
    found = ck.match(index, threshold=THRESHOLD, budget=200, **search)
    assert pairs_of(found) == table.true_pairs
