"""`Index`: build, save, load, verify, add, remove, search, and invalid input."""

import json
import re
import shutil
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.encoders.sentence import SentenceEncoder
from crossknn.errors import InputError, ScorerError
from crossknn.indexing.factorization.factors import Cur
from crossknn.indexing.factorization.inductive import Inductive
from crossknn.indexing.factorization.transductive import Transductive
from crossknn.indexing.index import Index
from crossknn.indexing.report import BuildReport, Coverage
from crossknn.indexing.sampling import PerItem, PerQuery
from crossknn.items.items import Items
from crossknn.scorers.base import function_scorer
from crossknn.search.searcher import Searcher
from crossknn.storage.atomic_dir import read_folder, write_folder
from crossknn.strategies.axn import Axn
from crossknn.strategies.exact import Exact
from crossknn.strategies.normalization import Normalization
from crossknn.strategies.rerank import Rerank

DIM = 6
RNG = np.random.default_rng(0)
WORDS = {f"word{number}": number for number in range(40)}
TRUE = RNG.normal(size=(len(WORDS), DIM))  # word vectors of the cross-encoder
NOISY = TRUE + 0.5 * RNG.normal(size=TRUE.shape)  # and of the dual encoder

ALS = Transductive(method="als")
KINDS = {
    "encoder": None,
    "als": ALS,
    "adamw": Transductive(learning_rate=0.05, epochs=30),
    "random": Transductive(method="als", init="random", dim=DIM + 1, ridge=0.1, epochs=40, patience=10),
    "inductive": Inductive(learning_rate=0.01),
    "cur": Cur(anchors=12),
}
STRATEGIES = [
    Rerank(budget=30, retriever="dense"),
    Axn(budget=30, rounds=3, mix=0.0, first="bm25"),
    Axn(budget=30, rounds=3, mix=0.5, first="fused"),
]
every_kind = pytest.mark.parametrize("kind", KINDS)


def embed(table, texts):
    """(texts, dim) the sum of the vectors of a text's words."""
    rows = [[WORDS[word] for word in text.split() if word in WORDS] for text in texts]
    return np.array([table[some].sum(axis=0) for some in rows], np.float32)


def score_all(queries, items):
    """(queries, items) the true scores: `u·v`, stretched and moved as logits are."""
    return 4 * embed(TRUE, queries) @ embed(TRUE, items).T - 6


def write_texts(count, *, words, seed):
    rng, found = np.random.default_rng(seed), {}
    while len(found) < count:
        found[" ".join(f"word{number}" for number in rng.choice(len(WORDS), words, replace=False))] = None
    return list(found)


class Setup:
    """120 items and 30 train queries of a few words, a scorer that records its calls, and an encoder."""

    def __init__(self, *, items=120, queries=30, scorer="true", encoder="noisy"):
        self.texts = write_texts(items, words=4, seed=1)
        fields = {"size": list(range(items)), "tags": [["even"] if row % 2 == 0 else None for row in range(items)]}
        self.items = Items(self.texts, ids=[f"id-{row}" for row in range(items)], fields=fields)
        self.queries = write_texts(queries, words=3, seed=2)
        self.new_queries = write_texts(5, words=3, seed=3)
        new = {"size": [0.5, None, 1.5], "by": ["me", "you", None]}
        self.new_items = Items(write_texts(3, words=5, seed=4), ids=["new-0", "new-1", "new-2"], fields=new)
        self.scored, self.batches, self.given = [], [], {}
        self.scorer = function_scorer(self._score, fingerprint=scorer)
        self.encoder = function_encoder(lambda texts: embed(NOISY, texts) / 4, fingerprint=encoder)

    def _score(self, pairs):
        self.scored += pairs
        self.batches.append(len(pairs))
        left, right = (embed(TRUE, texts) for texts in zip(*pairs, strict=True))
        scores = 4 * np.einsum("ij,ij->i", left, right) - 6
        self.given.update(zip(pairs, scores.tolist(), strict=True))
        return scores

    def build(self, factors=ALS, **options):
        models = {"scorer": self.scorer, "encoder": self.encoder}
        settings = {**models, "queries": self.queries, "prior": False, **options}
        return Index.build(settings.pop("items", self.items), factors=factors, **settings)

    def build_kind(self, kind):
        sampling = PerItem(queries=12) if kind == "random" else None
        return self.build(KINDS[kind], sampling=sampling)

    def add(self, index, items=None, **options):
        self.scored.clear()
        models = {"scorer": self.scorer, "encoder": self.encoder}
        return index.add(self.new_items if items is None else items, **{**models, **options})

    def searcher(self, index, **options):
        return Searcher(index, **{"scorer": self.scorer, "encoder": self.encoder, **options})

    def scored_pairs(self, queries=None, texts=None):
        """(pairs,) query numbers and item rows that were scored."""
        numbers = {text: number for number, text in enumerate(self.queries if queries is None else queries)}
        rows = {text: row for row, text in enumerate(self.texts if texts is None else texts)}
        return np.array([(numbers[query], rows[text]) for query, text in self.scored]).T


def arrays_of(index):
    factors = {} if index.factors is None else index.factors.arrays()
    return {"vectors": index.vectors, **factors}


