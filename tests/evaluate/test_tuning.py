"""Settings are tuned on dev queries alone, nothing is learned from these, and oracles are marked."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from crossknn.encoders.base import function_encoder
from crossknn.errors import InputError
from crossknn.evaluate.benchmark import Bench
from crossknn.evaluate.comparison import Comparison
from crossknn.evaluate.contenders import AvailableData, default_names
from crossknn.evaluate.report.findings import explain_oracles, headline, tally
from crossknn.evaluate.tasks import count_held_out, read_matrix, read_set, score_task
from crossknn.evaluate.tuning import make_candidates, run_tuned
from crossknn.scorers.base import function_scorer
from tests.evaluate.conftest import result
from tests.evaluate.folders import write_beir, write_scores

AVAILABLE = AvailableData(("random", "dense", "bm25", "fused"), fitted=True, cur=True)
ITEMS, DIM = 120, 40


def write_arrays(folder: Path, **arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.f16.npy", np.asarray(values, np.float16))
    return folder


def write_two_worlds(folder: Path, *, train: int = 20, test: int = 10, seed: int = 1) -> Path:
    """The encoder knows the train queries exactly, so that λ = 0.8 is best; of test queries it knows nothing."""
    rng = np.random.default_rng(0)
    items, train_vectors = rng.normal(size=(ITEMS, DIM)), rng.normal(size=(train, DIM))
    asked = np.random.default_rng(seed).normal(size=(2, test, DIM))
    return write_arrays(
        folder,
        item_embeddings=items,
        train_query_embeddings=train_vectors,
        train_scores=train_vectors @ items.T,
        test_query_embeddings=asked[0],
        test_scores=asked[1] @ items.T,
    )


def tune(folder, names, *, budgets=(20, 40), ks=(1, 10), rounds=4, **learning):
    task = read_matrix(folder, tune=True)
    bench = Bench(task, anchors=len(task.train), **learning)
    families = make_candidates(names, bench.available, budgets=budgets, rounds=rounds)
    return run_tuned(bench, families, budgets=budgets, ks=ks)


def settings(outcome, name):
    """Those of each budget and k."""
    return {(one.budget, one.k): one.settings for one in outcome.results if one.strategy == name}


def recalls(outcome, name):
    return {(one.budget, one.k): one.recall for one in outcome.results if one.strategy == name}


def test_the_setting_that_is_best_on_dev_queries_is_run_and_the_oracle_knows_better(tmp_path):
    outcome = tune(write_two_worlds(tmp_path / "two"), ["rerank", "axn:first=dense"])
    assert set(map(str, settings(outcome, "axn, dense first, tuned").values())) == {"{'first': 'dense', 'mix': 0.8}"}
    oracle = settings(outcome, "axn, dense first, oracle")
    assert oracle[40, 10]["mix"] == 0  # an encoder that knows nothing only disturbs
    tuned, best = (recalls(outcome, f"axn, dense first, {which}") for which in ("tuned", "oracle"))
    assert all(best[cell] >= tuned[cell] for cell in tuned)
    assert best[40, 10] > tuned[40, 10]
    data = outcome.data
    assert data["axn, dense first, tuned"].startswith("axn:first=dense:mix=0.8, the best of 4 settings on the dev")
    assert (data["train queries"], data["dev queries"]) == (16, 4)
    assert "last train queries" in data["dev part"]


def test_test_queries_have_no_say_in_the_choice(tmp_path):
    chosen = []
    for seed in (1, 2):
        outcome = tune(write_two_worlds(tmp_path / str(seed), seed=seed), ["axn", "gar", "tour:loss=mse"])
        chosen.append({name: value for name, value in outcome.data.items() if name.endswith(", tuned")})
    assert chosen[0] == chosen[1]
    assert list(chosen[0]) == ["axn, tuned", "gar, tuned", "tour, mse, tuned"]
    recall = [(one.strategy, one.recall) for one in outcome.results]
    again = tune(tmp_path / "2", ["axn", "gar", "tour:loss=mse"])
    assert [(one.strategy, one.recall) for one in again.results] == recall


@pytest.mark.parametrize("vectors", ["fitted", "cur"])
def test_nothing_is_learned_from_dev_queries(tmp_path, vectors):
    folder, learned = write_two_worlds(tmp_path / "two"), []
    for _ in range(2):
        task = read_matrix(folder, tune=True)
        index = Bench(task, calls_per_item=3, anchors=len(task.train)).searcher(vectors).index
        learned.append((task.scale, np.array(index.factors.items), list(task.train)))
        scores = np.load(folder / "train_scores.f16.npy")
        scores[-4:] *= -3  # the dev queries'
        np.save(folder / "train_scores.f16.npy", scores)
    assert learned[0][0] == learned[1][0]
    assert np.array_equal(learned[0][1], learned[1][1])
    assert len(learned[0][2]) == 16
    with pytest.raises(InputError, match="no scores for the text 'dev 0'"):
        task.train_scorer.score(["dev 0"], ["item 0"])
    assert task.scorer.score(["dev 3"], ["item 0"]) == pytest.approx(scores[-1, 0] / -3, rel=1e-2)


def test_a_dev_query_with_the_text_of_a_train_or_test_query_is_left_out(tmp_path):
    write_scores(tmp_path / "tiny", train=20, queries=10, ranked="texts")
    task = read_matrix(tmp_path / "tiny", tune=True)
    assert len(task.dev.queries) == 4
    path = tmp_path / "tiny" / "texts.json.xz"
    texts = json.loads(lzma.decompress(path.read_bytes()))
    texts["train"][17]["text"], texts["train"][18]["text"] = texts["train"][0]["text"], texts["test"][5]["text"]
    path.write_bytes(lzma.compress(json.dumps(texts).encode()))
    fewer = read_matrix(tmp_path / "tiny", tune=True)
    assert fewer.dev.scores.tolist() == task.dev.scores[[0, 3]].tolist()
    (bm25,) = fewer.retrievers
    assert bm25.fit(fewer.items).retrieve(["dev 1"], 3)[0].rows.tolist()


@pytest.mark.parametrize(("train", "most", "held"), [(2, 100, 1), (9, 100, 1), (150, 100, 30), (900, 50, 50)])
def test_a_fifth_of_the_train_queries_is_held_out(train, most, held):
    assert count_held_out(train, most) == held


def test_without_train_queries_there_is_nothing_to_tune_on(tmp_path):
    write_scores(tmp_path / "one", queries=1)
    with pytest.raises(InputError, match=r"at least 2 train queries, of which some are held out, got 0"):
        read_matrix(tmp_path / "one", tune=True)
    write_scores(tmp_path / "tiny", train=10)
    (tmp_path / "tiny" / "train_bm25.f16.npy").unlink()
    with pytest.raises(InputError, match=r"tiny: tuning needs BM25 scores of its train queries, too: train_bm25"):
        read_matrix(tmp_path / "tiny", tune=True)
    bench = Bench(read_matrix(tmp_path / "tiny"))
    with pytest.raises(InputError, match="tuning needs a task with dev queries"):
        run_tuned(bench, make_candidates(["axn"], bench.available, budgets=[20]), budgets=[20], ks=[1])


def test_candidates_that_find_as_much_leave_the_first_of_the_grid(tmp_path):
    write_scores(tmp_path / "tiny", train=10)
    names = default_names(AvailableData(AVAILABLE.retrievers[:2], cur=True), tuned=True)
    outcome = tune(tmp_path / "tiny", names, budgets=(60,), ks=(1, 60))
    chosen = {one.strategy: dict(one.settings) for one in outcome.results if one.settings is not None}
    assert {one.recall for one in outcome.results} == {1}
    assert chosen == {
        f"{name}, {which}": settings
        for name, settings in {
            "rerank": {"retriever": "fused"},
            "axn": {"mix": 0.5, "first": "fused"},
            "anncur": {"share": 0.5},
            "adacur": {"first": "fused"},
            "tour, ce": {"loss": "ce", "learning_rate": 0.1, "steps": 1},
            "tour, mse": {"loss": "mse", "learning_rate": 1e-3},
            "gar": {"neighbors": 8, "first": "fused"},
        }.items()
        for which in ("tuned", "oracle")
    }


def test_what_a_name_sets_stays_and_the_rest_is_tried():
    made = {family.name: family for family in make_candidates(
        ["rerank", "axn:first=bm25", "gar:neighbors=3:first=dense", "anncur:anchors=7", "tour:loss=mse", "adacur"],
        AVAILABLE,
        budgets=[20],
    )}  # fmt: skip
    sizes = {name: len(family.candidates) for name, family in made.items()}
    assert sizes == {
        "rerank, tuned": 3,
        "axn, bm25 first, tuned": 4,
        "axn, bm25 first, fitted, tuned": 4,
        "gar, neighbors 3, dense first": 1,
        "anncur, anchors 7": 1,
        "tour, mse, tuned": 3,
        "adacur, tuned": 3,
    }
    tried = made["axn, bm25 first, fitted, tuned"].candidates
    assert {entry.settings["mix"] for entry in tried} == {0, 0.2, 0.5, 0.8}
    assert {(entry.settings["first"], entry.vectors) for entry in tried} == {("bm25", "fitted")}
    assert [e.contender.make(1000).learning_rate for e in made["tour, mse, tuned"].candidates] == [1e-3, 1e-2, 1e-4]
    shares = make_candidates(["anncur"], AVAILABLE, budgets=[1])[0].candidates
    assert [entry.contender.make(40).share for entry in shares] == [0.5, 0.25, 0.75]


def test_only_retrievers_that_the_data_have_are_tried():
    available = AvailableData(("random", "dense"))
    families = make_candidates(default_names(available, tuned=True), available, budgets=[20])
    assert {family.name: len(family.candidates) for family in families} == {
        "rerank, dense": 1,
        "axn, tuned": 4,
        "tour, ce, tuned": 9,
        "tour, mse, tuned": 3,
        "gar, tuned": 3,
    }


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["rerank:retriever=bm25"], "there is nothing to tune"),
        (["axn", "axn"], "strategies must be distinct, got 'axn, tuned' twice"),
        (["axn:mxi=1"], "axn:mxi=1: the strategy 'axn' has no setting 'mxi'"),
        (["nax"], "got 'nax'"),
        (["anncur:share=2"], "anncur:share=2: `share` must be"),
        (["anncur:share=0.5:anchors=3"], "either `anchors` or `share`"),
    ],
)
def test_what_cannot_be_tuned_says_why(names, message):
    with pytest.raises(InputError) as error:
        make_candidates(names, AVAILABLE, budgets=[20])
    assert message in str(error.value)


def test_a_strategy_with_one_candidate_is_run_as_it_is_named(tmp_path):
    write_scores(tmp_path / "tiny", train=10)
    outcome = tune(tmp_path / "tiny", ["rerank:retriever=bm25", "axn", "gar:neighbors=3:first=bm25"], budgets=(20,))
    rows = {one.strategy: (one.baseline, one.oracle, one.settings is None) for one in outcome.results}
    assert rows == {
        "rerank, bm25": (None, False, True),
        "axn, tuned": ("rerank, bm25", False, False),
        "axn, oracle": ("rerank, bm25", True, False),
        "gar, neighbors 3, bm25 first": ("rerank, bm25", False, True),
    }
    records = {(one["strategy"], one["k"]): one for one in outcome.to_json()["records"]}
    assert "oracle" not in records["rerank, bm25", 1]
    assert records["axn, oracle", 1]["oracle"] is True
    assert records["axn, tuned", 1]["oracle"] is False
    assert records["axn, tuned", 1]["settings"] == records["axn, tuned", 10]["settings"]
    assert records["axn, tuned", 1]["settings"].keys() == {"mix", "first"}
    assert records["axn, oracle", 1]["seconds"] == {}


def test_without_reranking_an_oracle_stands_below_its_own_tuned_row(tmp_path):
    outcome = tune(write_two_worlds(tmp_path / "two"), ["axn"], budgets=(20,), ks=(1,))
    assert [(one.strategy, one.baseline) for one in outcome.results] == [
        ("axn, tuned", None),
        ("axn, oracle", "axn, tuned"),
    ]


def test_oracles_are_in_no_finding_and_no_baseline():
    oracle = {"settings": {"mix": 0.0}, "oracle": True}
    results = [
        result("rerank, tuned", 100, 10, 0.6),
        result("rerank, oracle", 100, 10, 0.99, baseline="rerank, tuned", **oracle),
        result("axn, tuned", 100, 10, 0.5, baseline="rerank, tuned"),
        result("axn, oracle", 100, 10, 0.98, baseline="rerank, tuned", **oracle),
    ]
    comparison = Comparison(title="Tiny", data={}, items=500, results=results)
    assert "oracle" not in headline(comparison)
    assert "“rerank, tuned” finds 60.0" in headline(comparison)
    assert "above its own baseline in 0 of 1 comparisons and below in 1" in tally(comparison)
    assert comparison.attainable.strategies == ["rerank, tuned", "axn, tuned"]
    assert "not attainable" in explain_oracles(comparison)
    assert explain_oracles(comparison.attainable) is None
    alone = [result("axn, oracle", 100, 10, 0.98, **oracle), result("gar", 100, 10, 0.5, baseline="axn, oracle")]
    with pytest.raises(InputError, match="'gar' has the baseline 'axn, oracle', which has no results"):
        Comparison(title="Tiny", data={}, items=500, results=alone)


# --- sets of texts


def count_vowels(texts):
    return np.array([[text.count(letter) for letter in "aeiou"] for text in texts], np.float32)


@pytest.fixture
def read(tmp_path):
    calls: list[tuple[str, str]] = []

    def score(pairs):
        calls.extend(pairs)
        return [len(set(query.split()) & set(item.split())) + 0.01 * (len(item) % 7) for query, item in pairs]

    def read_task(splits=("train", "dev", "test"), **options):
        if not (tmp_path / "set").exists():
            write_beir(tmp_path / "set", items=60, splits=splits)
        encoder = function_encoder(count_vowels, fingerprint="vowels")
        scorer = function_scorer(score, fingerprint="words")
        options = {"dev_queries": 50, **options}
        return read_set(tmp_path / "set", scorer=scorer, encoder=encoder, work_dir=tmp_path / "work", **options)

    read_task.calls = calls
    return read_task


def test_a_set_is_tuned_on_its_dev_split_which_is_scored_once(read):
    task = score_task(read(dev_queries=4))
    assert (task.facts["dev queries"], task.facts["dev part"]) == (4, "the split dev")
    assert [query.endswith(" dev") for query in task.dev.queries] == [True] * 4
    assert task.dev.scores.shape == (4, 60)
    assert len(read.calls) == (6 + 4) * 60 + 300  # asked and dev queries, and those that the speed is measured on
    read.calls.clear()
    bench = Bench(task, calls_per_item=3, anchors=3)
    families = make_candidates(default_names(bench.available, tuned=True), bench.available, budgets=[20], rounds=4)
    outcome = run_tuned(bench, families, budgets=[20], ks=[1, 5])
    assert not {query for query, _ in read.calls} & {*task.dev.queries, *task.queries}  # an index was built
    assert read.calls
    assert "axn, fitted, tuned" in outcome.data
    assert {one.strategy for one in outcome.quality if one.budget != 0} == {
        *(one.strategy for one in outcome.results if not one.oracle),
        "exact",
    }
    read.calls.clear()
    score_task(read(dev_queries=4))
    assert len(read.calls) == 300


def test_without_a_dev_split_train_queries_are_held_out(read):
    task = read(splits=("train", "test"))
    assert len(task.dev.queries) == 1
    assert task.dev.queries[0].endswith(" train")
    assert len(task.train) == 5
    assert task.dev.queries[0] not in task.train
    assert "last train queries" in task.facts["dev part"]
    untuned = read(train_queries=4, dev_queries=None)
    assert (untuned.dev, list(untuned.train)) == (None, list(task.train)[:4])


def test_dev_queries_that_are_asked_or_learned_from_elsewhere(read, tmp_path):
    read()
    path = tmp_path / "set" / "queries.jsonl"
    lines = path.read_text().splitlines()
    texts = {line.split('"')[3]: line for line in lines}
    texts["dev0"] = texts["test0"].replace('"test0"', '"dev0"')
    texts["dev1"] = texts["train1"].replace('"train1"', '"dev1"')
    path.write_text("\n".join(texts.values()))
    task = read()
    assert len(task.dev.queries) == 5  # the one that is asked is no dev query
    assert len(task.train) == 5  # the one that is a dev query is not learned from
    assert not set(task.dev.queries) & {*task.train, *task.queries}


@pytest.mark.parametrize(
    ("splits", "options", "message"),
    [
        (("test",), {}, "a dev split, or at least 2 train queries, of which some are held out, got 0"),
        (("train", "test"), {"dev_split": "dev"}, "no split 'dev', only 'test', 'train'"),
        (("train", "test"), {"dev_split": "train"}, "`dev_split` must be neither"),
        (("train", "test"), {"dev_split": "test"}, "`dev_split` must be neither"),
    ],
)
def test_dev_queries_that_are_not_there(read, splits, options, message):
    with pytest.raises(InputError) as error:
        read(splits=splits, **options)
    assert message in str(error.value)
