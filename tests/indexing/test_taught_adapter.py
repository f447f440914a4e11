"""An index whose adapter was taught: for encoders without weights, built, saved, searched, changed, taught further."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from crossknn.encoders.adapter import AdaptedEncoder
from crossknn.encoders.base import function_encoder
from crossknn.errors import InputError
from crossknn.indexing.index import Index
from crossknn.indexing.teaching.settings import Teaching
from crossknn.search.searcher import Searcher
from crossknn.storage.atomic_dir import read_folder, write_folder
from crossknn.storage.search_log import LoggedSearch
from crossknn.strategies.rerank import Rerank
from crossknn.types import Encoder
from tests.indexing.teaching import builds, world

pytest.importorskip("torch")

ITEMS, QUERIES, NEW = world.ITEMS, world.QUERIES[:120], world.QUERIES[120:]
TEACHING = Teaching(student="adapter", lists=120, items_per_list=24, epochs=30, batch=8, learning_rate=3e-3)
WORDS = sorted({word for text in [*ITEMS.texts, *world.QUERIES] for word in text.split()})


def encode(texts: list[str]) -> np.ndarray:
    """A bag of words, as random directions: topics weigh as little as other words."""
    directions = np.random.default_rng(0).standard_normal((len(WORDS), 64)).astype(np.float32)
    counts = np.array([[text.split().count(word) for word in WORDS] for text in texts], np.float32)
    vectors = counts.reshape(-1, len(WORDS)) @ directions
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-9)


def make_encoder(calls: list[int] | None = None) -> Encoder:
    """An encoder without weights; `calls` gets the number of item texts of each call."""

    def encode_items(texts: list[str]) -> np.ndarray:
        if calls is not None and len(texts) > 1:  # one text is encoded for the dimension
            calls.append(len(texts))
        return encode(texts)

    return function_encoder(encode, encode_items=encode_items, fingerprint="bag-of-words")


def build(encoder: Encoder | None = None, **options) -> Index:
    settings = {"scorer": world.Teacher().scorer, "queries": QUERIES, "teach": TEACHING, **options}
    return Index.build(ITEMS, encoder=encoder or make_encoder(), **settings)


def recall(index: Index, encoder: Encoder | None = None) -> float:
    """The share of the topic's items among the nearest 20 of new queries."""
    searcher = Searcher(index, scorer=world.Teacher().scorer, encoder=encoder or make_encoder())
    hits = searcher.search_many(NEW, k=20, strategy=Rerank(20, "dense"))
    return float(np.mean([np.mean([hit.score >= 5 for hit in one]) for one in hits]))


@pytest.fixture(scope="module")
def plain() -> Index:
    return build(teach=False, factors=None)


@pytest.fixture(scope="module")
def built() -> Index:
    return build()


@pytest.fixture(scope="module")
def for_queries() -> Index:
    return build(teach=replace(TEACHING, student="query-adapter"))


def test_it_finds_more(plain, built, for_queries):
    assert recall(plain) + 0.1 < recall(for_queries)
    assert recall(plain) + 0.2 < recall(built)
    assert built.report.teaching.helped
    assert (built.is_taught, built.has_encoder) == (True, False)


def test_true_teaches_an_adapter_to_an_encoder_without_weights():
    index = build(teach=True)
    assert index.report.teaching is not None
    assert index.factors is None


def test_item_vectors_change_only_where_items_are_adapted(plain, built, for_queries):
    assert not np.allclose(built.vectors, plain.vectors, atol=0.01)
    np.testing.assert_array_equal(for_queries.vectors, plain.vectors)


def test_the_items_are_encoded_once(tmp_path):
    calls = []
    build(make_encoder(calls))
    assert sum(calls) == len(ITEMS)
    build(make_encoder(calls), work_dir=tmp_path)
    build(make_encoder(calls), work_dir=tmp_path)
    assert sum(calls) == 2 * len(ITEMS)


def test_the_same_seed_gives_the_same_adapter(built, tmp_path):
    again = build(work_dir=tmp_path)
    assert again.encoder == built.encoder
    np.testing.assert_array_equal(again.vectors, built.vectors)


def test_a_loaded_index_is_the_built_one(built, for_queries, tmp_path):
    for index in (built, for_queries):
        index.save(tmp_path / "index")
        loaded = Index.load(tmp_path / "index")
        assert loaded.verify() > 0
        assert loaded.encoder == index.encoder
        assert recall(loaded) == recall(index)
        adapted = loaded.choose_encoder(make_encoder())
        assert isinstance(adapted, AdaptedEncoder)
        assert recall(loaded, adapted) == recall(index)


def test_another_encoder_is_refused(built):
    other = function_encoder(encode, fingerprint="another")
    with pytest.raises(InputError, match="bag-of-words"):
        Searcher(built, scorer=world.Teacher().scorer, encoder=other)
    same = Searcher(built, scorer=world.Teacher().scorer, encoder=other, check_models=False)
    assert same.encoder.fingerprint == built.encoder
    with pytest.raises(InputError, match="no encoder of its own"):
        built.open_encoder()


def test_new_items_are_adapted(built):
    added = built.add(
        builds.Items(["rivers of snow"], ids=["new"]), scorer=world.Teacher().scorer, encoder=make_encoder()
    )
    expected = built.choose_encoder(make_encoder()).encode_items(["rivers of snow"])
    np.testing.assert_allclose(added.vectors[-1:], expected, atol=1e-3)
    removed = added.remove(["new"])
    np.testing.assert_array_equal(removed.vectors, built.vectors)


def test_one_that_learned_nothing_is_dropped(plain):
    index = build(teach=replace(TEACHING, learning_rate=1e-12))
    assert not index.is_taught
    assert index.encoder == plain.encoder
    np.testing.assert_array_equal(index.vectors, plain.vectors)


@pytest.mark.parametrize("student", ["adapter", "query-adapter"])
def test_searches_teach_it_further(built, for_queries, plain, student, tmp_path):
    start = built if student == "adapter" else for_queries
    searcher = Searcher(plain, scorer=world.Teacher().scorer, encoder=make_encoder())
    searches = [LoggedSearch(hits.query, *hits.scored()) for hits in searcher.search_many(NEW[:30], k=5, budget=20)]
    learned = start.learn(searches, scorer=world.Teacher().scorer, encoder=make_encoder(), work_dir=tmp_path)
    assert learned.is_taught
    assert len(learned) == len(start)
    if student == "query-adapter":
        np.testing.assert_array_equal(learned.vectors, plain.vectors)
    fresh = plain.learn(searches, scorer=world.Teacher().scorer, encoder=make_encoder())
    assert fresh.report.teaching is not None


def test_a_damaged_adapter_is_refused(built, tmp_path):
    folder = tmp_path / "index"
    built.save(folder)
    opened = read_folder(folder)
    files = {name: partial(shutil.copyfile, path) for name, path in opened.files.items()}
    write_folder(folder, {**opened.facts, "adapter": {"normalize": True}}, files)
    with pytest.raises(InputError, match="damaged"):
        Index.load(folder)