def assert_same_index(left, right, *, report=True):
    """Equal to the bit, except for times and calls made."""
    assert list(left.items.ids) == list(right.items.ids)
    assert list(left.items.texts) == list(right.items.texts)
    assert list(left.queries) == list(right.queries)
    assert left.normalization == right.normalization
    assert (left.scorer, left.encoder) == (right.scorer, right.encoder)
    own, others = arrays_of(left), arrays_of(right)
    assert own.keys() == others.keys()
    for name, array in own.items():
        assert (array.dtype, array.shape) == (others[name].dtype, others[name].shape)
        assert array.tobytes() == others[name].tobytes(), name
    if left.factors is not None:
        assert left.factors.facts() == right.factors.facts()
    if report:
        assert left.report == right.report


def found(searcher, queries, strategy, k=10):
    return [hits.hits for hits in searcher.search_many(queries, k=k, strategy=strategy)]


# --- building


@pytest.mark.parametrize("kind", ["als", "adamw", "random", "inductive"])
def test_fitted_vectors_estimate_unseen_scores_better_than_the_encoders(kind):
    setup = Setup()
    index = setup.build_kind(kind)
    numbers, rows = setup.scored_pairs()
    unseen = np.ones((30, 120), np.bool_)
    unseen[numbers, rows] = False
    truth = index.normalization.normalize(score_all(setup.queries, setup.texts))[unseen]
    encoded, factors = setup.encoder.encode_queries(setup.queries), index.factors
    left = factors.train if factors.nets is None else factors.query_vectors(encoded)
    errors = [
        np.square((queries @ items.astype(np.float32).T)[unseen] - truth).mean()
        for queries, items in ((left, factors.items), (encoded, index.vectors))
    ]
    assert errors[0] < 0.9 * errors[1]
    assert index.report.fit["held_out_error"] < index.report.fit["held_out_error_before"]
    assert factors.kind == ("inductive" if kind == "inductive" else "transductive")
    assert factors.with_encoder == (kind != "random")
    assert factors.items.dtype == index.vectors.dtype == np.float16


def test_without_factors_there_are_the_encoders_vectors_and_a_normalization():
    setup = Setup(queries=130)
    index = setup.build(None)
    assert index.factors is None
    assert np.array_equal(index.vectors, setup.encoder.encode_items(setup.texts).astype(np.float16))
    assert len(index.queries) == 100
    assert set(index.queries) < set(setup.queries)
    assert len(setup.scored) == index.report.calls == 100 * 100


def test_an_index_with_cur_vectors_is_reranked_by_default():
    setup = Setup()
    searcher = setup.searcher(setup.build_kind("cur"))
    hits = searcher.search(setup.new_queries[0], k=3, budget=20)
    assert hits.hits == searcher.search(setup.new_queries[0], k=3, strategy=Rerank(budget=20)).hits


def test_cur_vectors_are_the_scores_of_the_anchors():
    setup = Setup()
    index = setup.build(Cur(anchors=12))
    assert len(index.queries) == 12
    assert set(index.queries) < set(setup.queries)
    assert index.factors.items.dtype == np.float32
    for row, text in enumerate(setup.texts):
        assert index.factors.items[row].tolist() == [setup.given[query, text] for query in index.queries]


def test_alpha_and_beta_are_those_of_the_entries_of_a_hundred_queries():
    setup = Setup(queries=130)
    index = setup.build(sampling=PerItem(queries=8), seed=5)
    numbers, rows = setup.scored_pairs()
    chosen = np.random.default_rng(5).permutation(np.unique(numbers))[:100]
    mine = np.isin(numbers, chosen)
    numbers, rows = numbers[mine], rows[mine]
    scores = score_all(setup.queries, setup.texts)[numbers, rows]
    estimates = (setup.encoder.encode_queries(setup.queries) @ index.vectors.astype(np.float32).T)[numbers, rows]
    beta = estimates.std() / scores.std()
    assert len(np.unique(numbers)) == 100
    assert index.normalization.beta == pytest.approx(beta, rel=1e-5)
    assert index.normalization.alpha == pytest.approx(scores.mean() - estimates.mean() / beta, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({}, 120 * 8),
        ({"sampling": PerItem(queries=5)}, 120 * 5),
        ({"sampling": PerItem(queries=99)}, 120 * 30),
        ({"sampling": PerItem(queries=4, nearest=0.5)}, 120 * 4),
        ({"sampling": [PerQuery(items=7)]}, 30 * 7),
        ({"sampling": PerQuery(items=7, retriever="bm25", at_random=0.5)}, 30 * 7),
        ({"factors": None}, 30 * 100),
        ({"factors": Inductive(epochs=1)}, 30 * 100),
        ({"factors": Cur(anchors=12)}, 12 * 120),
        ({"factors": Cur()}, 30 * 120),
    ],
    ids=repr,
)
def test_the_sampling_determines_the_number_of_calls(options, calls):
    setup = Setup()
    report = setup.build(**options).report
    assert len(setup.scored) == len(set(setup.scored)) == report.calls == report.calls_made == calls
    assert report.coverage.calls == calls


def test_merged_samplings_score_what_each_would_and_no_pair_twice():
    plans = [PerItem(queries=4), *(PerQuery(items=20, retriever=name) for name in ("dense", "bm25", "tfidf", "fused"))]
    together, alone = Setup(), []
    together.build(None, sampling=plans)
    for plan in plans:
        setup = Setup()
        setup.build(None, sampling=plan)
        alone += setup.scored
    assert len(together.scored) == len(set(together.scored)) < len(alone)
    assert set(together.scored) == set(alone)


def test_a_retrievers_best_items_are_scored():
    setup = Setup()
    index = setup.build(None, sampling=PerQuery(items=10, retriever="dense"))
    estimates = setup.encoder.encode_queries(setup.queries) @ index.vectors.astype(np.float32).T
    numbers, rows = setup.scored_pairs()
    for number in range(30):
        assert set(rows[numbers == number]) == set(np.argsort(-estimates[number])[:10])


@pytest.mark.parametrize(("factors", "count"), [(ALS, 500), (Cur(anchors=7), 7), (None, 100)])
def test_queries_are_cut_from_the_items_where_none_are_given(factors, count):
    setup = Setup(items=600)
    index = setup.build(factors, queries=None)
    assert len(index.queries) == len(set(index.queries)) == index.report.queries == count
    assert all(any(query in text for text in setup.texts) for query in index.queries)
    assert index.report.cut_from_items
    assert "train queries cut from the items\n" in str(index.report)


def test_a_query_that_is_given_twice_is_one():
    setup = Setup()
    index = setup.build(queries=[*setup.queries, *setup.queries])
    assert index.queries == setup.queries


def test_the_work_folder_changes_nothing_and_spares_calls(tmp_path):
    setup = Setup()
    whole, calls = setup.build(), len(setup.scored)
    kept = setup.build(work_dir=tmp_path / "new" / "work", chunk=100)
    assert_same_index(kept, whole, report=False)
    assert setup.batches[1:] == [100] * 9 + [60]
    again = setup.build(work_dir=tmp_path / "new" / "work", chunk=100)
    assert_same_index(again, whole, report=False)
    assert len(setup.scored) == 2 * calls
    assert (again.report.calls, again.report.calls_made) == (calls, 0)
    more = setup.build(Cur(anchors=30), work_dir=tmp_path / "new" / "work")
    assert more.report.calls_made == len(setup.scored) - 2 * calls == 30 * 120 - calls


def test_progress_of_every_step_ends():
    setup, last = Setup(), {}
    setup.build(Inductive(epochs=3), progress=lambda step, done, total: last.update({step: (done, total)}))
    assert last == {
        "encode items": (120, 120),
        "encode queries": (30, 30),
        "scoring": (3000, 3000),
        "factorizing": (9, 9),
    }


@every_kind
def test_a_report_is_read_back_from_plain_values(kind):
    report = Setup().build_kind(kind).report
    assert BuildReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report
    assert set(report.seconds) >= {"encode items", "encode queries", "score", "normalize"}


def test_a_report_as_text():
    fit = {"held_out_entries": 1200, "held_out_error": 0.25, "held_out_error_before": 0.5, "held_out_r2": 0.75}
    report = BuildReport(
        items=2000,
        queries=500,
        cut_from_items=False,
        calls=16000,
        calls_made=4000,
        coverage=Coverage(calls=16000, items=2000, never_scored=1, fewest=0, median=8.0, most=9),
        factors="transductive",
        fit={**fit, "best_epoch": 4, "epochs": 7},
        seconds={"score": 2.0, "factorize": 0.25},
    )
    lines = str(report).splitlines()
    assert [re.findall(r"\d[\d,.]*\b", line) for line in lines] == [
        ["2,000", "500"],
        ["16,000", "4,000", "8.0", "0", "9", "1"],
        [],
        ["1,200", "0.2500", "0.5000", "0.75", "4", "7"],
        ["2.0", "0.2"],
    ]
    words = ("train queries", "never scored", "transductive", "held-out", "factorize")
    assert all(word in line for word, line in zip(words, lines, strict=True))


def test_the_embedded_encoder_builds_saves_and_searches(tmp_path):
    texts = [
        "a river bank",
        "a bank for money",
        "coffee with milk",
        "tea with milk",
        "a boat on the river",
        "tea house",
    ]
    shared = function_scorer(
        lambda pairs: [len({*query.split()} & {*item.split()}) for query, item in pairs], fingerprint="shared"
    )
    encoder = SentenceEncoder("embedded", device="cpu")
    index = Index.build(Items(texts), scorer=shared, encoder=encoder, queries=["river boat", "milk", "money"])
    index.save(tmp_path)
    searcher = Searcher(Index.load(tmp_path), scorer=shared, encoder=encoder)
    assert searcher.search("tea with milk", k=1, strategy=Axn(budget=4, rounds=2, first="fitted"))[0].id == "3"


# --- saving and loading


@every_kind
def test_loaded_is_saved(kind, tmp_path):
    setup = Setup()
    built = setup.build_kind(kind)
    built.save(tmp_path / "new" / "index")
    loaded = Index.load(str(tmp_path / "new" / "index"))
    assert_same_index(loaded, built)
    assert repr(loaded) == repr(built)
    assert len(loaded) == 120
    for name, array in arrays_of(loaded).items():
        assert isinstance(array, np.memmap) or not array.size or name.startswith("nets.")
    strategies = STRATEGIES[:2] if kind in ("random", "cur") else [*STRATEGIES, Rerank(budget=30, retriever="fitted")]
    for strategy in strategies[: 3 if kind == "encoder" else None]:
        before, after = (found(setup.searcher(index), setup.new_queries, strategy) for index in (built, loaded))
        assert before == after


def test_verify_reads_all_that_the_index_is_made_of(tmp_path):
    index = Setup().build()
    with pytest.raises(InputError, match="save it first"):
        index.verify()
    index.save(tmp_path)
    listed = json.loads((tmp_path / "index.json").read_text())["files"]
    names = ["items.arrow", "postings.safetensors", "queries.arrow", "stems.arrow", "vectors.safetensors"]
    assert sorted(listed) == names
    size = sum((tmp_path / entry["file"]).stat().st_size for entry in listed.values())
    assert Index.load(tmp_path).verify() == index.verify() == size


def test_a_loaded_index_can_be_changed_and_saved_over_itself(tmp_path):
    setup = Setup()
    setup.build().save(tmp_path)
    loaded = Index.load(tmp_path)
    changed = setup.add(loaded)
    changed.save(tmp_path)
    assert_same_index(Index.load(tmp_path), changed)
    assert Index.load(tmp_path).verify()


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be deleted there")
def test_an_open_searcher_keeps_its_index_while_another_takes_the_folder(tmp_path):
    setup = Setup()
    setup.build().save(tmp_path)
    old = Index.load(tmp_path)
    searcher = setup.searcher(old)
    fresh = setup.build(items=Items(setup.texts[:50]))
    fresh.save(tmp_path)
    for strategy in STRATEGIES:  # nothing of the old one was read before
        assert found(searcher, setup.new_queries, strategy) == found(
            setup.searcher(setup.build()), setup.new_queries, strategy
        )
    with pytest.raises(InputError, match=r"was replaced meanwhile. Load it again"):
        old.verify()
    assert_same_index(Index.load(tmp_path), fresh)


def test_loading_while_it_is_replaced_gives_one_whole_index(tmp_path):
    setup = Setup()
    two = [setup.build(Inductive(epochs=1)), setup.build(items=Items(setup.texts[:50]), queries=setup.queries[:9])]
    two[0].save(tmp_path)
    done = threading.Event()

    def replace():
        while not done.is_set():
            for index in (two[1], two[0]):
                index.save(tmp_path)

    writer = threading.Thread(target=replace)
    writer.start()
    seen, ends = set(), time.monotonic() + 1.5
    try:
        while time.monotonic() < ends or len(seen) < 2:
            loaded = Index.load(tmp_path)
            which = int(len(loaded) == 50)
            assert_same_index(loaded, two[which])
            seen.add(which)
    finally:
        done.set()
        writer.join()
    assert seen == {0, 1}


# --- models


@pytest.mark.parametrize(("what", "names"), [("scorer", {"scorer": "other"}), ("encoder", {"encoder": "other"})])
def test_another_model_raises_unless_check_models_is_false(what, names):
    setup, other = Setup(), Setup(**names)
    index = setup.build()
    built = getattr(setup, what).fingerprint
    message = rf"built with another {what} \(fingerprint '{built}'\), got 'other'\..*check_models=False"
    models = {"scorer": setup.scorer, "encoder": setup.encoder, what: getattr(other, what)}
    with pytest.raises(InputError, match=message):
        Searcher(index, **models)
    with pytest.raises(InputError, match=message):
        index.add(setup.new_items, **models)
    searcher = Searcher(index, **models, check_models=False)
    assert found(searcher, setup.new_queries, Exact()) == found(setup.searcher(index), setup.new_queries, Exact())
    assert_same_index(index.add(setup.new_items, **models, check_models=False), setup.add(index))


def test_an_unnamed_function_is_known_in_its_process_only():
    setup = Setup()
    unnamed = function_scorer(setup._score)
    index = setup.build(scorer=unnamed)
    setup.searcher(index, scorer=unnamed)
    with pytest.raises(InputError, match=r"\(fingerprint 'unnamed-function:\w+', an unnamed function\)"):
        setup.searcher(index, scorer=function_scorer(setup._score))


# --- adding and removing


def test_inductive_vectors_of_new_items_need_no_calls():
    setup = Setup()
    index = setup.build(Inductive(learning_rate=0.01))
    grown = setup.add(index)
    assert setup.scored == []
    assert grown.report.calls == index.report.calls
    encoded = setup.encoder.encode_items(setup.new_items.texts).astype(np.float16)
    assert np.array_equal(grown.vectors[120:], encoded)
    fitted = index.factors.nets.encode_items(encoded)
    np.testing.assert_allclose(grown.factors.items[120:], fitted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["als", "adamw", "random"])
def test_transductive_vectors_of_new_items_solve_their_ridge_problem(kind):
    setup = Setup()
    index = setup.build_kind(kind)
    grown = setup.add(index, queries_per_item=9)
    assert len(setup.scored) == len(set(setup.scored)) == 3 * 9
    assert (grown.report.calls, grown.report.calls_made) == (index.report.calls + 27, 27)
    numbers, rows = setup.scored_pairs(texts=setup.new_items.texts)
    truth = index.normalization.normalize(score_all(setup.queries, setup.new_items.texts))
    starts = grown.vectors[120:].astype(np.float64) if kind != "random" else np.zeros((3, DIM + 1))
    ridge = 0.1 if kind == "random" else 1.0
    for row in range(3):
        mine = numbers[rows == row]
        assert len(mine) == 9
        known, start = index.factors.train[mine].astype(np.float64), starts[row]
        right = known.T @ (truth[mine, row] - known @ start)
        vector = start + np.linalg.solve(known.T @ known + ridge * np.eye(len(start)), right)
        np.testing.assert_allclose(grown.factors.items[120 + row], vector, rtol=1e-3, atol=2e-3)


def test_a_new_item_is_scored_against_all_train_queries_where_there_are_no_more():
    setup = Setup()
    setup.add(setup.build(), queries_per_item=99)
    assert len(setup.scored) == 3 * 30


def test_cur_vectors_of_new_items_cost_a_call_per_anchor():
    setup = Setup()
    index = setup.build(Cur(anchors=12))
    twins = Items([setup.texts[7], *setup.new_items.texts], ids=["twin", "a", "b", "c"])
    grown = setup.add(index, twins)
    assert sorted(setup.scored) == sorted((query, text) for query in index.queries for text in twins.texts)
    np.testing.assert_allclose(grown.factors.items[120], index.factors.items[7], rtol=1e-5)
    np.testing.assert_allclose(grown.factors.items[121:], score_all(index.queries, setup.new_items.texts).T, rtol=1e-4)


@every_kind
def test_add_then_remove_restores_the_index(kind, tmp_path):
    setup = Setup()
    index = setup.build_kind(kind)
    if kind == "als":
        index.save(tmp_path)
        index = Index.load(tmp_path)
    before = {name: array.tobytes() for name, array in arrays_of(index).items()}
    grown = setup.add(index)
    assert list(grown.items.ids) == [*setup.items.ids, "new-0", "new-1", "new-2"]
    assert list(grown.items.texts) == [*setup.texts, *setup.new_items.texts]
    assert grown.items.fields == {"size": "float64", "tags": "list of strings", "by": "string"}
    assert grown.items.fields_of([1, 122]) == [
        {"size": 1.0, "tags": None, "by": None},
        {"size": 1.5, "tags": None, "by": None},
    ]
    assert len(index) == 120
    assert grown.vectors[:120].tobytes() == before["vectors"]
    if index.factors is not None:
        assert grown.factors.items[:120].tobytes() == before["fitted.items"]
    assert_same_index(grown.remove(setup.new_items.ids), index, report=False)
    assert {name: array.tobytes() for name, array in arrays_of(index).items()} == before


def test_of_two_changes_at_once_none_is_lost(tmp_path):
    setup = Setup()
    setup.build_kind("als").save(tmp_path)
    index = Index.load(tmp_path)
    grown, shrunk = setup.add(index), index.remove(index.items.ids[:1])
    grown.save(tmp_path, replaces=index.identity)
    with pytest.raises(InputError, match="was changed by another process meanwhile"):
        shrunk.save(tmp_path, replaces=index.identity)
    assert_same_index(Index.load(tmp_path), grown)


def test_new_items_reuse_the_scores_of_a_work_folder(tmp_path):
    setup = Setup()
    index = setup.build(work_dir=tmp_path)
    grown = setup.add(index, work_dir=tmp_path)
    assert len(setup.scored) == 3 * 8
    assert_same_index(setup.add(index, work_dir=tmp_path), grown, report=False)
    assert setup.scored == []


@every_kind
def test_remove_keeps_the_vectors_of_the_other_items(kind):
    setup = Setup()
    index = setup.build_kind(kind)
    gone = ["id-0", "id-119", "id-57"]
    shrunk = index.remove(gone)
    rows = [row for row in range(120) if f"id-{row}" not in gone]
    assert list(shrunk.items.ids) == [f"id-{row}" for row in rows]
    assert list(shrunk.items.texts) == [setup.texts[row] for row in rows]
    assert list(shrunk.items.field("size")) == rows
    assert np.array_equal(shrunk.vectors, index.vectors[rows])
    if index.factors is not None:
        assert np.array_equal(shrunk.factors.items, index.factors.items[rows])
    assert (len(shrunk), shrunk.report.items, len(index)) == (117, 117, 120)


@pytest.mark.parametrize("kind", ["encoder", "als", "inductive", "cur"])
def test_an_added_item_is_found_and_a_removed_one_never(kind):
    setup = Setup()
    best = Items([" ".join([setup.queries[0]] * 5)], ids=["best"])  # u·5u: no other item comes near
    index = setup.add(setup.build_kind(kind), best)
    strategies = [*STRATEGIES, Rerank(budget=30, retriever="fitted"), Axn(budget=30, rounds=3, first="fitted")]
    for strategy in {"encoder": STRATEGIES, "cur": STRATEGIES[:2]}.get(kind, strategies):
        hits = setup.searcher(index).search(setup.queries[0], strategy=strategy)
        assert (hits[0].id, hits[0].row) == ("best", 120)
        again = setup.searcher(index.remove(["best", hits[1].id])).search(setup.queries[0], strategy=strategy)
        assert not {"best", hits[1].id} & set(again.ids)
        for hit in again:
            assert hit.score == pytest.approx(score_all(setup.queries[:1], [setup.items.text(setup.items.row(hit.id))]))


def test_invalid_additions_and_removals_raise():
    setup = Setup()
    index = setup.build()
    with pytest.raises(InputError, match="has an item 'id-7' already"):
        setup.add(index, Items(["word1", "word2"], ids=["fresh", "id-7"]))
    with pytest.raises(InputError, match=r"`items` must be Items, .* got list"):
        setup.add(index, ["word1"])
    with pytest.raises(InputError, match="`queries_per_item` must be a positive integer, got 0"):
        setup.add(index, queries_per_item=0)
    with pytest.raises(InputError, match="without a fingerprint"):
        setup.add(index, scorer=function_scorer(setup._score), check_models=False, work_dir="nowhere")
    for some in (index, setup.build(None)):
        short = function_encoder(lambda texts: embed(NOISY, texts)[:, :4])
        with pytest.raises(InputError, match=r"`encoder` must give 6 dimensions, .* got 4"):
            setup.add(some, encoder=short, check_models=False)
    with pytest.raises(InputError, match="None of the 120 items has the id 'nobody'"):
        index.remove(["id-1", "nobody"])
    with pytest.raises(InputError, match="must keep at least one item"):
        index.remove(index.items.ids)
    with pytest.raises(InputError, match="For one id pass a list of it"):
        index.remove("id-1")
    assert setup.scored == []


def test_one_item_can_be_left():
    setup = Setup()
    left = setup.build().remove(f"id-{row}" for row in range(1, 120))
    assert list(left.items.ids) == ["id-0"]
    assert setup.searcher(left).search(setup.new_queries[0], strategy=STRATEGIES[2]).ids == ["id-0"]


# --- searching


@pytest.mark.parametrize("kind", ["als", "adamw", "inductive"])
def test_fitted_proposes_by_the_fitted_vectors_and_dense_by_the_encoders(kind):
    setup = Setup()
    index = setup.build_kind(kind)
    searcher = setup.searcher(index)
    encoded = setup.encoder.encode_queries(setup.new_queries)
    for name, queries, items in (
        ("fitted", index.factors.query_vectors(encoded), index.factors.items),
        ("dense", encoded, index.vectors),
    ):
        estimates = queries @ items.astype(np.float32).T
        for hits, expected in zip(found(searcher, setup.new_queries, Rerank(10, name)), estimates, strict=True):
            assert {hit.row for hit in hits} == set(np.argsort(-expected)[:10])
            assert {hit.proposed_by for hit in hits} == {name}
            assert [hit.estimate for hit in hits] == pytest.approx(
                [expected[hit.row] for hit in hits], rel=1e-4, abs=1e-4
            )


@pytest.mark.parametrize("kind", ["als", "random", "inductive", "cur"])
def test_axn_searches_the_fitted_vectors(kind):
    setup = Setup()
    index = setup.build_kind(kind)
    factors = index.factors
    encoder = function_encoder(lambda texts: factors.query_vectors(setup.encoder.encode_queries(texts)))
    by_hand = Searcher(
        index.items,
        scorer=setup.scorer,
        encoder=encoder if factors.with_encoder else None,
        vectors=factors.items,
        normalization=index.normalization,
    )
    encoders = Searcher(index.items, scorer=setup.scorer, vectors=index.vectors, normalization=index.normalization)
    for mix in (0.0, 0.5, 1.0) if factors.with_encoder else (0.0,):
        strategy = Axn(budget=30, rounds=3, mix=mix, first="bm25")
        hits = found(setup.searcher(index), setup.new_queries, strategy)
        assert hits == found(by_hand, setup.new_queries, strategy)
    assert hits != found(encoders, setup.new_queries, Axn(budget=30, rounds=3, mix=0.0, first="bm25"))


def test_with_enough_anchors_cur_estimates_are_the_scores():
    """Scores of rank 7, the constant included: ten of them tell the rest."""
    setup = Setup()
    searcher = setup.searcher(setup.build(Cur(anchors=12)))
    strategy = Axn(budget=20, rounds=2, mix=0.0, first="random", estimates=True)
    for hits, expected in zip(
        searcher.search_many(setup.new_queries, strategy=strategy),
        score_all(setup.new_queries, setup.texts),
        strict=True,
    ):
        np.testing.assert_allclose(hits.estimates, expected, atol=1e-2)


@pytest.mark.parametrize("kind", ["cur", "random"])
def test_vectors_without_an_encoders_queries_cannot_be_mixed(kind):
    setup = Setup()
    searcher = setup.searcher(setup.build_kind(kind))
    with pytest.raises(InputError, match=r"`mix` above 0 needs query vectors: an encoder, and item vectors"):
        searcher.search(setup.new_queries[0], strategy=Axn(budget=30, rounds=3, first="bm25"))
    with pytest.raises(InputError, match="vectors have no query vectors"):
        searcher.search(setup.new_queries[0], strategy=Rerank(retriever="fitted"))


def test_a_searcher_takes_what_the_index_brings_unless_it_is_given():
    setup = Setup()
    index = setup.build(None)
    assert setup.searcher(index).normalization == index.normalization
    assert setup.searcher(index, normalization=Normalization(1, 2)).normalization == Normalization(1, 2)
    with pytest.raises(InputError, match=r"no retriever named 'fitted'; known: bm25, dense, fused, random, tfidf"):
        setup.searcher(index).search(setup.new_queries[0], strategy=Rerank(retriever="fitted"))
    bare = Searcher(setup.build(), scorer=setup.scorer)
    assert len(bare.search(setup.new_queries[0], strategy=Axn(budget=30, rounds=3, mix=0.0))) == 10
    with pytest.raises(InputError, match="the fitted retriever needs an encoder"):
        bare.search(setup.new_queries[0], strategy=Rerank(retriever="fitted"))


# --- invalid settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"items": ["word1"]}, "`items` must be Items, .* got list"),
        ({"scorer": None}, "`scorer` must be a Scorer, got None"),
        ({"scorer": score_all}, "`scorer` must be a Scorer, got .*function_scorer"),
        ({"encoder": embed}, "`encoder` must be an Encoder, got .*function_encoder"),
        ({"queries": "word1 word2"}, "`queries` must be a list of train queries"),
        ({"queries": 3}, "`queries` must be a list of train queries, got 3"),
        ({"queries": iter(["word1"])}, "`queries` must be a list of train queries"),
        ({"queries": []}, "at least one train query"),
        ({"queries": ["word1", " "]}, "non-blank strings, got ' ' at position 1"),
        ({"queries": ["word1", 2]}, "non-blank strings, got 2 at position 1"),
        ({"queries": ["word1", "\ud800"]}, "valid Unicode, .* at position 1"),
        ({"sampling": 3}, "`sampling` must be .* got 3"),
        ({"sampling": "dense"}, "`sampling` must be .* got 'dense'"),
        ({"sampling": [PerItem(), None]}, "`sampling` must be .* got None"),
        ({"sampling": PerQuery(retriever="bm52")}, "`retriever` must be one of .* got 'bm52'"),
        ({"sampling": PerQuery(retriever="random")}, "`retriever` must be one of .* got 'random'"),
        ({"signals": ["random"], "prior": True}, "`signals` must be names of retrievers"),
        ({"sampling": PerItem(), "factors": Cur()}, "CUR scores every item for every anchor"),
        ({"factors": "als"}, "`factors` must be .* got 'als'"),
        ({"chunk": 0}, "`chunk` must be a positive integer, got 0"),
        ({"seed": -1, "sampling": PerItem()}, "`seed` must be a nonnegative integer, got -1"),
    ],
)
def test_invalid_settings_raise_before_any_call(options, message):
    setup = Setup()
    with pytest.raises(InputError, match=message):
        setup.build(**options)
    assert setup.scored == []


def test_an_unusable_work_folder_raises_before_anything_is_encoded(tmp_path):
    setup, encoded = Setup(), []
    encoder = function_encoder(lambda texts: (encoded.append(texts), embed(NOISY, texts))[1], fingerprint="noisy")
    (tmp_path / "file").write_text("in the way")
    setup.build(work_dir=tmp_path / "work")
    setup.scored.clear()
    for options, message in (
        ({"work_dir": tmp_path / "file"}, f"{tmp_path / 'file'}"),
        ({"scorer": function_scorer(setup._score)}, "fingerprint="),
        ({"scorer": Setup(scorer="other").scorer}, "'true'.*'other'"),
        ({"encoder": function_encoder(encoder.encode_items)}, "give function_encoder a fingerprint"),
    ):
        for sampling in (None, PerItem(nearest=0.5)):
            with pytest.raises(InputError, match=message):
                setup.build(**{"work_dir": tmp_path / "work", "encoder": encoder, "sampling": sampling, **options})
    assert (setup.scored, encoded) == ([], [])


@pytest.mark.parametrize("factors", [ALS, Cur(anchors=5), None])
def test_constant_scores_raise(factors):
    constant = function_scorer(lambda pairs: [1.5] * len(pairs))
    with pytest.raises(InputError, match="α and β"):
        Setup().build(factors, scorer=constant)


def test_a_nan_score_names_its_pair_and_is_not_saved(tmp_path):
    setup = Setup()

    def fail_late(pairs):
        scores = setup._score(pairs)
        scores[-1] = np.nan if len(setup.batches) == 3 else scores[-1]
        return scores

    with pytest.raises(ScorerError, match=r"returned nan for query 'word\d+ .*' and item 'word\d+ .*' \(1 of 100"):
        setup.build(scorer=function_scorer(fail_late, fingerprint="true"), work_dir=tmp_path, chunk=100)
    setup.scored.clear()
    assert_same_index(setup.build(work_dir=tmp_path, chunk=100), Setup().build(), report=False)
    assert len(setup.scored) == 120 * 8 - 200


# --- damage


def file_of(folder, name):
    return folder / json.loads((folder / "index.json").read_text())["files"][name]["file"]


def flip(path, at=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 4
    path.write_bytes(content)


NAMES = ["items.arrow", "queries.arrow", "vectors.safetensors"]


@pytest.fixture(scope="module", params=["als", "inductive"])
def saved(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    Setup().build_kind(request.param).save(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "index")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "damaged: it has .* bytes, not"),
        (lambda path: path.write_bytes(path.read_bytes() + b" "), "damaged: it has .* bytes, not"),
        (lambda path: path.unlink(), "missing, although index.json lists it"),
    ],
    ids=["cut short", "too long", "missing"],
)
def test_a_file_that_is_not_whole_is_named(folder, name, damage, message):
    path = file_of(folder, name)
    damage(path)
    with pytest.raises(InputError, match=f"{path.name}: {message}.*Restore it from a copy or build the index again"):
        Index.load(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_found_by_verify(folder, name):
    """Bits that loading does not stumble over, such as those of vectors, are found by their hash."""
    path = file_of(folder, name)
    size, rng = path.stat().st_size, np.random.default_rng(0)
    for at in (0, size // 2, size - 1, *rng.integers(size, size=20)):
        flip(path, at)
        with pytest.raises(InputError, match=str(folder)):
            Index.load(folder).verify()
        flip(path, at)
    assert Index.load(folder).verify()
    flip(file_of(folder, "vectors.safetensors"), size - 1 if name == NAMES[2] else -1)
    with pytest.raises(InputError, match=r"vectors-\w+.safetensors: damaged: its hash is"):
        Index.load(folder).verify()


def read_json(path):
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def test_any_flipped_bit_of_the_manifest_is_found(folder):
    """Unless it changes nothing: the last digit of a time may be beyond a float's precision."""
    path = folder / "index.json"
    content = json.loads(path.read_bytes())
    for at in np.random.default_rng(0).integers(path.stat().st_size, size=60):
        flip(path, at)
        if read_json(path) != content:
            with pytest.raises(InputError, match=str(folder)):
                Index.load(folder)
        flip(path, at)
    assert Index.load(folder).verify()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"index.json: damaged \("),
        ("{}", r"index.json: damaged \(format must be"),
        ('{"format": 3}', r"index: written by a newer crossknn \(format 3, this one reads 2\). Upgrade"),
        ('{"format": 2, "facts": {}, "files": {}}', "index.json: damaged .'hash' is missing"),
        (
            '{"format": 2, "hash": "", "facts": {}, "files": {}}',
            "index.json: damaged: its content does not match its hash",
        ),
        (None, "not an index, for it holds no index.json"),
    ],
)
def test_a_damaged_manifest_is_named(folder, content, message):
    path = folder / "index.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(InputError, match=message):
        Index.load(folder)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        *((fact, None) for fact in ("scorer", "encoder", "normalization", "factors", "report")),
        ("normalization", [1, 2]),
        ("normalization", {"alpha": 0, "beta": -1}),
        ("normalization", {"gamma": 0}),
        ("factors", "als"),
        ("factors", {"kind": "inductive"}),
        ("report", []),
        ("report", {"coverage": None}),
    ],
)
def test_invalid_facts_raise(folder, fact, value):
    opened = read_folder(folder)
    facts = dict(opened.facts)
    facts.pop(fact) if value is None else facts.update({fact: value})
    write_folder(folder, facts, {name: partial(shutil.copyfile, path) for name, path in opened.files.items()})
    with pytest.raises(InputError, match=r"index: damaged: index.json and the files it names do not fit together"):
        Index.load(folder)


def test_files_of_two_indexes_do_not_make_one(folder, tmp_path):
    setup = Setup()
    setup.build(items=Items(setup.texts[:50])).save(tmp_path / "other")
    manifests = [json.loads((path / "index.json").read_text()) for path in (folder, tmp_path / "other")]
    manifests[0]["files"]["items.arrow"] = manifests[1]["files"]["items.arrow"]
    shutil.copy(file_of(tmp_path / "other", "items.arrow"), folder)
    (folder / "index.json").write_text(json.dumps(manifests[0]))
    with pytest.raises(InputError, match=r"index.json: damaged: its content does not match its hash"):
        Index.load(folder)
    built = setup.build()
    with pytest.raises(InputError, match="one vector per item, got 50 items, 120 vectors and 120 fitted"):
        Index(
            Items(setup.texts[:50]),
            built.vectors,
            queries=built.queries,
            normalization=built.normalization,
            factors=built.factors,
            scorer="a",
            encoder="b",
            report=built.report,
        )


def test_foreign_files_are_left_alone(folder):
    (folder / "notes.txt").write_text("mine")
    assert Index.load(folder).verify()
    Setup().build(None).save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert Index.load(folder).factors is None
    assert len(list(folder.glob("*-*"))) == 5


def test_a_folder_of_something_else_is_no_place_for_an_index(tmp_path):
    index = Setup().build(None)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"holds other files \(thesis.txt\) and no index"):
        index.save(tmp_path)
    with pytest.raises(InputError, match=r"thesis.txt: is a file. Give a folder for the index"):
        index.save(tmp_path / "thesis.txt")
    with pytest.raises(InputError, match=r"no such folder. Give the folder that an index was saved to"):
        Index.load(tmp_path / "none")


def test_verify_finds_nan_vectors(tmp_path):
    index = Setup().build()
    index.factors.items[3, 2] = np.nan
    index.save(tmp_path)
    with pytest.raises(InputError, match=r"fitted.items holds NaN or infinity"):
        Index.load(tmp_path).verify()


def zero_rows(path):
    """Overwrite some bytes near the end with zeros, in place: whoever has the file mapped sees them."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 100)
        file.write(bytes(60))


def test_vectors_that_are_damaged_after_they_were_read_do_not_get_into_an_index(tmp_path):
    setup, work = Setup(), tmp_path / "work"
    index = setup.build(None, work_dir=work)
    expected = np.array(index.vectors)
    [path] = work.glob("vectors-*.npy")
    zero_rows(path)
    with pytest.raises(InputError, match=rf"{path}: damaged after the build read it\. Build again"):
        index.save(tmp_path / "index")
    with pytest.raises(InputError, match="damaged after the build read it"):
        index.remove(["id-0"])
    assert not (tmp_path / "index" / "index.json").exists()
    again = setup.build(None, work_dir=work)
    np.testing.assert_array_equal(again.vectors, expected)
    again.save(tmp_path / "index")
    assert Index.load(tmp_path / "index").verify()


def test_an_index_is_not_made_from_a_damaged_one(tmp_path):
    setup = Setup()
    setup.build(None).save(tmp_path / "index")
    index = Index.load(tmp_path / "index")
    [path] = (tmp_path / "index").glob("vectors-*.safetensors")
    zero_rows(path)
    for change in (lambda: index.remove(["id-0"]), lambda: setup.add(index), lambda: index.save(tmp_path / "copy")):
        with pytest.raises(InputError, match=rf"{path}: damaged: its hash is"):
            change()
    assert not (tmp_path / "copy" / "index.json").exists()


@pytest.mark.parametrize("options", [{}, {"prior": True}, {"teach": True}, {"queries": ["word1"]}])
def test_an_index_of_one_item_is_refused_at_once(options):
    setup = Setup()
    with pytest.raises(InputError, match="`items` must be at least two for an index, got one"):
        setup.build(items=Items(["word1 word2"]), **options)
    assert setup.scored == []
